//! The invariants, each against a real directory.

use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, SystemTime};

use super::*;
use crate::payload::{Destination, Filling};

fn path(text: &str) -> RelativePath {
    RelativePath::parse(text.into()).unwrap()
}

fn open() -> (tempfile::TempDir, Arc<Directory>) {
    let scratch = tempfile::tempdir().unwrap();
    let directory = Directory::open(&scratch.path().join("store"), &Arc::default()).unwrap();
    (scratch, Arc::new(directory))
}

fn read(directory: &Arc<Directory>, at: &str) -> Result<Option<Vec<u8>>, Error> {
    read_range(directory, at, 0, None)
}

fn read_range(directory: &Arc<Directory>, at: &str, offset: u64, len: Option<u64>) -> Result<Option<Vec<u8>>, Error> {
    let wanted = Wanted { path: path(at), offset, len };
    let found = directory.read(wanted, None, &mut |len| Ok(Destination::Buffer(Filling::new(len)?)));
    assert_eq!(found.read?, found.destination.is_some());
    found
        .destination
        .map(|destination| match destination {
            Destination::Buffer(filling) => Ok(filling.finish()?.to_vec()),
            Destination::Item(_) => panic!("there is no item"),
        })
        .transpose()
}

#[test]
fn a_missing_last_component_is_made_private_and_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    let made = scratch.path().join("made");
    Directory::open(&made, &Arc::default()).unwrap();
    assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700);
    let error = Directory::open(&scratch.path().join("no/such"), &Arc::default()).unwrap_err();
    assert!(error.to_string().contains("no/such") && error.to_string().contains("last part"), "{error}");
}

