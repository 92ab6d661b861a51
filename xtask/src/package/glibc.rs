//! The least glibc that what is packed needs: the newest version among the symbols that it takes from it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::step;

/// What packages promise: that of RHEL 8, and of `manylinux_2_28`. What is packed is linked for it ([`super::older_glibc`]).
pub const LEAST: Version = Version(2, 28);
/// What the tests' own packages may need, which are linked as usual so that nothing is compiled twice.
const AS_BUILT: Version = Version(2, 34);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// `GLIBC_2.3.4` is 2.3: no third number was ever the newest of a program.
    pub fn parse(name: &str) -> Option<Version> {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
        Some(Version(numbers.next()??, numbers.next()??))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What may be promised of all libraries and programs that are laid out in `dist`.
pub fn promised(dist: &Path, linked_for_older: bool) -> Result<Version> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in ["lib", "bin", "libexec"] {
        for entry in std::fs::read_dir(dist.join(folder))? {
            files.push(entry?.path());
        }
    }
    files.retain(|file| file.is_file());
    of_all(&files, linked_for_older)
}

/// What may be promised of some files, which `linked_for_older` says were linked for [`LEAST`].
pub fn of_all(files: &[PathBuf], linked_for_older: bool) -> Result<Version> {
    let limit = if linked_for_older { LEAST } else { AS_BUILT };
    let mut promised = LEAST;
    for file in files {
        let needs = of(file)?;
        ensure!(needs <= limit, "{} needs glibc {needs}, and packages promise {limit}", file.display());
        promised = promised.max(needs);
    }
    // What needs more than the least is never promised for exactly what it needs today.
    Ok(if promised > LEAST { AS_BUILT } else { LEAST })
}

/// What a file needs.
pub fn of(file: &Path) -> Result<Version> {
    let text = step::output(Command::new("readelf").args(["--version-info", "--wide"]).arg(file))?;
    Ok(newest(&text))
}

/// The newest version of glibc that `readelf --version-info` names.
fn newest(text: &str) -> Version {
    let names = text.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')'));
    names.filter_map(Version::parse).max().unwrap_or(Version(2, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_found() {
        let text = "000: 0 (*local*) 4 (GLIBC_2.2.5)\n 0x0020:   Name: GLIBC_2.34  Flags: none  Version: 7\n GLIBC_PRIVATE GCC_3.0";
        assert_eq!(newest(text), Version(2, 34));
        assert_eq!(newest(""), Version(2, 0));
        assert!(Version(2, 4) < Version(2, 34));
    }

    #[test]
    fn a_file_that_needs_more_than_was_linked_for_is_refused() {
        // This test program is linked as usual.
        let program = std::env::current_exe().unwrap();
        let needs = of(&program).unwrap();
        if needs <= LEAST {
            eprintln!("skipped: this system's own glibc is no newer than {LEAST}");
            return;
        }
        assert_eq!(of_all(std::slice::from_ref(&program), false).unwrap(), AS_BUILT);
        let refused = of_all(&[program], true).unwrap_err().to_string();
        assert!(refused.contains(&format!("needs glibc {needs}, and packages promise {LEAST}")), "{refused}");
    }
}
