//! Starts the processes in which cases run, and takes note of how they end.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::cases::{EXPECTED, Said};
use super::report::Verdict;
use super::subject::{SubjectKind, Tested};
use super::times::Times;
use super::{parameters, soak};
use crate::failure::{Failure, Outcome};
use crate::stores::Stores;

/// When a process that saves is killed, after it has saved once.
const KILLED_AFTER_MS: [u64; 6] = [3, 17, 41, 97, 211, 503];

/// Lines of the library that are shown where a case failed.
const LINES: usize = 8;

/// What was told of the server of a store that was given.
pub struct Server {
    /// What it says when it refuses.
    pub refusal: Option<String>,
    /// Another store on it.
    pub beside: Option<String>,
}

pub struct Runner<'a> {
    tested: &'a Tested,
    timeout: Duration,
    /// Bytes of memory that a case's process may take.
    memory: u64,
    salt: u64,
    server: Server,
    /// Holds the component under its scheme's name, and stores.
    folder: tempfile::TempDir,
    expected: Option<String>,
}

struct Process {
    child: Child,
    said: Receiver<Said>,
    /// What the library writes.
    log: std::fs::File,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Runner<'a> {
    pub fn new(tested: &'a Tested, timeout: Duration, memory: u64, server: Server) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("kv-store-check-").tempdir().map_err(Failure::unable)?;
        let mut expected = None;
        if tested.kind == SubjectKind::Component {
            let components = folder.path().join("components");
            std::fs::create_dir(&components).map_err(Failure::unable)?;
            let name = components.join(format!("{}.wasm", tested.scheme));
            std::os::unix::fs::symlink(&tested.file, name).map_err(Failure::unable)?;
            expected = Some(kv_store_wasm::inspect(&tested.file).map_err(Failure::unable)?.sha256);
        }
        let mut salt = [0; 8];
        getrandom::fill(&mut salt).map_err(Failure::unable)?;
        let salt = u64::from_le_bytes(salt);
        Ok(Runner { tested, timeout, memory, salt, server, folder, expected })
    }

    /// The component's digest, in hex. None: it is native code.
    pub fn sha256(&self) -> Option<&str> {
        self.expected.as_deref()
    }

    /// Compile the component, in a process that has the memory of a case. None: it is native code.
    pub fn compile(&self, seconds: u64) -> Outcome<Option<(Duration, bool)>> {
        if self.tested.kind == SubjectKind::Native {
            return Ok(None);
        }
        let program = std::env::current_exe().map_err(Failure::unable)?;
        let mut command = Command::new(program);
        command.args(["check-cases", "--memory", &self.memory.to_string(), "--seconds", &seconds.to_string()]);
        command.arg("--compile").arg(&self.tested.file).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().map_err(Failure::unable)?;
        match serde_json::from_slice(&output.stdout) {
            Ok(Said::Compiled { milliseconds, kept }) => Ok(Some((Duration::from_millis(milliseconds), kept))),
            Ok(Said::Refused(why)) => Err(Failure::unable(why)),
            _ => Err(Failure::unable(format!(
                "check: the process that compiles the component ended: {}; raise --memory if it is too small",
                ending(output.status)
            ))),
        }
    }

    /// Open a store once, and answer what it says of itself.
    pub fn probe(&self) -> Outcome<String> {
        Ok(self.start(None)?.1)
    }

    /// What an open, a put and a get take, in a process of their own.
    pub fn times(&self) -> Outcome<Times> {
        let (mut command, _) = self.command(&["--times".to_owned()], None)?;
        let output = command.stderr(Stdio::inherit()).output().map_err(Failure::unable)?;
        match serde_json::from_slice(&output.stdout) {
            Ok(Said::Measured(times)) => Ok(times),
            Ok(Said::Refused(why)) => Err(Failure::unable(why)),
            _ => Err(Failure::unable(format!("check: the process that measures ended: {}", ending(output.status)))),
        }
    }

    /// The verdict on a case.
    pub fn case(&self, name: &str) -> Outcome<Verdict> {
        match self.start(Some(name)) {
            Ok((process, _)) => Ok(process.verdict(self.timeout)),
            // It did open, when it was probed.
            Err(Failure::Unable(why)) => Ok(Verdict::Failed(why)),
            Err(other) => Err(other),
        }
    }

