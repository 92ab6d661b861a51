//! What processes take of memory and descriptors over a run, and whether that has grown: the first part of the run says what they may take;
//! and the files of stores.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a process took at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Seconds since the begin of the run.
    pub at: f64,
    pub kib: u64,
    pub files: u64,
}

/// Those of one process.
pub struct Series {
    pub name: String,
    samples: Vec<Sample>,
}

/// What a process takes once it is warm, as parts of the run: before it caches fill, and stores reach their bounds.
const WARM: std::ops::Range<f64> = 0.2..0.4;
/// The part of the run that is held against it.
const LAST: f64 = 0.75;
/// How much more a process may take then: allocators are not exact, and keep what threads have freed.
const MORE_KIB: u64 = 64 << 10;
const MORE_FILES: u64 = 32;

/// What came of one process: the most that it took when it was warm, what it may take for that, and the least that it took at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flat {
    pub warm: u64,
    pub may: u64,
    pub last: u64,
}

impl Flat {
    fn of(warm: u64, more: u64, last: u64) -> Self {
        Flat { warm, may: warm + more.max(warm / 4), last }
    }

    pub fn holds(&self) -> bool {
        self.last <= self.may
    }
}

impl Series {
    pub fn new(name: String) -> Self {
        Series { name, samples: Vec::new() }
    }

    /// Look at a process now. What has ended is not noted.
    pub fn look(&mut self, pid: u32, at: f64) {
        if let Some(kib) = resident(pid) {
            self.add(Sample { at, kib, files: open_files(pid) });
        }
    }

    fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// Memory in KiB and descriptors of a run of so many seconds. None: it was not seen in both parts.
    pub fn flat(&self, seconds: f64) -> Option<[Flat; 2]> {
        let warm = || self.samples.iter().filter(|sample| WARM.contains(&(sample.at / seconds)));
        let last = || self.samples.iter().filter(|sample| sample.at / seconds >= LAST);
        Some([
            Flat::of(warm().map(|sample| sample.kib).max()?, MORE_KIB, last().map(|sample| sample.kib).min()?),
            Flat::of(warm().map(|sample| sample.files).max()?, MORE_FILES, last().map(|sample| sample.files).min()?),
        ])
    }
}

/// What a process takes of memory now, in KiB.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// What a process has open.
fn open_files(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64)
}

/// A file that was met in a folder.
struct MetFile {
    path: PathBuf,
    inode: u64,
    bytes: u64,
}

/// Bytes of the chunks and manifests of a store in a folder, and of its segments. A look takes time, in which files go and others come where
/// it has not been yet: where it found more than `bound`, only those count that are still there after it. They were there together.
pub fn bytes_of_files(folder: &Path, bound: u64) -> u64 {
    let met = meet(folder);
    match met.iter().map(|file| file.bytes).sum() {
        bytes if bytes > bound => still_there(&met),
        bytes => bytes,
    }
}

fn meet(path: &Path) -> Vec<MetFile> {
    let mut met = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() && !folder.ends_with(".kv-tmp") => folders.push(entry.path()),
                Ok(meta) if meta.is_file() && entry.file_name() != ".kv-usage" => {
                    met.push(MetFile { path: entry.path(), inode: meta.ino(), bytes: meta.len() });
                }
                _ => {}
            }
        }
    }
    met
}

fn still_there(met: &[MetFile]) -> u64 {
    let is_there = |file: &&MetFile| file.path.symlink_metadata().is_ok_and(|meta| meta.ino() == file.inode);
    met.iter().filter(is_there).map(|file| file.bytes).sum()
}

/// What a log may have after so many seconds: what the start and each server that goes and comes may say, and so much in an hour.
pub fn log_budget(processes: u64, seconds: f64, bytes_per_hour: u64) -> u64 {
    /// Of one process, at its start.
    const START: u64 = 4 << 10;
    processes * (START + (bytes_per_hour as f64 * seconds / 3600.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(kib: impl Fn(f64) -> u64, files: impl Fn(f64) -> u64) -> [Flat; 2] {
        let mut series = Series::new("one".to_owned());
        for tenth in 0..1000 {
            let at = f64::from(tenth) / 10.0;
            series.add(Sample { at, kib: kib(at), files: files(at) });
        }
        series.flat(100.0).unwrap()
    }

    #[test]
    fn what_fills_at_first_and_what_swings_is_flat() {
        let flat = series(|at| 30_000 + (at.min(35.0) * 1000.0) as u64, |at| 20 + at as u64 % 30);
        assert!(flat.iter().all(Flat::holds), "{flat:?}");
        assert_eq!(flat[0], Flat { warm: 65_000, may: 65_000 + 65_536, last: 65_000 });
    }

    #[test]
    fn what_grows_to_the_end_is_seen() {
        let flat = series(|at| 30_000 + (at * 2_000.0) as u64, |_| 20);
        assert!(!flat[0].holds() && flat[1].holds(), "{flat:?}");
        let flat = series(|_| 30_000, |at| 20 + at as u64);
        assert!(flat[0].holds() && !flat[1].holds(), "{flat:?}");
    }

    #[test]
    fn a_process_that_was_not_seen_to_the_end_says_nothing() {
        let mut series = Series::new("one".to_owned());
        series.add(Sample { at: 30.0, kib: 1, files: 1 });
        assert_eq!(series.flat(100.0), None);
        series.look(std::process::id(), 95.0);
        let own = series.flat(100.0).unwrap();
        assert!(own[0].last > 100 && own[1].last >= 3, "{own:?}");
    }

    #[test]
    fn the_budget_of_a_log_grows_with_time_and_processes() {
        assert_eq!(log_budget(2, 0.0, 1000), 2 * (4 << 10));
        assert_eq!(log_budget(1, 7200.0, 1000), (4 << 10) + 2000);
    }

    #[test]
    fn files_that_came_and_went_during_a_look_do_not_count_together() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        std::fs::create_dir(file("chunks")).unwrap();
        for name in ["chunks/stays", "chunks/goes", "chunks/replaced", ".kv-usage"] {
            std::fs::write(file(name), [0; 1000]).unwrap();
        }
        assert_eq!(bytes_of_files(folder.path(), 2000), 3000, "what is over the bound and stays counts");
        let met = meet(folder.path());
        std::fs::remove_file(file("chunks/goes")).unwrap();
        std::fs::write(file("new"), [0; 1000]).unwrap();
        std::fs::rename(file("new"), file("chunks/replaced")).unwrap();
        assert_eq!(still_there(&met), 1000);
    }
}
