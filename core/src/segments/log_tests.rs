//! One log through several handles, torn and damaged.

use rustix::fs::Mode;

use super::super::format::Place;
use super::super::io::faults;
use super::*;
use crate::limits::Limits;

#[derive(Default)]
struct Heard {
    begun: usize,
    header: Option<Header>,
    entries: Vec<LogEntry>,
}

impl Follow for Heard {
    fn begin(&mut self, header: Option<&Header>) {
        self.begun += 1;
        self.header = header.copied();
        self.entries.clear();
    }

    fn apply(&mut self, entry: &LogEntry) {
        self.entries.push(entry.clone());
    }

    fn followed(&mut self) {}
}

const HEADER: Header = Header { seed: 5, segment_bytes: 1 << 20, max_bytes: 1 << 30 };

fn open(folder: &tempfile::TempDir) -> Log {
    let folder = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let log = Log::new(Arc::new(SegmentFolder::new(folder, false)), &Clock::default());
    log.lock(&until()).unwrap().make(&HEADER).unwrap();
    log
}

fn follow(log: &Log, by: &mut Heard) -> Result<(), Error> {
    log.tail().follow(by, &until())
}

fn lock<'a>(log: &'a Log, by: &mut Heard) -> Locked<'a> {
    let mut locked = log.lock(&until()).unwrap();
    locked.follow(by, &until()).unwrap();
    locked
}

fn until() -> Until {
    Until::new(&Limits::default())
}

fn deleted(n: u32) -> LogEntry {
    // No zero at its end, or a file that is cut and filled with zeros could be whole.
    LogEntry::Deleted { space: 0, key: (n | 0xaa00_0000).to_le_bytes().to_vec() }
}

#[test]
fn what_one_appends_the_other_reads_in_one_order() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    let (mut here, mut there) = (Heard::default(), Heard::default());
    for round in 0..10 {
        let (log, own) = if round % 2 == 0 { (&one, &mut here) } else { (&other, &mut there) };
        let mut locked = lock(log, own);
        locked.append(&[deleted(2 * round), deleted(2 * round + 1)], own).unwrap();
    }
    follow(&one, &mut here).unwrap();
    follow(&other, &mut there).unwrap();
    let all: Vec<LogEntry> = (0..20).map(deleted).collect();
    assert_eq!((&here.entries, &there.entries), (&all, &all));
    assert_eq!((here.begun, here.header), (1, Some(HEADER)));
    one.sync().unwrap();
}

#[test]
fn a_torn_end_is_written_over_wherever_it_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    let log = open(&folder);
    let mut heard = Heard::default();
    lock(&log, &mut heard).append(&[deleted(1)], &mut heard).unwrap();
    let whole = std::fs::read(&path).unwrap();
    lock(&log, &mut heard).append(&[deleted(2), deleted(3)], &mut heard).unwrap();
    let longer = std::fs::read(&path).unwrap();
    for cut in whole.len()..longer.len() {
        for zeros in [0, 40] {
            std::fs::write(&path, [&longer[..cut], &vec![0; zeros]].concat()).unwrap();
            let (log, mut heard) = (open(&folder), Heard::default());
            follow(&log, &mut heard).unwrap();
            assert_eq!(heard.entries, [deleted(1)], "cut at {cut}");
            lock(&log, &mut heard).append(&[deleted(4)], &mut heard).unwrap();
            let (again, mut heard) = (open(&folder), Heard::default());
            follow(&again, &mut heard).unwrap();
            assert_eq!(heard.entries, [deleted(1), deleted(4)], "cut at {cut}");
        }
    }
}

#[test]
fn a_frame_behind_a_hole_stays_gone_when_the_hole_is_filled() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    let log = open(&folder);
    let mut heard = Heard::default();
    for n in 1..4 {
        lock(&log, &mut heard).append(&[deleted(n)], &mut heard).unwrap();
    }
    let mut bytes = std::fs::read(&path).unwrap();
    let frame = (bytes.len() - LOG_HEADER_BYTES) / 3;
    bytes[LOG_HEADER_BYTES + frame..][..frame].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    let (log, mut heard) = (open(&folder), Heard::default());
    lock(&log, &mut heard).append(&[deleted(9)], &mut heard).unwrap();
    assert_eq!(std::fs::read(&path).unwrap().len(), bytes.len(), "what lay behind it is still there");
    let (again, mut heard) = (open(&folder), Heard::default());
    follow(&again, &mut heard).unwrap();
    assert_eq!(heard.entries, [deleted(1), deleted(9)]);
}

