//! The wall clock of processes, which is set while they run: `native/clock.c` is loaded into them and adds what a file says.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::root;

pub struct Clock {
    path: PathBuf,
    file: File,
}

/// The library that is loaded into processes, built once.
fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = root().join("target/test-consumers");
        std::fs::create_dir_all(&folder).expect("the target folder can be written to");
        let (path, fresh) = (folder.join("clock.so"), folder.join(format!("clock.{}", std::process::id())));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
        compiler.arg(root().join("tests/blackbox/native/clock.c")).arg("-ldl").arg("-o").arg(&fresh);
        let built = compiler.output().expect("cc runs: install gcc");
        assert!(built.status.success(), "clock.c: {}", String::from_utf8_lossy(&built.stderr));
        std::fs::rename(&fresh, &path).expect("the target folder can be written to");
        path
    });
    &LIBRARY
}

impl Clock {
    /// A clock that is right.
    pub fn create(path: &Path) -> Self {
        std::fs::write(path, 0_i64.to_ne_bytes()).expect("a temporary directory can be written to");
        let file = File::options().write(true).open(path).expect("it was just made");
        Clock { path: path.to_owned(), file }
    }

    /// The environment of a process that goes by it.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", library().to_owned()), ("TESTS_CLOCK", self.path.clone())]
    }

    /// What runs a program that goes by it.
    pub fn words(&self) -> Vec<String> {
        let named = self.environment().map(|(name, value)| format!("{name}={}", value.display()));
        ["env".to_owned()].into_iter().chain(named).collect()
    }

    /// Be wrong by so many milliseconds from now on.
    pub fn set(&self, ms: i64) {
        self.file.write_all_at(&(ms * 1_000_000).to_ne_bytes(), 0).expect("it can be written to");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_goes_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::create(&folder.path().join("clock"));
        let time = |environment: &[(&str, PathBuf)]| -> f64 {
            let mut date = Command::new("date");
            let output = date.arg("+%s.%N").envs(environment.iter().cloned()).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        for ms in [0, 3_600_250, -86_400_900] {
            clock.set(ms);
            let off = time(&clock.environment()) - time(&[]);
            assert!((off - ms as f64 / 1e3).abs() < 20.0, "{ms}: {off}");
        }
    }
}