    /// The verdict on what must outlive its process.
    pub fn restart(&self, name: &str) -> Outcome<Verdict> {
        match self.case(name)? {
            Verdict::Passed => self.case(&format!("{name}:after")),
            other => Ok(other),
        }
    }

    /// The same for what must outlive a restart of the storage system.
    pub fn restarted(&self, name: &str, program: &Path) -> Outcome<Verdict> {
        match self.case(name)? {
            Verdict::Passed => {}
            other => return Ok(other),
        }
        let status = Command::new(program).stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status = status.map_err(|error| Failure::unable(format!("{}: {error}", program.display())))?;
        if !status.success() {
            return Err(Failure::unable(format!("check: {} ended: {}", program.display(), ending(status))));
        }
        self.case(&format!("{name}:after"))
    }

    /// The verdict on an open with an option that no backend knows.
    pub fn unknown_option(&self) -> Outcome<Verdict> {
        let uri = match &self.tested.stores {
            Stores::Given(uri) => uri.clone(),
            Stores::Directories | Stores::Names => format!("{}://option", self.tested.scheme),
        };
        let config = soak::config_with_option(&uri, &self.tested.scheme, parameters::PARAMETER, self.folder.path())?;
        Ok(match self.start_with(&[], Some(&config)) {
            Err(Failure::Unable(_)) => Verdict::Passed,
            Err(other) => return Err(other),
            Ok(_) => Verdict::Failed(format!(
                "with the option {} it opened as if it were not there: answer `invalid`, so that a mistake of the operator shows",
                parameters::PARAMETER
            )),
        })
    }

    /// The verdict on what two processes do at the same time.
    pub fn pair(&self, name: &str) -> Outcome<Verdict> {
        let second = match self.start(Some(&format!("{name}:second"))) {
            Ok((second, _)) => second,
            Err(Failure::Unable(why)) => return Ok(Verdict::Failed(why)),
            Err(other) => return Err(other),
        };
        let first = self.case(name)?;
        Ok(match (first, second.verdict(self.timeout)) {
            (Verdict::Failed(first), Verdict::Failed(second)) => {
                Verdict::Failed(format!("{first}\nand the other process: {second}"))
            }
            (Verdict::Failed(why), _) | (_, Verdict::Failed(why)) => Verdict::Failed(why),
            (first, _) => first,
        })
    }

    /// The verdict on what a killed process leaves: it is killed at several moments, and what it left is looked at each time.
    pub fn killed(&self, name: &str) -> Outcome<Verdict> {
        for delay in KILLED_AFTER_MS.map(Duration::from_millis) {
            let mut process = match self.start(Some(name)) {
                Ok((process, _)) => process,
                Err(Failure::Unable(why)) => return Ok(Verdict::Failed(why)),
                Err(other) => return Err(other),
            };
            match process.said.recv_timeout(self.timeout) {
                Ok(Said::Ready) => {}
                Ok(Said::Skipped(why)) => return Ok(Verdict::Skipped(why)),
                Ok(Said::Failed(why)) => return Ok(Verdict::Failed(why)),
                _ => {
                    let _ = process.child.kill();
                    return Ok(Verdict::Failed("it did not save once".to_owned() + &process.last_lines()));
                }
            }
            std::thread::sleep(delay);
            drop(process);
            match self.case(&format!("{name}:after"))? {
                Verdict::Passed => {}
                other => return Ok(other),
            }
        }
        Ok(Verdict::Passed)
    }

    /// Random operations with faults, for so long. Answers the verdict, and what was done.
    pub fn soak(&self, length: Duration) -> Outcome<(Verdict, String)> {
        let uri = match &self.tested.stores {
            Stores::Given(uri) => uri.clone(),
            Stores::Directories | Stores::Names => format!("{}://soak", self.tested.scheme),
        };
        let config = soak::config_with_faults(&uri, &self.tested.scheme, self.salt, self.folder.path())?;
        let arguments = ["--soak".to_owned(), length.as_secs().to_string()];
        let (mut process, _) = self.start_with(&arguments, Some(&config))?;
        let verdict = process.wait(self.timeout + length);
        let done = process.last_lines();
        Ok((verdict, done.lines().last().unwrap_or_default().to_owned()))
    }