#[test]
fn a_frame_that_is_written_over_while_it_is_read_is_not_taken_for_the_one_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let mut heard = Heard::default();
    lock(&log, &mut heard).append(&[deleted(1)], &mut heard).unwrap();
    let path = folder.path().join(NAME);
    let (at, behind) = (std::fs::metadata(&path).unwrap().len(), log.tail().read.behind);
    let (failed, ..) = frame(&[LogEntry::Synced { segment: 1, to: 33 }], behind);
    let place = Place { segment: 1, unit: 33, len: 166 };
    let entries = [LogEntry::Put { space: 0, key: b"a".to_vec(), place }, deleted(2)];
    let (whole, ..) = frame(&entries, behind);
    // The write came so far. What lies behind it in the frame that replaces it is the same.
    let torn = failed.len() - 7;
    assert_eq!(failed[torn..], whole[torn..failed.len()]);
    let file = fs::open(&path, OFlags::WRONLY, Mode::empty()).unwrap();
    write_all_at(&file, &failed[..torn], at).unwrap();
    let mut reads = 0;
    faults::before_reads(move |from| {
        reads += usize::from(from > at);
        if reads == 1 {
            write_all_at(&file, &whole, at).unwrap();
        }
    });
    for _ in 0..2 {
        follow(&log, &mut heard).unwrap();
    }
    faults::none();
    assert_eq!(heard.entries, [&[deleted(1)], &entries[..]].concat());
}

#[test]
fn who_follows_a_log_that_was_compacted_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    let (mut here, mut there) = (Heard::default(), Heard::default());
    let many: Vec<LogEntry> = (0..30_000).map(deleted).collect();
    lock(&one, &mut here).append(&many, &mut here).unwrap();
    follow(&other, &mut there).unwrap();
    assert_eq!(there.entries.len(), 30_000);
    let kept = many[..25_000].to_vec();
    let keeps = |entry: &LogEntry| matches!(entry, LogEntry::Deleted { key, .. } if u32::from_le_bytes([key[0], key[1], key[2], 0]) < 25_000);
    let mut locked = lock(&one, &mut here);
    let other_seed = Header { seed: 6, ..HEADER };
    locked.compact(&other_seed, (&[], &[]), keeps).unwrap();
    locked.follow(&mut here, &until()).unwrap();
    drop(locked);
    lock(&other, &mut there).append(&[deleted(77)], &mut there).unwrap();
    follow(&one, &mut here).unwrap();
    let all: Vec<LogEntry> = kept.into_iter().chain([deleted(77)]).collect();
    assert!(here.entries == all && there.entries == all);
    assert_eq!((there.begun, there.header), (2, Some(other_seed)));
}

#[test]
fn what_is_no_log_of_this_version_is_left_alone() {
    for content in [&b""[..], b"kvslog\0\x02 and what a later version may say", &[7; 4096]] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), content).unwrap();
        let log = open(&folder);
        let refused = follow(&log, &mut Heard::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Version);
        assert!(log.lock(&until()).unwrap().follow(&mut Heard::default(), &until()).is_err());
        assert_eq!(std::fs::read(folder.path().join(NAME)).unwrap(), content);
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join(NAME)).unwrap();
    let open = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let log = Log::new(Arc::new(SegmentFolder::new(open, false)), &Clock::default());
    assert!(follow(&log, &mut Heard::default()).is_err());
}

#[test]
fn who_waits_for_the_lock_waits_no_longer_than_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    let mut heard = Heard::default();
    let locked = lock(&one, &mut heard);
    let soon = Until::new(&Limits { deadline_ms: 20, ..Limits::default() });
    let refused = other.lock(&soon).err().unwrap();
    assert!(refused.to_string().contains("another process holds the index log"), "{refused}");
    drop(locked);
    assert!(other.lock(&until()).is_ok());
}

/// Nothing of the former log stays where there is none any more, in whichever order that comes about.
#[test]
fn a_log_that_is_gone_before_it_could_be_followed_says_nothing() {
    let tempdir = tempfile::tempdir().unwrap();
    let path = tempdir.path().join(NAME);
    let log = open(&tempdir);
    let mut heard = Heard::default();
    lock(&log, &mut heard).append(&[deleted(1)], &mut heard).unwrap();

    // Somebody clears the directory after it was written anew.
    lock(&log, &mut heard).compact(&HEADER, (&[], &[deleted(2)]), |_| true).unwrap();
    std::fs::remove_file(&path).unwrap();
    follow(&log, &mut heard).unwrap();
    assert_eq!((heard.begun, heard.header, &heard.entries[..]), (2, None, &[][..]));

    // And while what is there cannot be opened as a log.
    log.lock(&until()).unwrap().make(&HEADER).unwrap();
    lock(&log, &mut heard).append(&[deleted(3)], &mut heard).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    follow(&log, &mut heard).unwrap_err();
    std::fs::remove_dir(&path).unwrap();
    follow(&log, &mut heard).unwrap();
    assert_eq!((heard.begun, heard.header, &heard.entries[..]), (4, None, &[][..]));
}
