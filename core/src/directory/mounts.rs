//! Which file systems hold files, and which are the kernel's own: in those a file is a way to read or change the process
//! and the machine (`/proc/self/mem`, `/sys`, control groups), so no directory on one is granted, and no path of a granted
//! directory leads into one that is mounted below it.

use std::path::Path;

use kv_platform::paths;
use rustix::fs;

/// Why a directory is not granted; none where it may be, or is not there.
pub fn why_refused(path: &Path) -> Option<String> {
    let flags = paths::LOOK | fs::OFlags::DIRECTORY | fs::OFlags::CLOEXEC;
    let directory = fs::open(path, flags, fs::Mode::empty()).ok()?;
    Some(explain(path, paths::kernel_file_system(directory).ok()??))
}

pub(super) fn explain(path: &Path, kind: &str) -> String {
    let path = path.display();
    format!("{path} is on a file system of the kernel ({kind}), which holds no files: choose another directory")
}