#[test]
fn a_file_is_written_whole_and_read_back() {
    let (scratch, directory) = open();
    let at = path("chunks/a/ab");
    assert_eq!(directory.write(&at, &[b"he", b"", b"llo"], false, true, None).unwrap(), Written::Written);
    assert_eq!(read(&directory, "chunks/a/ab").unwrap().unwrap(), b"hello");
    assert_eq!(read_range(&directory, "chunks/a/ab", 1, Some(3)).unwrap().unwrap(), b"ell");
    assert_eq!(directory.size(&at, &mut Looked::default()).unwrap(), Some(5));
    assert_eq!(scratch.path().join("store/chunks/a/ab").metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(scratch.path().join("store/.kv-tmp").read_dir().unwrap().count(), 0);
    directory.sync(&[at], || Ok(())).unwrap();
}

#[test]
fn a_file_of_more_parts_than_one_call_takes() {
    let (_scratch, directory) = open();
    let bytes: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
    let parts: Vec<&[u8]> = bytes.chunks(1).collect();
    directory.write(&path("f"), &parts, false, false, None).unwrap();
    assert_eq!(read(&directory, "f").unwrap().unwrap(), bytes);
}

#[test]
fn a_file_that_exists_is_kept_unless_it_is_to_be_replaced() {
    let (scratch, directory) = open();
    directory.write(&path("f"), &[b"one"], false, false, None).unwrap();
    assert_eq!(directory.write(&path("f"), &[b"two"], false, false, None).unwrap(), Written::Existed);
    assert_eq!(read(&directory, "f").unwrap().unwrap(), b"one");
    assert_eq!(directory.write(&path("f"), &[b"two"], true, false, None).unwrap(), Written::Written);
    assert_eq!(read(&directory, "f").unwrap().unwrap(), b"two");
    assert_eq!(scratch.path().join("store/.kv-tmp").read_dir().unwrap().count(), 0);
}

#[test]
fn links_are_never_followed() {
    let (scratch, directory) = open();
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    symlink(&outside, scratch.path().join("store/out")).unwrap();
    symlink(outside.join("secret"), scratch.path().join("store/f")).unwrap();

    assert_eq!(read(&directory, "out/secret").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(read(&directory, "f").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(directory.size(&path("f"), &mut Looked::default()).unwrap(), None);
    assert!(directory.write(&path("f"), &[b"mine"], false, false, None).is_err());
    assert!(directory.write(&path("out/new"), &[b"x"], false, false, None).is_err());
    assert!(!outside.join("new").exists());
    assert!(directory.remove(&path("out/secret"), false, None).is_err());
    // Not even where they stay within.
    directory.write(&path("sub/f"), &[b"within"], false, false, None).unwrap();
    symlink("sub", scratch.path().join("store/inner")).unwrap();
    for denied in [
        read(&directory, "inner/f").map(drop),
        directory.write(&path("inner/new"), &[b"x"], false, false, None).map(drop),
    ] {
        assert_eq!(denied.unwrap_err().kind(), ErrorKind::Denied);
    }
    // A link under the name of a file is replaced itself; what it leads to stays.
    directory.write(&path("f"), &[b"mine"], true, false, None).unwrap();
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    assert_eq!(read(&directory, "f").unwrap().unwrap(), b"mine");
}

#[test]
fn a_planted_fifo_hangs_nothing() {
    let (scratch, directory) = open();
    let fifo = scratch.path().join("store/fifo");
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    assert_eq!(read(&directory, "fifo").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(directory.size(&path("fifo"), &mut Looked::default()).unwrap(), None);
}

#[test]
fn what_is_too_large_is_refused_before_it_is_read() {
    let (_scratch, directory) = open();
    directory.write(&path("f"), &[&[0; 100]], false, false, None).unwrap();
    let full = &mut |len| Err(Error::new(ErrorKind::Exhausted, format!("no room for {len}")));
    let wanted = Wanted { path: path("f"), offset: 0, len: None };
    assert_eq!(directory.read(wanted, None, full).read.unwrap_err().to_string(), "no room for 100");
    let read = |offset, len| read_range(&directory, "f", offset, len).unwrap_err().kind();
    assert_eq!(read(101, None), ErrorKind::Invalid);
    assert_eq!(read(1, Some(u64::MAX)), ErrorKind::Invalid);
}

#[test]
fn what_is_not_there_is_missing_and_not_an_error() {
    let (_scratch, directory) = open();
    assert_eq!(read(&directory, "a/b").unwrap(), None);
    assert_eq!(directory.size(&path("a/b"), &mut Looked::default()).unwrap(), None);
    assert!(!directory.remove(&path("a/b"), true, None).unwrap());
    assert!(directory.entries("a", None, 10).unwrap().is_empty());
    let error = directory.sync(&[path("a/b")], || Ok(())).unwrap_err();
    assert!(error.to_string().contains("a/b"), "{error}");
}

#[test]
fn removing_takes_files_and_empty_directories() {
    let (_scratch, directory) = open();
    directory.write(&path("d/f"), &[b"x"], false, false, None).unwrap();
    assert_eq!(directory.remove(&path("d"), false, None).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(directory.remove(&path("d/f"), true, None).unwrap());
    assert!(directory.remove(&path("d"), false, None).unwrap());
}

#[test]
fn entries_come_in_pages_in_order_without_the_hosts_own() {
    let (scratch, directory) = open();
    for name in ["b", "a", "d/x", "c"] {
        directory.write(&path(name), &[b"12"], false, false, None).unwrap();
    }
    symlink("a", scratch.path().join("store/link")).unwrap();
    let page = |after, limit| {
        let entries = directory.entries("", after, limit).unwrap();
        entries.into_iter().map(|entry| (entry.name, entry.directory, entry.size)).collect::<Vec<_>>()
    };
    let (a, b, c, d) = ("a".to_owned(), "b".to_owned(), "c".to_owned(), "d".to_owned());
    assert_eq!(page(None, 2), [(a, false, 2), (b, false, 2)]);
    assert_eq!(page(Some("b"), 9), [(c, false, 2), (d, true, 0)]);
    assert!(page(Some("d"), 9).is_empty());
}

#[test]
fn old_temporaries_are_reaped_and_young_ones_kept() {
    let (scratch, directory) = open();
    directory.write(&path("f"), &[b"x"], false, false, None).unwrap();
    let temporaries = scratch.path().join("store/.kv-tmp");
    for (name, age) in [("old", 7200), ("young", 60)] {
        let file = std::fs::File::create(temporaries.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    Directory::open(&scratch.path().join("store"), &Arc::default()).unwrap();
    assert!(!temporaries.join("old").exists());
    assert!(temporaries.join("young").exists());
}

#[test]
fn writing_goes_on_after_somebody_removed_everything() {
    let (scratch, directory) = open();
    directory.write(&path("chunks/a/x"), &[b"x"], false, false, None).unwrap();
    for name in ["chunks", ".kv-tmp"] {
        std::fs::remove_dir_all(scratch.path().join("store").join(name)).unwrap();
    }
    directory.write(&path("chunks/a/y"), &[b"y"], false, true, None).unwrap();
    assert_eq!(read(&directory, "chunks/a/y").unwrap().unwrap(), b"y");
}

#[test]
fn a_directory_that_was_made_anew_is_read() {
    let (scratch, directory) = open();
    directory.write(&path("chunks/a/x"), &[b"x"], false, false, None).unwrap();
    assert_eq!(read(&directory, "chunks/a/x").unwrap().unwrap(), b"x");
    // The one that reads found kept open is no longer there.
    let folder = scratch.path().join("store/chunks/a");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("y"), b"y").unwrap();
    assert_eq!(read(&directory, "chunks/a/y").unwrap().unwrap(), b"y");
}

#[test]
fn a_read_only_directory_is_read_and_never_written() {
    let (scratch, directory) = open();
    let at = path("a/b");
    directory.write(&at, &[b"x"], false, false, None).unwrap();
    let store = scratch.path().join("store");
    std::fs::remove_dir_all(store.join(".kv-tmp")).unwrap();

    let read_only = Arc::new(Directory::open_read_only(&store, &Arc::default()).unwrap());
    assert!(read_only.is_read_only() && !directory.is_read_only());
    assert_eq!(read(&read_only, "a/b").unwrap().unwrap(), b"x");
    assert_eq!(read_only.size(&at, &mut Looked::default()).unwrap(), Some(1));
    assert_eq!(read_only.entries("", None, 10).unwrap().len(), 1);
    let denied = |outcome: Result<(), Error>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Denied);
    for replace in [false, true] {
        denied(read_only.write(&path("new"), &[b"y"], replace, false, None).map(drop));
        denied(read_only.write(&at, &[b"y"], replace, true, None).map(drop));
    }
    denied(read_only.remove(&at, false, None).map(drop));
    denied(read_only.sync(std::slice::from_ref(&at), || Ok(())));
    // Nothing was made on the way either.
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 1);
    assert_eq!(read(&directory, "a/b").unwrap().unwrap(), b"x");
    assert!(Directory::open_read_only(&scratch.path().join("missing"), &Arc::default()).is_err());
    assert!(!scratch.path().join("missing").exists());
}

#[test]
fn no_directory_is_on_a_file_system_of_the_kernel() {
    for at in ["/proc", "/proc/self", "/sys", "/sys/kernel", "/dev", "/dev/pts"] {
        for opened in
            [Directory::open(Path::new(at), &Arc::default()), Directory::open_read_only(Path::new(at), &Arc::default())]
        {
            let refused = opened.expect_err(at);
            assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
            assert!(refused.to_string().contains("a file system of the kernel"), "{refused}");
        }
        assert!(why_refused(Path::new(at)).is_some());
    }
    let made = Path::new("/proc/self/made");
    assert_eq!(Directory::open(made, &Arc::default()).unwrap_err().kind(), ErrorKind::Denied);
    // A tmpfs below /dev is one of files.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    Directory::open(shared.path(), &Arc::default()).unwrap().write(&path("f"), &[b"x"], false, false, None).unwrap();
    assert_eq!(why_refused(shared.path()), None);
}

#[test]
fn no_path_leads_into_a_file_system_of_the_kernel() {
    let root = Arc::new(Directory::open_read_only(Path::new("/"), &Arc::default()).unwrap());
    let own = |name: &str| format!("proc/{}/{name}", std::process::id());
    for at in [&own("environ"), &own("mem"), "proc/version", "sys/kernel/notes", "dev/null"] {
        let refused = read(&root, at).expect_err(at);
        assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("/proc"), "{at}: {refused}");
    }
    for at in ["proc", &own("fd"), "sys", "dev"] {
        assert!(root.entries(at, None, 1).is_err(), "{at}");
    }
    assert!(root.size(&path("proc/version"), &mut Looked::default()).is_err());
    // Other mounts are crossed: on this machine at least that of /dev/shm.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(shared.path().join("f"), "shared").unwrap();
    let below = format!("{}/f", shared.path().display());
    assert_eq!(read(&root, below.trim_start_matches('/')).unwrap().unwrap(), b"shared");
}

#[test]
fn directories_are_synced_no_longer_than_there_is_time() {
    let (_scratch, directory) = open();
    let paths: Vec<RelativePath> = (0..200).map(|n| path(&format!("{n}/f"))).collect();
    for path in &paths {
        directory.write(path, &[b"x"], false, false, None).unwrap();
    }
    let (asked, most) = (std::cell::Cell::new(0), 2);
    let in_time = || {
        asked.set(asked.get() + 1);
        if asked.get() <= most { Ok(()) } else { Err(Error::new(ErrorKind::Unavailable, "late")) }
    };
    assert_eq!(directory.sync_directories(&paths, in_time).unwrap_err().to_string(), "late");
    assert_eq!(asked.get(), most + 1);
    directory.sync_directories(&paths, || Ok(())).unwrap();
}

/// A directory whose files are all read by other threads, as those of a file system that cannot tell what lies in memory.
fn untold(scratch: &tempfile::TempDir, direct: Direct) -> Arc<Directory> {
    let directory = Directory::open(&scratch.path().join("store"), &Arc::default()).unwrap();
    Arc::new(directory.of_store(&Whose::default(), direct).untold())
}

/// Bytes that differ from part to part.
fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 4093) as u8).collect()
}