    /// A process that is not started yet, and what the library writes in it.
    fn command(&self, arguments: &[String], config: Option<&Path>) -> Outcome<(Command, std::fs::File)> {
        let log = tempfile::tempfile_in(self.folder.path()).map_err(Failure::unable)?;
        let program = std::env::current_exe().map_err(Failure::unable)?;
        let mut command = Command::new(program);
        command.arg("check-cases").args(["--salt", &self.salt.to_string(), "--memory", &self.memory.to_string()]);
        match &self.tested.stores {
            Stores::Given(uri) => command.args(["--uri", uri]),
            Stores::Directories => {
                let stores = self.folder.path().join("stores");
                std::fs::create_dir_all(&stores).map_err(Failure::unable)?;
                command.arg("--stores").arg(format!("{}://{}/", self.tested.scheme, stores.display()))
            }
            Stores::Names => command.arg("--stores").arg(format!("{}://", self.tested.scheme)),
        };
        if let Some(refusal) = &self.server.refusal {
            // It may begin with a hyphen.
            command.arg(format!("--refusal={refusal}"));
        }
        if let Some(beside) = &self.server.beside {
            command.args(["--beside", beside]);
        }
        if self.tested.kind == SubjectKind::Native {
            command.arg("--library").arg(&self.tested.file);
        }
        if let Some(expected) = &self.expected {
            let inherited = std::env::var_os("KV_STORE_WASM_PATH").unwrap_or_default();
            let path = std::iter::once(self.folder.path().join("components")).chain(std::env::split_paths(&inherited));
            let path = std::env::join_paths(path.filter(|path| *path != PathBuf::new())).map_err(Failure::unable)?;
            command.env("KV_STORE_WASM_PATH", path).env(EXPECTED, expected);
        }
        let stderr = log.try_clone().map_err(Failure::unable)?;
        if let Some(config) = config {
            command.env("KV_STORE_WASM_CONFIG", config);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        Ok((command, log))
    }

    /// A process that has opened a store, and what the backend says of itself.
    fn start(&self, name: Option<&str>) -> Outcome<(Process, String)> {
        self.start_with(name.map(str::to_owned).as_slice(), None)
    }

    /// The same with other arguments, and with another config than the operator's.
    fn start_with(&self, arguments: &[String], config: Option<&Path>) -> Outcome<(Process, String)> {
        let (mut command, log) = self.command(arguments, config)?;
        let mut child = command.spawn().map_err(Failure::unable)?;
        let out = child.stdout.take();
        let (sender, said) = channel();
        // Ends with the child's output.
        std::thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok);
            for line in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Process { child, said, log };
        match process.said.recv_timeout(self.timeout) {
            Ok(Said::Opened(label)) => Ok((process, label)),
            Ok(Said::Refused(why)) => Err(Failure::unable(format!("the store does not open: {why}"))),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                let end = process.child.wait().map_err(Failure::unable)?;
                Err(Failure::unable(format!("check: the process that opens a store ended: {}", ending(end))))
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(Failure::unable(format!("the store did not open within {} s", self.timeout.as_secs())))
            }
        }
    }
}

impl Process {
    /// What it says of the case that it was started for.
    fn verdict(mut self, timeout: Duration) -> Verdict {
        self.wait(timeout)
    }

    fn wait(&mut self, timeout: Duration) -> Verdict {
        let why = loop {
            match self.said.recv_timeout(timeout) {
                Ok(Said::Passed) => return Verdict::Passed,
                Ok(Said::Skipped(why)) => return Verdict::Skipped(why),
                Ok(Said::Failed(why)) => break why,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    break format!("it hangs: no answer within {} s", timeout.as_secs());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let end = self.child.wait();
                    break format!("it ended the process: {}", end.map_or_else(|error| error.to_string(), ending));
                }
            }
        };
        Verdict::Failed(why + &self.last_lines())
    }

    fn last_lines(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
        if read.is_err() || last.is_empty() { String::new() } else { format!("\nit wrote:\n{}", last.join("\n")) }
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}{}", if status.core_dumped() { ", core dumped" } else { "" }),
        (None, code) => format!("exit code {}", code.unwrap_or_default()),
    }
}
