//! Which file systems hold files, and which are the kernel's own: in those a file is a way to read or change the process
//! and the machine (`/proc/self/mem`, `/sys`, control groups), so no directory on one is granted, and no path of a granted
//! directory leads into one that is mounted below it.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs;
use rustix::io::Errno;

/// File systems of the kernel, by the magic number that `statfs` answers (linux/magic.h, and the sources of those that are
/// not there).
const OF_THE_KERNEL: &[(u32, &str)] = &[
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0x6265_6570, "configfs"),
    (0xcafe_4a11, "bpf"),
    (0xde5e_81e4, "efivarfs"),
    (0x1cd1, "devpts"),
    (0x6e73_6673, "nsfs"),
    (0x5049_4446, "pidfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x4341_5d53, "smackfs"),
    (0x5a3c_69f0, "apparmorfs"),
    (0x6165_676c, "pstore"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6573_5543, "fusectl"),
    (0x1980_0202, "mqueue"),
    (0x6759_6969, "rpc_pipefs"),
    (0x6e66_7364, "nfsd"),
    (0x0765_5821, "resctrl"),
    (0x6c6f_6f70, "binder"),
    (0x9fa1, "openpromfs"),
    (0x9fa2, "usbfs"),
    (0x6275_7573, "functionfs"),
    (0xabba_1974, "xenfs"),
    (0x5345_434d, "secretmem"),
    (0x474d_454d, "guest_memfd"),
    (0x0904_1934, "anonymous inodes"),
    (0x534f_434b, "sockets"),
    (0x5049_5045, "pipes"),
    (0x6264_6576, "block devices"),
    (0x444d_4142, "dma_buf"),
];

/// What kind of file system of the kernel an open file or directory lies on; none where it is one for files.
pub(super) fn kernel_file_system(file: impl AsFd) -> Result<Option<&'static str>, Errno> {
    let kind = fs::fstatfs(&file)?.f_type as u32;
    if let Some((_, name)) = OF_THE_KERNEL.iter().find(|(magic, _)| *magic == kind) {
        return Ok(Some(name));
    }
    // devtmpfs says that it is a tmpfs, and in a container /dev is one: it is told by its device number, where it is a mount
    // of its own. Another tmpfs below it, /dev/shm, has another number.
    let device = |path| fs::stat(path).ok().map(|stat| stat.st_dev);
    let own = device("/dev").filter(|dev| Some(*dev) != device("/"));
    Ok(own.is_some_and(|dev| fs::fstat(&file).is_ok_and(|stat| stat.st_dev == dev)).then_some("/dev"))
}

/// `XDEV` for what lies on a file system of the kernel.
pub(super) fn check(file: impl AsFd) -> Result<(), Errno> {
    match kernel_file_system(file)? {
        Some(_) => Err(Errno::XDEV),
        None => Ok(()),
    }
}

/// Why a directory is not granted; none where it may be, or is not there.
pub fn why_refused(path: &Path) -> Option<String> {
    let flags = fs::OFlags::PATH | fs::OFlags::DIRECTORY | fs::OFlags::CLOEXEC;
    let directory = fs::open(path, flags, fs::Mode::empty()).ok()?;
    Some(explain(path, kernel_file_system(directory).ok()??))
}

pub(super) fn explain(path: &Path, kind: &str) -> String {
    let path = path.display();
    format!("{path} is on a file system of the kernel ({kind}), which holds no files: choose another directory")
}