#[test]
fn a_batch_that_other_threads_read_is_what_was_written() {
    let (scratch, directory) = open();
    let lens = [0, 1, 4096, (1 << 20) + 64, (3 << 20) + 7, 5000];
    for (number, len) in lens.iter().enumerate() {
        directory.write(&path(&format!("a/{number}")), &[&noise(*len)], false, false, None).unwrap();
    }
    std::fs::create_dir(scratch.path().join("store/folder")).unwrap();
    for direct in [Direct::Off, Direct::On, Direct::Auto] {
        let directory = untold(&scratch, direct);
        let name = |number: usize| if number == 6 { "folder".to_owned() } else { format!("a/{number}") };
        let mut wanted: Vec<_> =
            (0..8).map(|number| Ok(Wanted { path: path(&name(number)), offset: 0, len: None })).collect();
        wanted.push(Err(Error::invalid("no path")));
        wanted.push(Ok(Wanted { path: path("a/4"), offset: 70_001, len: Some(2 << 20) }));
        wanted.push(Ok(Wanted { path: path("a/5"), offset: 5001, len: None }));
        let mut asked = vec![0; wanted.len()];
        let found = directory.read_all(wanted, None, &mut |index, len| {
            asked[index] += len;
            Ok(Destination::Buffer(Filling::new(len)?))
        });
        assert_eq!(found.len(), 11);
        let bytes =
            |found: &Found| found.destination.as_ref().map(|all| all.filled().pieces().collect::<Vec<_>>().concat());
        for (number, len) in lens.iter().enumerate() {
            assert!(found[number].read.as_ref().is_ok_and(|found| *found) && asked[number] == *len as u64);
            assert!(bytes(&found[number]) == Some(noise(*len)), "{number}");
        }
        let kind = |found: &Found| found.read.as_ref().map_err(Error::kind).copied();
        assert_eq!((kind(&found[6]), kind(&found[7])), (Err(ErrorKind::Invalid), Ok(false)));
        assert_eq!((kind(&found[8]), kind(&found[10])), (Err(ErrorKind::Invalid), Err(ErrorKind::Invalid)));
        assert!(bytes(&found[9]).is_some_and(|bytes| bytes == noise((3 << 20) + 7)[70_001..][..2 << 20]));
    }
}

