//! The least glibc that what is packed needs: the newest version among the symbols that it takes from it.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::place::Place;
use crate::step;

/// What docs and packages promise. Built on a system with a newer one, a library may come to need more, and packing it fails.
pub const LEAST: Version = Version(2, 34);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What all libraries and programs need together, which is no more than is promised.
pub fn check(place: &Place) -> Result<Version> {
    let mut least = Version(2, 0);
    for folder in ["lib", "bin", "libexec"] {
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(place.dist.join(folder))? {
            files.push(entry?.path());
        }
        for file in files.iter().filter(|file| file.is_file()) {
            let text = step::output(Command::new("readelf").args(["--version-info", "--wide"]).arg(file))?;
            let needs = newest(&text);
            ensure!(needs <= LEAST, "{} needs glibc {needs}, and packages promise {LEAST}", file.display());
            least = least.max(needs);
        }
    }
    Ok(least)
}

/// The newest version of glibc that `readelf --version-info` names.
fn newest(text: &str) -> Version {
    let names = text.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')'));
    let versions = names.filter_map(|name| {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
        Some(Version(numbers.next()??, numbers.next()??))
    });
    versions.max().unwrap_or(Version(2, 0))
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
}
