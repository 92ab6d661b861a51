//! Consumers as processes: the C programs of `tests/consumer`, built and run against the library as it is installed.
//!
//! A process sees nothing of this machine: its config, cache and library are named by the environment that it gets here.
//! It runs in a process group of its own, so that what it forked ends with it, and within a bound against hanging.

use std::collections::HashSet;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use crate::{compile, library_path, probe_config, root};

/// No test takes a tenth of it: what does hangs.
const BOUND: Duration = Duration::from_secs(240);

/// Where the tests keep what they make once: programs, the config, compiled components.
fn made() -> PathBuf {
    let folder = root().join("target/test-consumers");
    std::fs::create_dir_all(&folder).expect("the target folder can be written to");
    folder
}

/// A program of `tests/consumer`, built on its first use in this process.
pub fn program(name: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    // A test that failed under this lock says so itself.
    let mut built = BUILT.lock();
    let path = made().join(name);
    if built.get_or_insert_default().insert(name.to_owned()) {
        // Renamed into place: a test of another process may be running the former one.
        let fresh = made().join(format!("{name}.{}", std::process::id()));
        compile(&format!("{name}.c"), "c", &fresh);
        std::fs::rename(&fresh, &path).expect("the target folder can be written to");
    }
    path
}

/// A program of `tests/consumer`, about to run with the installed library and the config of [`crate::PROBES`].
pub fn consumer(name: &str) -> Command {
    let config = made().join(format!("config-{}.toml", std::process::id()));
    if !config.exists() {
        std::fs::write(&config, probe_config()).expect("the target folder can be written to");
    }
    let mut command = Command::new(program(name));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("KV_STORE_LIBRARY", library_path())
        .env("KV_STORE_WASM_CONFIG", config)
        .env("KV_STORE_WASM_CACHE", made().join("cache"));
    command
}

/// How a process ended, and what it wrote.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The process ended with this code.
#[track_caller]
pub fn expect(code: i32, finished: &Finished) {
    assert_eq!(finished.status.code(), Some(code), "{}\n{}", finished.stdout, finished.stderr);
}

/// The commands that a `--help` lists.
pub fn commands_in(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What goes on below a command is indented further.
    lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty())).collect()
}

/// Run a process to its end.
pub fn finish(command: &mut Command) -> Finished {
    finish_within(BOUND, command)
}

/// The same, where it may take longer until it counts as hanging.
pub fn finish_within(bound: Duration, command: &mut Command) -> Finished {
    // Files, not pipes: what was forked and lives on would hold a pipe open.
    let [mut stdout, mut stderr] = [(), ()].map(|()| tempfile::tempfile().expect("a temporary file"));
    let duplicate = |file: &std::fs::File| Stdio::from(file.try_clone().expect("a file descriptor"));
    command.stdin(Stdio::null()).stdout(duplicate(&stdout)).stderr(duplicate(&stderr));
    let mut running = start(command);
    let status = running.wait_for(bound);
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
        String::from_utf8(bytes).expect("what a process writes is UTF-8")
    };
    let (stdout, stderr) = (read(&mut stdout), read(&mut stderr));
    let Some(status) = status else { panic!("{command:?} hangs\n{stdout}{stderr}") };
    Finished { status, stdout, stderr }
}

/// Run a process that must exit with 0.
#[track_caller]
pub fn succeed(command: &mut Command) -> Finished {
    let finished = finish(command);
    assert!(finished.status.success(), "{command:?}: {}\n{}{}", finished.status, finished.stdout, finished.stderr);
    finished
}

/// A running process. Killed, with what it forked, when it is dropped.
pub struct Running(pub Child);

/// Start a process whose streams the caller has set.
pub fn start(command: &mut Command) -> Running {
    Running(command.process_group(0).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

impl Running {
    /// Wait for its end; none if it hangs.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.wait_for(BOUND)
    }

    fn wait_for(&mut self, bound: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + bound;
        loop {
            if let Some(status) = self.0.try_wait().expect("the child is ours") {
                return Some(status);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved; the child was not waited for, so that its number is nobody else's.
        let sent = unsafe { libc::kill(self.0.id() as i32, signal) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// Freeze the process, all its threads, or let it go on.
    pub fn freeze(&self, frozen: bool) {
        if !frozen {
            return self.signal(libc::SIGCONT);
        }
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` is a place for an int.
        unsafe { libc::waitpid(self.0.id() as i32, &raw mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status), "it ended instead: {status}");
    }

    /// SIGKILL, and wait until it is gone.
    pub fn kill(&mut self) {
        // Fails where it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // SAFETY: no memory is involved; the group is the child's own, and the child was not waited for, so that
            // its number is nobody else's.
            unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
            let _ = self.0.wait();
        }
    }
}
