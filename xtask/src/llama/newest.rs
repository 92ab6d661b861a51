//! Debian's newest llama-server: its packages, unpacked into a folder, with the libraries that they were linked for.
//!
//! It runs from there by its own dynamic loader, so neither root nor a chroot is needed. The packages are those of sid, from the mirror that
//! this machine uses.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Llama;
use crate::step;

/// What the checks were made for.
pub const VERSION: &str = "0.7.0";

/// Packages of sid: the server and all that it is linked with.
const PACKAGES: &[&str] = &[
    "llama.cpp-tools",
    "libllama0",
    "libllama-dev",
    "libggml0",
    "libggml-dev",
    "libc6",
    "libstdc++6",
    "libgcc-s1",
    "libgomp1",
    "libssl3t64",
    "libcurl4t64",
    "zlib1g",
    "libzstd1",
    "libbrotli1",
];

/// Where its libraries lie below the root, by Debian's rules for this processor.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The server and what was compiled for its libllama.
pub struct Newest {
    pub root: PathBuf,
    /// Such as 0.7.0.
    pub version: String,
    front: PathBuf,
    back: PathBuf,
    replay: PathBuf,
}

/// Fetch it, if Debian has this version, or any for `None`; another one is `Err`, with the version that there is.
///
/// # Errors
/// No mirror can be reached, or a program does not compile with its headers.
pub fn ensure(llama: &Llama, wanted: Option<&str>, say: &dyn Fn(&str)) -> Result<Result<Newest, String>> {
    let dir = llama.work.dir.join("debian");
    let _lock = llama.work.lock(say)?;
    let apt = Apt::new(&dir)?;
    say("asking Debian's mirror for llama.cpp");
    step::output(apt.get().args(["update", "-qq"]))?;
    let found = step::output(apt.command("apt-cache").args(["policy", "llama.cpp-tools"]))?;
    let version = candidate(&found).context("the mirror has no llama.cpp-tools")?;
    // 1:0.7.0+dfsg-2
    let upstream = version.split_once(':').map_or(version, |(_, rest)| rest);
    let upstream = upstream.split(['+', '-']).next().unwrap_or(upstream).to_owned();
    if wanted.is_some_and(|wanted| wanted != upstream) {
        return Ok(Err(upstream));
    }
    let root = dir.join("root");
    let stamp = dir.join("unpacked");
    if !std::fs::read_to_string(&stamp).is_ok_and(|found| found == version) {
        say("unpacking Debian's llama-server");
        unpack(&apt, &dir, &root)?;
        super::write(&stamp, version)?;
    }
    let compiled = NewestCompiler { llama, root: &root, say };
    let newest = Newest {
        version: upstream,
        front: compiled.recorder("front")?,
        back: compiled.recorder("back")?,
        replay: compiled.program("llama-replay", "replay.c", &["-lllama".into(), "-lggml".into()])?,
        root: root.clone(),
    };
    Ok(Ok(newest))
}

impl Newest {
    /// What `check_auto.py` needs of it.
    pub fn recorders(&self, check: &mut Command) {
        check.arg("--front").arg(&self.front).arg("--back").arg(&self.back).arg("--replay").arg(&self.replay);
    }
}

/// apt with lists, and a source, of its own.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(dir: &Path) -> Result<Apt> {
        for folder in ["state/lists/partial", "cache/archives/partial", "deb"] {
            std::fs::create_dir_all(dir.join(folder))?;
        }
        let mut targets = Command::new("apt-get");
        let targets = step::output(targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]))?;
        let mirror = targets.lines().find(|line| !line.contains("security")).context("apt knows no mirror")?;
        let sources = dir.join("sources.list");
        super::write(&sources, &format!("deb [trusted=yes] {mirror} sid main\n"))?;
        let options = [
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", dir.join("state/lists").display()),
            format!("Dir::Cache={}", dir.join("cache").display()),
            "APT::Default-Release=sid".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        Ok(Apt { options: options.into() })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command
    }

    fn get(&self) -> Command {
        self.command("apt-get")
    }
}

/// The version that `apt-cache policy` says would be installed.
fn candidate(policy: &str) -> Option<&str> {
    policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: ")).filter(|version| *version != "(none)")
}

fn unpack(apt: &Apt, dir: &Path, root: &Path) -> Result<()> {
    let debs = dir.join("deb");
    for folder in [&debs, &root.to_owned()] {
        super::remove(folder)?;
        std::fs::create_dir_all(folder)?;
    }
    step::output(apt.get().args(["download", "-q"]).args(PACKAGES).current_dir(&debs))?;
    for deb in std::fs::read_dir(&debs)? {
        step::output(Command::new("dpkg-deb").arg("--extract").arg(deb?.path()).arg(root))?;
    }
    Ok(())
}

/// What is compiled with its headers, for its libllama.
struct NewestCompiler<'a> {
    llama: &'a Llama,
    root: &'a Path,
    say: &'a dyn Fn(&str),
}

impl NewestCompiler<'_> {
    fn recorder(&self, side: &str) -> Result<PathBuf> {
        let options = [format!("-DSIDE=\"{side}\""), "-shared".to_owned(), "-fPIC".to_owned()];
        self.program(&format!("recorder-{side}.so"), "recorder.c", &options)
    }

    fn program(&self, name: &str, source: &str, options: &[String]) -> Result<PathBuf> {
        let libraries = self.root.join(LIBRARIES).into_os_string();
        let include = self.root.join("usr/include").into_os_string();
        let mut all: Vec<&OsStr> = ["-I".as_ref(), include.as_os_str(), "-L".as_ref(), libraries.as_os_str()].into();
        // Its libraries ask for a newer C library than this machine may have; the program runs with theirs.
        all.extend(["-Xlinker", "--allow-shlib-undefined"].map(OsStr::new));
        all.extend(options.iter().map(OsStr::new));
        self.llama.work.compile(name, &self.llama.tests, &[source], &self.llama.repo, &all, self.say)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_would_be_installed_is_found() {
        let policy = "llama.cpp-tools:\n  Installed: (none)\n  Candidate: 1:0.7.0+dfsg-2\n  Version table:\n";
        assert_eq!(candidate(policy), Some("1:0.7.0+dfsg-2"));
        assert_eq!(candidate("llama.cpp-tools:\n  Candidate: (none)\n"), None);
    }
}
