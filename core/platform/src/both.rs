//! Both ways, side by side: they answer alike, so that whoever runs one relies on what the other was tested for.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::{linux, portable};

fn open(path: &std::path::Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// What lies at a path below `root`, by each way.
fn opened(root: &OwnedFd, path: &str, flags: OFlags) -> [Result<u64, Errno>; 2] {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let number = |opened: OwnedFd| File::from(opened).metadata().unwrap().ino();
    [linux::paths::open_below, portable::paths::open_below].map(|way| way(root.as_fd(), path, flags).map(number))
}

#[test]
fn a_path_leads_to_the_same_file_or_to_none() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |path: &str| scratch.path().join(path);
    std::fs::create_dir_all(at("root/a/b")).unwrap();
    std::fs::write(at("root/a/b/f"), "f").unwrap();
    std::fs::write(at("secret"), "secret").unwrap();
    symlink("a", at("root/link")).unwrap();
    symlink(at("secret"), at("root/out")).unwrap();
    symlink(scratch.path(), at("root/upper")).unwrap();
    symlink("nowhere", at("root/dangling")).unwrap();
    let root = open(&at("root"));
    let file = Ok(std::fs::metadata(at("root/a/b/f")).unwrap().ino());
    let folder = Ok(std::fs::metadata(at("root/a/b")).unwrap().ino());
    let own = Ok(std::fs::metadata(at("root")).unwrap().ino());
    for (path, expected) in [
        ("a/b/f", file),
        ("./a/./b//f", file),
        ("a/b/../b/f", file),
        ("a/../a/b/f", file),
        ("a/b", folder),
        ("a/b/", folder),
        ("a/b/.", folder),
        (".", own),
        ("a/..", own),
        ("a/b/../..", own),
        ("a/f", Err(Errno::NOENT)),
        ("a/b/f/g", Err(Errno::NOTDIR)),
        ("a/b/f/", Err(Errno::NOTDIR)),
        ("link", Err(Errno::LOOP)),
        ("link/b/f", Err(Errno::LOOP)),
        ("link/.", Err(Errno::LOOP)),
        ("a/../link/b/f", Err(Errno::LOOP)),
        ("out", Err(Errno::LOOP)),
        ("upper/secret", Err(Errno::LOOP)),
        ("dangling", Err(Errno::LOOP)),
    ] {
        assert_eq!(opened(&root, path, OFlags::RDONLY | OFlags::NONBLOCK), [expected; 2], "{path}");
    }
    for path in ["..", "../secret", "a/../../secret", "a/b/../../../secret"] {
        let refused = opened(&root, path, OFlags::RDONLY);
        assert!(refused.iter().all(Result::is_err), "{path}: {refused:?}");
    }
    // Nothing is made through a link either.
    for path in ["dangling", "upper/made", "link/made"] {
        let refused = opened(&root, path, OFlags::WRONLY | OFlags::CREATE);
        assert_eq!(refused, [Err(Errno::LOOP); 2], "{path}");
    }
    assert!(!at("made").exists() && !at("root/a/made").exists() && !at("root/nowhere").exists());
    let looked_at = opened(&root, "upper", linux::paths::LOOK | OFlags::DIRECTORY);
    assert!(looked_at.iter().all(Result::is_err), "{looked_at:?}");
}

#[test]
fn no_path_leads_into_a_file_system_of_the_kernel() {
    let root = open("/".as_ref());
    let own = format!("proc/{}/environ", std::process::id());
    for path in [&own, "proc/version", "sys/kernel/notes", "dev/null", "etc/../proc/version"] {
        let refused = opened(&root, path, OFlags::RDONLY | OFlags::NONBLOCK);
        assert_eq!(refused, [Err(Errno::XDEV); 2], "{path}");
    }
    // Other mounts are crossed: on this machine at least that of /dev/shm.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(shared.path().join("f"), "shared").unwrap();
    let below = format!("{}/f", shared.path().display());
    for path in [below.trim_start_matches('/'), "dev/shm", "dev/shm/."] {
        let found = opened(&root, path, OFlags::RDONLY);
        assert!(found.iter().all(Result::is_ok), "{path}: {found:?}");
    }
    let made = opened(&root, "dev/kv-platform-made", OFlags::WRONLY | OFlags::CREATE);
    assert!(made == [Err(Errno::XDEV); 2] && !std::path::Path::new("/dev/kv-platform-made").exists(), "{made:?}");
}

#[test]
fn a_new_name_replaces_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = open(scratch.path());
    for rename_new in [linux::files::rename_new, portable::files::rename_new] {
        std::fs::write(scratch.path().join("from"), "new").unwrap();
        std::fs::write(scratch.path().join("taken"), "old").unwrap();
        let renamed = |to| rename_new(folder.as_fd(), "from", folder.as_fd(), to);
        assert_eq!(renamed("taken"), Err(Errno::EXIST));
        assert_eq!(std::fs::read(scratch.path().join("taken")).unwrap(), b"old");
        assert_eq!(renamed("to"), Ok(()));
        assert!(!scratch.path().join("from").exists());
        assert_eq!(std::fs::read(scratch.path().join("to")).unwrap(), b"new");
        std::fs::remove_file(scratch.path().join("to")).unwrap();
        assert_eq!(renamed("to"), Err(Errno::NOENT));
    }
}

