//! `openat2`, and the file systems of the kernel by their types.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::paths::{check_file_system, mode};
use crate::portable;

pub const LOOK: OFlags = OFlags::PATH;
pub const DESCRIPTORS: &str = "/proc/self/fd";

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

pub fn open_below(root: BorrowedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // A mere name cannot leave the directory, and to have the kernel watch that costs a tenth of an open.
    let is_name = !path.contains('/') && path != "..";
    let below = if is_name { ResolveFlags::NO_SYMLINKS } else { RESOLVE };
    // EAGAIN: a rename elsewhere made the kernel unsure; it asks to be asked again.
    for _ in 0..16 {
        match fs::openat2(root, path, flags, mode(flags), below | ResolveFlags::NO_XDEV) {
            Err(Errno::AGAIN) => {}
            // Kernels before 5.6, and sandboxes that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return portable::paths::open_below(root, path, flags),
            Err(Errno::XDEV) => match open_across(root, path, flags) {
                Err(Errno::AGAIN) => {}
                opened => return opened,
            },
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

pub fn open_cached(root: BorrowedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // What leads elsewhere is asked again, and then refused or waited for.
    let is_name = !path.contains('/') && path != "..";
    let below = if is_name { ResolveFlags::NO_SYMLINKS } else { RESOLVE };
    match fs::openat2(root, path, flags, mode(flags), below | ResolveFlags::NO_XDEV | ResolveFlags::CACHED) {
        Err(Errno::XDEV) => Err(Errno::AGAIN),
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => open_below(root, path, flags),
        opened => opened,
    }
}

/// The same for a path that leads to another mount, which may be one of files, or one of the kernel.
fn open_across(root: BorrowedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // Without NO_XDEV only a path that would leave the directory is answered by XDEV.
    let open = |path: &str, flags: OFlags| match fs::openat2(root, path, flags, mode(flags), RESOLVE) {
        Err(Errno::XDEV) => Err(Errno::LOOP),
        opened => opened,
    };
    // Looked at before it is opened, because an open may already change something, and again after it, because what lies
    // at the path may have been renamed in between.
    let look = LOOK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match open(path, look) {
        Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {
            let (upper, name) = path.rsplit_once('/').ok_or(Errno::NOENT)?;
            let upper = open(upper, look | OFlags::DIRECTORY)?;
            check_file_system(&upper)?;
            fs::openat2(&upper, name, flags, mode(flags), RESOLVE | ResolveFlags::NO_XDEV)
        }
        there => {
            check_file_system(there?)?;
            let opened = open(path, flags)?;
            check_file_system(&opened)?;
            Ok(opened)
        }
    }
}

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

pub fn kernel_file_system(file: BorrowedFd) -> Result<Option<&'static str>, Errno> {
    let kind = fs::fstatfs(file)?.f_type as u32;
    if let Some((_, name)) = OF_THE_KERNEL.iter().find(|(magic, _)| *magic == kind) {
        return Ok(Some(name));
    }
    // devtmpfs says that it is a tmpfs, and in a container /dev is one: it is told by its device number.
    portable::paths::lies_on(file, &["/dev"])
}
