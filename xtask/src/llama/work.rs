//! The folder where results are kept: its lock, its logs, and how a step is run.
//!
//! Nothing of the caller's environment reaches a step but what finding programs
//! and downloading needs: an inherited CFLAGS would make another library.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::APT_PACKAGES;
use crate::step::run_logged;

/// Environment variables that programs run by this module see: to find programs,
/// to keep caches, to reach a package index. Beside them, all that begin with
/// `PIP_`.
const KEPT_ENVIRONMENT: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "XDG_CACHE_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
];

const C_FLAGS: &[&str] = &["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"];

/// The folder where everything is kept.
#[derive(Debug)]
pub struct Work {
    pub dir: PathBuf,
}

impl Work {
    pub fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir.join("log")).with_context(|| format!("make {}", dir.display()))?;
        let dir = fs::canonicalize(dir).with_context(|| format!("find {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Wait for other runs. The lock ends with the file, also when we are killed.
    pub fn lock(&self, say: &dyn Fn(&str)) -> Result<File> {
        let path = self.dir.join("lock");
        let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
        if file.try_lock().is_err() {
            say("waiting for another run that builds llama.cpp");
            file.lock().with_context(|| format!("lock {}", path.display()))?;
        }
        Ok(file)
    }

    /// Compile a C program or library, unless what is there was made from the
    /// same sources with the same options.
    pub fn compile(
        &self,
        name: &str,
        sources: &Path,
        files: &[&str],
        repo: &Path,
        options: &[&OsStr],
        say: &dyn Fn(&str),
    ) -> Result<PathBuf> {
        let output = self.dir.join("bin").join(name);
        let stamp = self.dir.join("bin").join(format!("{name}.made-from"));
        let mut cc = program("cc");
        cc.args(C_FLAGS).arg("-I").arg(repo.join("include"));
        cc.args(files.iter().map(|file| sources.join(file))).args(options);
        let mut parts: Vec<Vec<u8>> = cc.get_args().map(|arg| arg.as_encoded_bytes().to_vec()).collect();
        for path in c_files(sources)?.into_iter().chain(c_files(&repo.join("include"))?) {
            parts.push(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
        let made_from = digest(parts.iter().map(Vec::as_slice));
        if output.is_file() && fs::read_to_string(&stamp).is_ok_and(|found| found == made_from) {
            return Ok(output);
        }
        say(&format!("compiling {name}"));
        fs::create_dir_all(self.dir.join("bin")).context("make the folder bin")?;
        let unfinished = output.with_extension("tmp");
        cc.arg("-o").arg(&unfinished);
        self.run(cc, name)?;
        // No stamp while it may speak of another output. The output is renamed, so
        // that a process that runs the old one keeps it.
        write(&stamp, "")?;
        fs::rename(&unfinished, &output).with_context(|| format!("rename to {}", output.display()))?;
        write(&stamp, &made_from)?;
        Ok(output)
    }

    /// Run a program to its end, its output in `log/<step>.log`.
    pub fn run(&self, mut command: Command, step: &str) -> Result<()> {
        let log = self.dir.join("log").join(format!("{step}.log"));
        run_logged(&mut command, &log)
            .with_context(|| format!("{step} failed; if something is not installed: {}", how_to_install()))
    }
}

fn how_to_install() -> String {
    format!("apt-get install {}", APT_PACKAGES.join(" "))
}

/// Fail, with what to install, if no folder of PATH has this program.
pub fn find_program(name: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join(name).is_file()) {
        bail!("{name} is not installed: {}", how_to_install());
    }
    Ok(())
}

/// A command that sees only [`KEPT_ENVIRONMENT`].
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.env_clear();
    command.envs(std::env::vars_os().filter(|(key, _)| {
        let key = key.to_string_lossy();
        KEPT_ENVIRONMENT.contains(&key.as_ref()) || key.starts_with("PIP_")
    }));
    command
}

/// The C sources and headers of a folder, in a fixed order.
fn c_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        if path.extension().is_some_and(|kind| kind == "c" || kind == "h") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A short name for some bytes, to see that they changed; no secret rests on it.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        part.hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

pub fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Remove a folder with all that is in it, if it is there.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
