//! The disk tier: what is damaged, left over or another's, and where there is no room.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::disk::Disk;
use super::super::{CopyKey, check_directory, copies};
use super::*;
use crate::directory::Directory;

const DISK: u64 = 1 << 20;

fn until() -> Until {
    Until::new(&Limits::default())
}

fn on_disk(path: &Path, memory: u64) -> NearAround {
    around(&settings(memory, Some((path.to_owned(), DISK))))
}

/// All files, but those of the directory's own.
fn files(path: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir() && !path.ends_with(".kv-tmp"));
    folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

#[test]
fn what_memory_gives_up_is_on_disk_for_the_next_process_too() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let store = on_disk(&path, 50 << 10);
    let hashes: Vec<ChunkHash> = (0..300).map(|number| store.put(&data(number))).collect();
    settle();
    let on_disk_now = files(&path).len();
    assert!(on_disk_now > 150, "{on_disk_now}");
    let written = store.level.usage().disk_bytes.unwrap();
    assert!(written > 50 << 10 && written <= DISK);
    for (hash, number) in hashes.iter().zip(0..) {
        assert_eq!(store.get(hash).unwrap(), data(number));
        // What is on its way to the disk is not found there yet.
        settle();
    }
    assert_eq!(store.far.gets(), 0);
    // Another process finds what is there, and asks for the rest.
    let other = layer(&store.far, &open(&settings(0, Some((path.clone(), DISK)))), "a store");
    let there = files(&path).len();
    assert!(hashes.iter().zip(0..).all(|(hash, number)| other.get(hash).unwrap() == data(number)));
    assert_eq!(store.far.gets(), hashes.len() - there);
}

#[test]
fn a_copy_on_disk_is_no_younger_than_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let store = on_disk(&path, 0);
    let hash = store.put(b"old");
    settle();
    store.pass(Duration::from_secs(TTL - 1));
    assert!(store.get(&hash).is_some() && store.far.exists.load(SeqCst) == 0);
    store.pass(Duration::from_secs(1));
    assert!(store.get(&hash).is_some());
    settle();
    assert_eq!((store.far.exists.load(SeqCst), store.far.gets()), (1, 0), "it was confirmed");
    assert!(store.get(&hash).is_some() && store.far.exists.load(SeqCst) == 1, "and that was written down");
    store.pass(Duration::from_secs(TTL));
    store.far.chunks().clear();
    assert_eq!(store.get(&hash), None);
    settle();
    assert!(files(&path).is_empty(), "what is gone is removed");
    // A clock that was wrong.
    let store = on_disk(&path, 0);
    store.pass(Duration::from_secs(1 << 20));
    let hash = store.put(b"of the future");
    settle();
    let now = on_disk(&path, 0);
    assert_eq!(now.get(&hash), None);
    assert_eq!(now.far.exists.load(SeqCst), 1);
}

#[test]
fn a_damaged_file_is_a_miss_and_is_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let hash = on_disk(&path, 0).put(b"twenty bytes of data");
    settle();
    let [file] = &files(&path)[..] else { panic!("there is one file") };
    let sound = std::fs::read(file).unwrap();
    let flipped = (0..sound.len()).map(|at| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        bytes
    });
    let cut = (0..sound.len()).map(|len| sound[..len].to_vec());
    let longer = [[&sound[..], b"x"].concat(), [&sound[..], &sound[..]].concat(), vec![0; sound.len()]];
    for bytes in flipped.chain(cut).chain(longer) {
        std::fs::write(file, &bytes).unwrap();
        let store = on_disk(&path, 0);
        assert_eq!(store.get(&hash), None, "{bytes:?}");
        assert!(!file.exists() && store.far.gets() == 1);
    }
    // The file of another chunk, or of another store, under this name.
    on_disk(&path, 0).put(b"another");
    settle();
    let other = files(&path).pop().unwrap();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::rename(&other, file).unwrap();
    assert_eq!(on_disk(&path, 0).get(&hash), None);
    let theirs = layer(&Arc::default(), &open(&settings(0, Some((path.clone(), DISK)))), "another store");
    theirs.put(b"twenty bytes of data");
    settle();
    std::fs::rename(files(&path).pop().unwrap(), file).unwrap();
    assert_eq!(on_disk(&path, 0).get(&hash), None);
    // And what is no file.
    std::fs::create_dir_all(file).unwrap();
    assert_eq!(on_disk(&path, 0).get(&hash), None);
    std::os::unix::fs::symlink("/etc/passwd", file).unwrap();
    assert_eq!(on_disk(&path, 0).get(&hash), None);
}

