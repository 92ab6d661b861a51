//! One step of a command: a line that says what is done and for how long, its output in a log, and the end of that log
//! where it fails.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use kv_platform::sync::Mutex;

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

/// Run a command whose output is the point, with its output shown as it comes; in a row of [`beside`], when it has ended.
pub fn run_shown(name: &str, command: &mut Command) -> Result<()> {
    command.stdin(Stdio::null());
    if ASIDE.get() {
        return run_aside(name, command);
    }
    eprintln!("== {name}");
    let start = Moment::now();
    let status = command.status().with_context(|| cannot_run(command))?;
    ensure!(status.success(), "{name} failed: {status}");
    took(name, start.elapsed());
    Ok(())
}

/// The lints and the tests of what `cargo` is a command for, each as a step.
pub fn lint_and_test(what: &str, cargo: impl Fn(&str) -> Command) -> Result<()> {
    for (command, rest) in [("clippy", &["--all-targets", "--", "-D", "warnings"][..]), ("test", &[])] {
        run_shown(&format!("{command} of {what}"), cargo(command).args(rest))?;
    }
    Ok(())
}

thread_local! {
    /// Whether this thread has the row of [`beside`].
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// A step of [`beside`].
pub type Step<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// Steps in a row beside `main`, which leaves a processor idle, and both results. Where one of the two fails, the other ends too: the row after
/// the step at which it is.
pub fn beside<T>(row: &[Step], main: impl FnOnce() -> Result<T>) -> Result<T> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let row = scope.spawn(|| {
            ASIDE.set(true);
            row.iter().take_while(|_| !ended.load(Ordering::Relaxed)).try_for_each(|step| step())
        });
        let main = main().inspect_err(|_| ended.store(true, Ordering::Relaxed));
        let row = row.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        main.and_then(|main| row.map(|()| main))
    })
}

/// With what it prints in one piece, after it.
fn run_aside(name: &str, command: &mut Command) -> Result<()> {
    eprintln!(".. {name}, beside the others");
    let (clock, mut said) = (Instant::now(), tempfile::tempfile()?);
    command.stdout(said.try_clone()?).stderr(said.try_clone()?);
    let (status, busy) = wait(command.spawn().with_context(|| cannot_run(command))?)?;
    let mut text = format!("== {name}\n").into_bytes();
    said.rewind()?;
    said.read_to_end(&mut text)?;
    std::io::stderr().write_all(&text)?;
    ensure!(status.success(), "{name} failed: {status}");
    took(name, Took { clock: clock.elapsed(), busy });
    Ok(())
}

/// What the processes of [`beside`] took, which is no part of what a step of the other thread took.
static BUSY_ASIDE: Mutex<Duration> = Mutex::new(Duration::ZERO);

/// Wait for a process, for what it and those it waited for took of the processors.
fn wait(child: Child) -> Result<(ExitStatus, Duration)> {
    let (pid, mut status) = (libc::pid_t::try_from(child.id())?, 0);
    // SAFETY: all zeroes is a value of this plain structure; both places live until the call returns. Nothing else waits for this child.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        while libc::wait4(pid, &raw mut status, 0, &raw mut usage) < 0 {
            let error = std::io::Error::last_os_error();
            ensure!(error.kind() == std::io::ErrorKind::Interrupted, "cannot wait for a process: {error}");
        }
        usage
    };
    let busy = busy(&usage);
    *BUSY_ASIDE.lock() += busy;
    Ok((ExitStatus::from_raw(status), busy))
}

fn busy(usage: &libc::rusage) -> Duration {
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// A moment, on the clock and in processor time of the processes that this one started and waited for, but for those of [`beside`].
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
        let aside = *BUSY_ASIDE.lock();
        Moment { clock: Instant::now(), busy: busy(&usage).saturating_sub(aside) }
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

fn took(name: &str, took: Took) {
    TIMES.lock().push((name.to_owned(), took));
}

/// Say how long the steps took, the longest first.
pub fn say_times(start: Moment) {
    let mut times = TIMES.lock().clone();
    times.sort_by_key(|(_, took)| std::cmp::Reverse(took.clock));
    let say = |Took { clock, busy }: Took| {
        format!("{:>5.0} s, {:>5.0} s of processors", clock.as_secs_f64(), busy.as_secs_f64())
    };
    let all = start.elapsed();
    let aside = *BUSY_ASIDE.lock();
    eprintln!("== {} in all", say(Took { busy: all.busy + aside, ..all }).trim_start());
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
        took(&self.name, self.start.elapsed());
        eprintln!("ok {} ({:.1} s)", self.name, self.start.clock.elapsed().as_secs_f64());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn a_row_goes_on_beside_the_main_step() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(shell(&format!("mkfifo {}", pipe.display())).status().unwrap().success());
        // Neither of the two ends without the other.
        let written = || run_shown("writing", &mut shell(&format!("echo met > {}", pipe.display())));
        let read = beside(&[&written], || Ok(std::fs::read_to_string(&pipe)?));
        assert_eq!(read.unwrap(), "met\n");
        let took = TIMES.lock();
        assert!(took.iter().any(|(name, _)| name == "writing"));
    }

    #[test]
    fn a_failure_on_either_side_is_told_and_ends_the_row() {
        let ran = AtomicBool::new(false);
        let failing = || run_shown("failing", &mut shell("echo why; exit 3"));
        let after = || {
            ran.store(true, Ordering::Relaxed);
            Ok(())
        };
        let told = beside(&[&failing, &after], || Ok(())).unwrap_err();
        assert_eq!(told.to_string(), "failing failed: exit status: 3");
        assert!(!ran.load(Ordering::Relaxed));

        let told = beside(&[&failing], || Err::<(), _>(anyhow::anyhow!("main failed")));
        assert_eq!(told.unwrap_err().to_string(), "main failed");
    }
}