#[test]
fn what_is_cold_is_read_by_others_and_what_is_warm_is_not() {
    use std::os::fd::AsRawFd;
    let (scratch, directory) = open();
    if directory.memory != Memory::Some {
        eprintln!("skipped: {} is no file system of a disk", scratch.path().display());
        return;
    }
    let all = noise((2 << 20) + 9);
    directory.write(&path("f"), &[&all], false, true, None).unwrap();
    let _ = crate::payload::counts::take();
    assert!(read(&directory, "f").unwrap().unwrap() == all);
    if directory.memory() != Memory::Some {
        eprintln!("skipped: it cannot be told here what lies in memory, as under qemu");
        return;
    }
    assert_eq!(crate::payload::counts::take().copied, 0, "what lies in memory goes straight to its place");
    let file = std::fs::File::open(scratch.path().join("store/f")).unwrap();
    // SAFETY: an open descriptor; 0 and 0 are the whole file.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    assert!(read(&directory, "f").unwrap().unwrap() == all);
    let copied = crate::payload::counts::take().copied;
    assert!(copied > all.len() / 2, "{copied} bytes came from others");
}

#[test]
fn a_batch_of_short_files_that_are_cold_is_what_was_written() {
    use std::os::fd::AsRawFd;
    let (scratch, directory) = open();
    if directory.memory != Memory::Some {
        eprintln!("skipped: {} is no file system of a disk", scratch.path().display());
        return;
    }
    // More than a call has under way, of which some are in part in memory, and some are read in parts.
    let len = |n: usize| if n % 50 == 49 { 300_000 } else { 1 + n * 997 % 120_000 };
    for n in 0..200 {
        directory.write(&path(&n.to_string()), &[&noise(len(n))], false, n == 199, None).unwrap();
    }
    for turn in 0..3 {
        for n in 0..200 {
            let file = std::fs::File::open(scratch.path().join(format!("store/{n}"))).unwrap();
            file.sync_data().unwrap();
            let from = if n % 3 == turn { 8192 } else { 0 };
            // SAFETY: an open descriptor; a length of 0 is all to the end.
            assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), from, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        }
        let wanted = (0..200).map(|n| Ok(Wanted { path: path(&n.to_string()), offset: 0, len: None }));
        let found = directory.read_all(wanted, None, &mut |_, len| Ok(Destination::Buffer(Filling::new(len)?)));
        assert_eq!(found.len(), 200);
        for (n, Found { read, destination }) in found.into_iter().enumerate() {
            let bytes = destination.unwrap().filled().pieces().collect::<Vec<_>>().concat();
            assert!(read.unwrap() && bytes == noise(len(n)), "{n}");
        }
    }
}