#[test]
fn what_a_killed_process_left_is_whole_or_not_there() {
    const INSIDE: &str = "KV_STORE_TEST_NEAR";
    if let Some(path) = std::env::var_os(INSIDE) {
        let store = on_disk(Path::new(&path), 0);
        for number in 0.. {
            store.put(&data(number % 5000));
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let name = std::thread::current().name().expect("a test's thread has its name").to_owned();
    let mut found = 0;
    for round in 0..5 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let mut child = child.args(["--exact", &name]).env(INSIDE, &path).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !path.exists() || files(&path).len() < 100 * (round + 1) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the child writes nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let store = on_disk(&path, 0);
        for number in 0..5000 {
            if let Some(bytes) = store.get(&key(&data(number))) {
                assert_eq!(bytes, data(number));
                found += 1;
            }
        }
    }
    assert!(found > 500, "{found}");
    // What the last one was writing is removed once it is sure that nobody is.
    let temporary = path.join(".kv-tmp/1-2-3");
    std::fs::write(&temporary, b"half").unwrap();
    let long_ago = std::time::SystemTime::now() - crate::limits::STALE_TEMPORARY - Duration::from_secs(60);
    std::fs::File::options().write(true).open(&temporary).unwrap().set_modified(long_ago).unwrap();
    on_disk(&path, 0);
    assert!(!temporary.exists());
}

#[test]
fn the_disk_tier_is_bounded_and_keeps_what_is_used() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let [one, two] = [(); 2].map(|()| on_disk(&path, 0));
    let held = || files(&path).iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    let mut least = u64::MAX;
    for number in 0..4000 {
        // Two processes fill it.
        if number % 2 == 0 { &one } else { &two }.put(&data(number));
        if number % 500 == 499 {
            settle();
            // What the other has not written down yet is a fraction of a percent, and one file of each may come on top.
            assert!(held() <= DISK + DISK / 50, "{}", held());
            least = least.min(if number > 2500 { held() } else { u64::MAX });
        }
    }
    assert!(least > DISK / 2, "{least}: it is not emptied for what is new");
    // The least recently used go first.
    let disk = Disk::bounded(Directory::open(&path, &Arc::default()).unwrap(), DISK, 0).unwrap();
    let keys: Vec<CopyKey> = (10_000..10_020).map(place).collect();
    for (key, number) in keys.iter().zip(10_000..) {
        assert!(disk.write(key, &copy(number), || true));
    }
    let used_at = |file: &Path| std::fs::metadata(file).unwrap().modified().unwrap();
    let oldest = files(&path).iter().map(|file| used_at(file)).min().unwrap();
    for number in 20_000..20_400 {
        disk.write(&place(number), &copy(number), || true);
    }
    let now_oldest = files(&path).iter().map(|file| used_at(file)).min().unwrap();
    assert!(now_oldest > oldest);
    assert!(keys.iter().all(|key| matches!(disk.read(key, &until()), Ok(Some(_)))), "what is younger is still there");
}

