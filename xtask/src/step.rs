//! One step of a command: a line that says what is done and for how long, its output in a log, and the end of that log
//! where it fails.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// Lines of the log that a failure shows.
const TAIL_LINES: usize = 40;

/// Run a command as a step.
pub fn run(place: &crate::Place, name: &str, command: &mut Command) -> Result<()> {
    let progress = Progress::start(name);
    let log = place.work().join("logs").join(format!("{}.log", name.replace(|c: char| !c.is_alphanumeric(), "-")));
    run_logged(command, &log).with_context(|| format!("{name} failed"))?;
    progress.done();
    Ok(())
}

/// Run a command whose output is the point, with its output shown as it comes.
pub fn run_shown(name: &str, command: &mut Command) -> Result<()> {
    eprintln!("== {name}");
    let start = Moment::now();
    let status = command.stdin(Stdio::null()).status().with_context(|| cannot_run(command))?;
    if !status.success() {
        bail!("{name} failed: {status}");
    }
    took(name, start);
    Ok(())
}

/// A moment, on the clock and in processor time of the processes that this one started and waited for.
#[derive(Clone, Copy)]
pub struct Moment {
    clock: Instant,
    busy: Duration,
}

impl Moment {
    pub fn now() -> Self {
        // SAFETY: all zeroes is a value of this plain structure, which the call fills.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
            usage
        };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        Moment { clock: Instant::now(), busy: time(usage.ru_utime) + time(usage.ru_stime) }
    }

    fn elapsed(self) -> Took {
        let now = Moment::now();
        Took { clock: now.clock - self.clock, busy: now.busy.saturating_sub(self.busy) }
    }
}

/// How long a step took. On a machine that does other work too, only the processor time says something.
#[derive(Clone, Copy)]
struct Took {
    clock: Duration,
    busy: Duration,
}

static TIMES: Mutex<Vec<(String, Took)>> = Mutex::new(Vec::new());

fn took(name: &str, start: Moment) {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), start.elapsed()));
}

/// Say how long the steps took, the longest first.
pub fn say_times(start: Moment) {
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    times.sort_by_key(|(_, took)| std::cmp::Reverse(took.clock));
    let say = |Took { clock, busy }: Took| {
        format!("{:>5.0} s, {:>5.0} s of processors", clock.as_secs_f64(), busy.as_secs_f64())
    };
    eprintln!("== {} in all", say(start.elapsed()).trim_start());
    for (name, took) in times.iter().filter(|(_, took)| took.clock >= Duration::from_secs(1)) {
        eprintln!("{}  {name}", say(*took));
    }
}

/// Run a command for what it prints.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_run(command))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Run a command to its end, its output in a log; the end of that log is in the error where it fails.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| cannot_run(command))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n");
        bail!("{status}; the end of {}:\n{tail}", log.display());
    }
    Ok(())
}

fn cannot_run(command: &Command) -> String {
    format!("cannot run {}: is it installed?", command.get_program().display())
}

/// A line that shows that a step is at work: a spinner on a terminal, plain lines elsewhere.
pub struct Progress {
    name: String,
    bar: ProgressBar,
    start: Moment,
}

impl Progress {
    pub fn start(name: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(name.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        if bar.is_hidden() {
            eprintln!(".. {name}");
        }
        Progress { name: name.to_owned(), bar, start: Moment::now() }
    }

    /// Say more about what is being done.
    pub fn say(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.name));
        if self.bar.is_hidden() {
            eprintln!("   {what}");
        }
    }

    pub fn done(self) {
        self.bar.finish_and_clear();
        took(&self.name, self.start);
        eprintln!("ok {} ({:.1} s)", self.name, self.start.clock.elapsed().as_secs_f64());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