#[test]
fn a_batch_ends_before_the_item_that_there_is_no_room_for() {
    let (scratch, directory) = open();
    for n in 0..4 {
        directory.write(&path(&n.to_string()), &[b"12345"], false, false, None).unwrap();
    }
    for directory in [directory, untold(&scratch, Direct::Off)] {
        let wanted = || (0..4).map(|n| Ok(Wanted { path: path(&n.to_string()), offset: 0, len: None }));
        let room_but_for = |refused: usize| {
            directory.read_all(wanted(), None, &mut |index, len| match index == refused {
                true => Err(Error::new(ErrorKind::Exhausted, "full")),
                false => Ok(Destination::Buffer(Filling::new(len)?)),
            })
        };
        let found = room_but_for(2);
        assert!(found[..2].iter().all(|found| matches!(found.read, Ok(true))));
        assert!(found[2].read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Exhausted));
        let found = room_but_for(0);
        assert_eq!(found.len(), 4, "the first one has its outcome in any case");
        assert!(found[0].read.is_err() && found[1..].iter().all(|found| matches!(found.read, Ok(true))));
    }
}

#[test]
fn files_that_others_open_are_given_memory_in_their_order() {
    let (scratch, directory) = open();
    for n in 0..60 {
        // The first ones take longest.
        directory.write(&path(&n.to_string()), &[&noise(1 + (59 - n) * 20_000)], false, false, None).unwrap();
    }
    let directory = untold(&scratch, Direct::Off);
    let wanted = (0..60).map(|n| Ok(Wanted { path: path(&n.to_string()), offset: 0, len: None }));
    let mut asked = Vec::new();
    let found = directory.read_all(wanted, None, &mut |index, len| {
        asked.push(index);
        Ok(Destination::Buffer(Filling::new(len)?))
    });
    assert!(found.len() == 60 && found.iter().all(|found| matches!(found.read, Ok(true))));
    assert_eq!(asked, (0..60).collect::<Vec<_>>());
}