#[test]
fn a_copy_takes_a_fraction_of_the_disk_at_most() {
    let scratch = tempfile::tempdir().unwrap();
    let disk = Disk::bounded(Directory::open(&scratch.path().join("near"), &Arc::default()).unwrap(), DISK, 0);
    // An eighth, with the trailer.
    let (disk, most) = (disk.unwrap(), (DISK / 8) as usize - 48);
    assert!(disk.has_room_for(0) && disk.has_room_for(most));
    assert!(!disk.has_room_for(most + 1) && !disk.has_room_for(usize::MAX));
}

fn place(number: u64) -> CopyKey {
    CopyKey { scope: Scope::of(&7), hash: key(&data(number)).as_slice().try_into().unwrap() }
}

fn copy(number: u64) -> copies::Copy {
    copies::Copy {
        data: Arc::new(Buffer::concat(&[&data(number)]).unwrap()),
        confirmed: crate::process::Clock::default().wall_ns(),
    }
}

/// A copy as processes of other versions find it. Made by Python's struct and xxhash, not with this code. The scope is not pinned: it
/// hashes what tells stores apart, and where that changes the copies are left to be evicted.
#[test]
fn golden_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let disk = Disk::bounded(Directory::open(&path, &Arc::default()).unwrap(), DISK, 0).unwrap();
    let hash = [0x75, 0x1c, 0xcf, 0x1c, 0x95, 0x40, 0x05, 0x18];
    let key = CopyKey { scope: Scope(std::array::from_fn(|n| n as u8)), hash };
    let data = Arc::new(Buffer::concat(&[b"chunk"]).unwrap());
    assert!(disk.write(&key, &copies::Copy { data, confirmed: 0x0102_0304_0506_0708 }, || true));
    let file = std::fs::read(path.join("75/000102030405060708090a0b0c0d0e0f-751ccf1c95400518")).unwrap();
    let hex = hex::encode(file);
    let trailer = "4b564e4541523031000102030405060708090a0b0c0d0e0f751ccf1c954005180807060504030201a1e3670582d218fd";
    assert_eq!(hex, format!("6368756e6b{trailer}"));
}

#[test]
fn a_full_disk_costs_only_its_copies() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    // As full as it may be: nothing may be written.
    let disk = Disk::bounded(Directory::open(&path, &Arc::default()).unwrap(), DISK, u64::MAX).unwrap();
    assert!(!disk.write(&place(1), &copy(1), || true));
    assert!(matches!(disk.read(&place(1), &until()), Ok(None)));
    assert!(files(&path).is_empty());
    // It is not tried again at once, and then it is.
    let disk = Disk::bounded(Directory::open(&path, &Arc::default()).unwrap(), DISK, 0).unwrap();
    assert!(disk.write(&place(1), &copy(1), || true) && matches!(disk.read(&place(1), &until()), Ok(Some(_))));
    // A directory that is gone.
    let store = on_disk(&path, 0);
    let hash = store.put(b"anything");
    settle();
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(store.get(&hash).unwrap(), b"anything");
    assert_eq!(store.far.gets(), 1);
}

#[test]
fn a_directory_that_others_may_use_is_left_out() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    assert!(check_directory(&path).is_ok(), "it would be made");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
    let refused = check_directory(&path).unwrap_err().to_string();
    assert!(refused.contains("chmod 700"), "{refused}");
    let store = on_disk(&path, 1 << 20);
    assert!(store.level.usage().disk_bytes.is_none());
    let hash = store.put(b"in memory");
    assert!(store.get(&hash).is_some() && store.far.gets() == 0);
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, b"").unwrap();
    assert!(check_directory(&path).is_err());
}

#[test]
fn what_is_deleted_on_its_way_to_the_disk_does_not_arrive() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("near");
    let store = on_disk(&path, 0);
    for number in 0..2000 {
        let hash = store.put(&data(number));
        if number % 3 == 0 {
            std::thread::yield_now();
        }
        store.delete(&hash);
    }
    settle();
    assert!(files(&path).is_empty(), "{:?}", files(&path));
}