#[test]
fn room_for_a_file_is_there_and_reads_as_zeros() {
    for allocate in [linux::files::allocate, portable::files::allocate] {
        let file = tempfile::tempfile().unwrap();
        allocate(file.as_fd(), 200_001).unwrap();
        let meta = file.metadata().unwrap();
        assert!(meta.len() == 200_001 && meta.blocks() * 512 >= 200_001);
        let mut bytes = vec![1; 200_001];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn bytes_are_synced_and_a_folder_too() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = open(scratch.path());
    let file = File::create(scratch.path().join("f")).unwrap();
    file.write_all_at(b"bytes", 0).unwrap();
    use {linux::files as one, portable::files as other};
    for way in [one::sync_data, other::sync_data, one::sync, other::sync, one::write_out, other::write_out] {
        assert_eq!(way(file.as_fd()), Ok(()));
    }
    assert_eq!([one::sync(folder.as_fd()), other::sync(folder.as_fd())], [Ok(()); 2]);
}

#[test]
fn a_file_without_a_name_is_read_where_it_was_written_and_mapped() {
    for file in [linux::memory::file, portable::memory::file] {
        let file = file(c"kv-test").unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all_at(b"bytes", 0).unwrap();
        let mut read = [0; 5];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"bytes");
        for folder in [linux::paths::DESCRIPTORS, portable::paths::DESCRIPTORS] {
            use std::os::fd::AsRawFd;
            assert_eq!(std::fs::read(format!("{folder}/{}", file.as_raw_fd())).unwrap(), b"bytes");
        }
    }
    let sealed = linux::memory::file(c"kv-test").unwrap();
    linux::memory::seal(&sealed).unwrap();
    assert!(sealed.write_all_at(b"x", 0).is_err());
}

/// Whether a descriptor is readable now.
fn is_readable(descriptor: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn an_event_is_readable_from_set_to_clear_however_often_it_was_set() {
    let one = linux::event::Event::new().unwrap();
    let other = portable::event::Event::new().unwrap();
    let check = |descriptor: std::os::fd::BorrowedFd, set: &dyn Fn(), clear: &dyn Fn()| {
        for times in [1, 3, 200_000] {
            assert!(!is_readable(descriptor));
            clear();
            (0..times).for_each(|_| set());
            assert!(is_readable(descriptor), "{times}");
            // As a consumer does that knows it as an eventfd.
            assert_eq!(rustix::io::read(descriptor, &mut [0; 8]), Ok(8));
            clear();
            assert!(!is_readable(descriptor), "{times}");
        }
        let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(rustix::io::read(descriptor, &mut [0; 8]), Err(Errno::AGAIN));
    };
    check(one.waited_for(), &|| one.set(), &|| one.clear());
    check(other.waited_for(), &|| other.set(), &|| other.clear());
}

#[test]
fn a_wait_ends_with_its_event_or_its_time_and_not_before() {
    use std::os::fd::AsRawFd;
    let event = portable::event::Event::new().unwrap();
    let entry = || libc::pollfd { fd: event.waited_for().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    for wait in [linux::system::wait, portable::system::wait] {
        let (begun, left) = (Instant::now(), Duration::from_micros(1500));
        wait(&mut [entry()], left);
        assert!(begun.elapsed() >= left);
        event.set();
        let begun = Instant::now();
        let mut ready = [entry()];
        wait(&mut ready, Duration::from_secs(60));
        assert!(ready[0].revents == libc::POLLIN && begun.elapsed() < Duration::from_secs(30));
        event.clear();
    }
}

#[test]
fn sending_to_nobody_is_an_error_and_no_signal() {
    // What a process that is no Rust program has.
    // SAFETY: nothing in this process counts on another disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    for send in [linux::sockets::send, portable::sockets::send] {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(send(here.as_fd(), &[IoSlice::new(b"a"), IoSlice::new(b"bc")]).unwrap(), 3);
        drop(there);
        let refused = send(here.as_fd(), &[IoSlice::new(b"x")]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPIPE));
    }
}

#[test]
fn only_a_pending_signal_is_taken() {
    for take in [linux::signals::take_pending, portable::signals::take_pending] {
        std::thread::spawn(move || {
            // SAFETY: the set is filled before it is used, and the signal is blocked in this thread, which ends.
            unsafe {
                let mut only = std::mem::zeroed();
                libc::sigemptyset(&mut only);
                libc::sigaddset(&mut only, libc::SIGPIPE);
                libc::pthread_sigmask(libc::SIG_BLOCK, &only, std::ptr::null_mut());
                take(&only);
                libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE);
                take(&only);
                let mut pending = std::mem::zeroed();
                libc::sigpending(&mut pending);
                assert_eq!(libc::sigismember(&pending, libc::SIGPIPE), 0);
            }
        })
        .join()
        .unwrap();
    }
}

#[cfg(feature = "roots")]
#[test]
fn the_same_authorities_are_trusted() {
    let set = |roots: Vec<rustls_pki_types::CertificateDer<'static>>| {
        roots.into_iter().map(|certificate| certificate.to_vec()).collect::<std::collections::BTreeSet<_>>()
    };
    let (one, other) = (set(linux::roots::roots()), set(portable::roots::roots()));
    // The folders of a system may have more than its file.
    assert!(one.is_superset(&other) && other.is_empty() == one.is_empty(), "{} and {}", one.len(), other.len());
}