#[test]
fn a_file_system_that_does_not_answer_holds_no_caller_past_its_deadline() {
    let scratch = tempfile::tempdir().unwrap();
    let (clock, spawn) = (crate::process::Clock::default(), crate::process::Spawn::of(|_, _| true));
    // Threads that never come back from what they are given.
    let helpers = crate::threads::Threads::new(&clock, &Default::default()).helpers;
    let readers = Readers::new(&clock, &spawn, &helpers);
    let shared = Arc::new(Shared::new(clock, Default::default(), helpers, readers));
    let directory = Directory::open(&scratch.path().join("store"), &shared).unwrap().untold();
    directory.write(&path("f"), &[b"12345"], false, false, None).unwrap();
    let directory = Arc::new(directory);
    let until = Until::new(&crate::limits::Limits { deadline_ms: 200, ..Default::default() });
    let wanted = || Ok(Wanted { path: path("f"), offset: 0, len: None });
    let begun = std::time::Instant::now();
    let found =
        directory.read_all(vec![wanted(), wanted()], Some(&until), &mut |_, _| panic!("nothing is known of it"));
    assert!((200..30_000).contains(&begun.elapsed().as_millis()));
    assert_eq!(found.len(), 2);
    for Found { read, destination } in found {
        let error = read.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("disk"), "{error}");
        assert!(destination.is_none());
    }
}

/// Others remove a directory that is kept open, and make it anew.
#[test]
fn what_lies_in_a_directory_that_was_made_anew_is_there() {
    let (scratch, directory) = open();
    let at = path("chunks/a/ab");
    directory.write(&at, &[b"old"], false, true, None).unwrap();
    assert_eq!(directory.size(&at, &mut Looked::default()).unwrap(), Some(3));
    std::fs::remove_dir_all(scratch.path().join("store/chunks")).unwrap();
    let other = Arc::new(Directory::open(&scratch.path().join("store"), &Arc::default()).unwrap());
    other.write(&at, &[b"newer"], false, true, None).unwrap();
    assert_eq!(directory.size(&at, &mut Looked::default()).unwrap(), Some(5));
    assert_eq!(read(&directory, "chunks/a/ab").unwrap().unwrap(), b"newer");
}
