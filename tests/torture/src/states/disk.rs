//! The model of a disk, and the states that a crash may leave it in.
//!
//! It allows more than any journalling file system does, ext4 with `data=writeback` included:
//! - What a directory says under a name is, after a crash, what the last sync of that directory found there, or any later value:
//!   names reach the disk in any order, or not at all; the two halves of a rename are apart.
//! - A file has what its last sync found in it, and of each later write any of its pages (4 KiB) or none, in any order. A page that is
//!   missing below the end of the file holds zeros or what lay on the disk before. Its length is any that it had since, or a
//!   multiple of a page between.
//! - A sync of a file makes its bytes and its length last, and not its name; a sync of a directory the names in it, and nothing of
//!   what they lead to.
//! - Bytes that were written out (`sync_file_range` that waits) are on the disk under every name that the file got later. That is what
//!   the flush before a journal's commit does; a disk that ignores flushes is in no model.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::pages::{self, Pick};
use super::trace::{Call, What};
use crate::workload::Random;

/// What is there after a crash: directories, and files with their bytes.
pub type CrashState = BTreeMap<PathBuf, Option<Vec<u8>>>;

type Node = usize;

pub struct Disk {
    nodes: Vec<Contents>,
    /// When each node was synced: how many calls had succeeded before it began, and its own number.
    syncs: HashMap<Node, Vec<(usize, usize)>>,
    write_outs: HashMap<Node, Vec<(usize, usize)>>,
}

enum Contents {
    Directory(BTreeMap<OsString, Vec<Entry>>),
    File(Vec<Change>),
}

/// What a name leads to since a call.
struct Entry {
    at: usize,
    node: Option<Node>,
}

struct Change {
    at: usize,
    change: Bytes,
}

enum Bytes {
    Write { at: u64, bytes: Vec<u8> },
    Cut(u64),
}

impl Disk {
    /// The disk of an empty folder after these calls.
    pub fn replay(folder: &Path, calls: &[Call]) -> Self {
        let mut disk = Disk {
            nodes: vec![Contents::Directory(BTreeMap::new())],
            syncs: HashMap::new(),
            write_outs: HashMap::new(),
        };
        let mut ends: HashMap<Node, u64> = HashMap::new();
        for (at, call) in calls.iter().enumerate() {
            let within = |path: &Path| path.strip_prefix(folder).map(Path::to_owned).unwrap_or_default();
            match &call.what {
                What::Said(_) => {}
                What::Unknown { name, .. } => panic!("the script made a call that the model does not know: {name}"),
                What::MakeDirectory(path) => disk.add(at, &within(path), Contents::Directory(BTreeMap::new())),
                What::Open { path, create, truncate } => {
                    let path = within(path);
                    if *create && disk.find(&path).is_none() {
                        disk.add(at, &path, Contents::File(Vec::new()));
                    }
                    let Some(node) = disk.find(&path) else { continue };
                    ends.insert(node, 0);
                    if let (true, Contents::File(changes)) = (*truncate, &mut disk.nodes[node])
                        && !changes.is_empty()
                    {
                        changes.push(Change { at, change: Bytes::Cut(0) });
                    }
                }
                What::Write { path, at: offset, bytes } => {
                    let Some(node) = disk.find(&within(path)) else { continue };
                    let end = ends.entry(node).or_default();
                    let from = offset.unwrap_or(*end);
                    if offset.is_none() {
                        *end = from + bytes.len() as u64;
                    }
                    disk.change(node, at, Bytes::Write { at: from, bytes: bytes.clone() });
                }
                What::Cut { path, len } => {
                    if let Some(node) = disk.find(&within(path)) {
                        disk.change(node, at, Bytes::Cut(*len));
                    }
                }
                What::Rename { from, to } => {
                    let node = disk.find(&within(from));
                    disk.enter(at, &within(to), node);
                    disk.enter(at, &within(from), None);
                }
                What::Link { from, to } => {
                    let node = disk.find(&within(from));
                    disk.enter(at, &within(to), node);
                }
                What::Remove(path) => disk.enter(at, &within(path), None),
                What::Sync(path) | What::WriteOut(path) => {
                    let Some(node) = disk.find(&within(path)) else { continue };
                    let synced = matches!(call.what, What::Sync(_));
                    let when = if synced { &mut disk.syncs } else { &mut disk.write_outs };
                    when.entry(node).or_default().push((call.begun, at));
                }
            }
        }
        disk
    }

    fn add(&mut self, at: usize, path: &Path, contents: Contents) {
        self.nodes.push(contents);
        let node = self.nodes.len() - 1;
        self.enter(at, path, Some(node));
    }

    fn enter(&mut self, at: usize, path: &Path, node: Option<Node>) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        if let Some(parent) = self.find(parent)
            && let Contents::Directory(entries) = &mut self.nodes[parent]
        {
            entries.entry(name.to_owned()).or_default().push(Entry { at, node });
        }
    }

    fn change(&mut self, node: Node, at: usize, change: Bytes) {
        if let Contents::File(changes) = &mut self.nodes[node] {
            changes.push(Change { at, change });
        }
    }

    /// What a path leads to now.
    fn find(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(0, |node, name| match &self.nodes[node] {
            Contents::Directory(entries) => entries.get(name)?.last()?.node,
            Contents::File(_) => None,
        })
    }

    /// Changes before this one last, where the crash comes after so many calls.
    fn lasts(when: &HashMap<Node, Vec<(usize, usize)>>, node: Node, calls: usize) -> usize {
        let of_node = when.get(&node).into_iter().flatten();
        of_node.filter(|(_, at)| *at < calls).map(|(begun, _)| *begun).max().unwrap_or(0)
    }

    /// States after so many calls: all of them, if they are no more than `most`, and else so many, the newest and the oldest among
    /// them.
    pub fn states(&self, calls: usize, most: usize, random: &mut Random) -> Vec<CrashState> {
        let mut states = Vec::new();
        // Like the wheels of a counter: the last one that can be turned on is, and those after it begin anew.
        let mut wheels: Vec<usize> = Vec::new();
        loop {
            let (mut sizes, mut turn) = (Vec::new(), 0);
            states.push(self.state(calls, &mut |options| {
                sizes.push(options);
                turn += 1;
                wheels.get(turn - 1).copied().unwrap_or(0)
            }));
            wheels.resize(sizes.len(), 0);
            match (0..sizes.len()).rev().find(|wheel| wheels[*wheel] + 1 < sizes[*wheel]) {
                None => return states,
                Some(wheel) => {
                    wheels.truncate(wheel + 1);
                    wheels[wheel] += 1;
                }
            }
            if states.len() > most {
                break;
            }
        }
        let mut states = vec![self.state(calls, &mut |_| 0), self.state(calls, &mut |options| options - 1)];
        while states.len() < most {
            // Mostly new, mostly old, or anything.
            let bias = random.below(3);
            let rare = 2 + random.below(12);
            states.push(self.state(calls, &mut |options| match bias {
                0 if random.below(rare) > 0 => options - 1,
                1 if random.below(rare) > 0 => 0,
                _ => random.below(options as u64) as usize,
            }));
        }
        states
    }

    fn state(&self, calls: usize, pick: Pick<'_>) -> CrashState {
        let mut state = CrashState::new();
        self.directory(0, Path::new(""), calls, pick, &mut state);
        state
    }

    fn directory(&self, node: Node, path: &Path, calls: usize, pick: Pick<'_>, state: &mut CrashState) {
        let Contents::Directory(entries) = &self.nodes[node] else { return };
        let lasting = Self::lasts(&self.syncs, node, calls);
        for (name, values) in entries {
            let known = values.iter().filter(|entry| entry.at < calls);
            let base = known.clone().rfind(|entry| entry.at < lasting);
            let mut options: Vec<(Option<Node>, usize)> = vec![base.map_or((None, 0), |entry| (entry.node, entry.at))];
            options.extend(known.filter(|entry| entry.at >= lasting).map(|entry| (entry.node, entry.at)));
            let taken = if options.len() > 1 { pick(options.len()) } else { 0 };
            let (Some(child), since) = options[taken] else { continue };
            let path = path.join(name);
            match &self.nodes[child] {
                // A directory has one name.
                Contents::Directory(_) => {
                    state.insert(path.clone(), None);
                    self.directory(child, &path, calls, pick, state);
                }
                Contents::File(changes) => {
                    let bytes = self.file(child, changes, since, calls, pick);
                    state.insert(path, Some(bytes));
                }
            }
        }
    }

    /// The bytes of a file, under a name that it has since a call.
    fn file(&self, node: Node, changes: &[Change], since: usize, calls: usize, pick: Pick<'_>) -> Vec<u8> {
        let written_out = self.write_outs.get(&node).into_iter().flatten();
        let before_name = written_out.filter(|(_, at)| *at < since.min(calls)).map(|(begun, _)| *begun).max();
        let lasting = Self::lasts(&self.syncs, node, calls).max(before_name.unwrap_or(0));
        let known = || changes.iter().filter(|change| change.at < calls);
        let mut versions = vec![Vec::new()];
        for change in known() {
            let mut next = versions.last().cloned().unwrap_or_default();
            change.change.apply(&mut next);
            // What lasts is one version.
            if change.at < lasting {
                versions.clear();
            }
            versions.push(next);
        }
        pages::torn(&versions, pick)
    }

    /// The call after which a crash comes, for people.
    pub fn describe(&self, calls: usize, all: &[Call]) -> String {
        let text = calls.checked_sub(1).and_then(|last| all.get(last)).map(|call| match &call.what {
            What::Write { path, at, bytes } => {
                format!("write of {} bytes at {at:?} to {}", bytes.len(), path.display())
            }
            other => format!("{other:?}"),
        });
        text.unwrap_or_else(|| "none".to_owned())
    }
}

impl Bytes {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Bytes::Cut(len) => file.resize(*len as usize, 0),
            Bytes::Write { at, bytes } => {
                let (start, end) = (*at as usize, *at as usize + bytes.len());
                file.resize(file.len().max(end), 0);
                file[start..end].copy_from_slice(bytes);
            }
        }
    }
}

/// Make a state in an empty folder.
pub fn make(state: &CrashState, folder: &Path) {
    // In order a directory comes before what lies in it.
    for (path, contents) in state {
        let path = folder.join(path);
        let made = match contents {
            None => std::fs::create_dir(&path),
            Some(bytes) => std::fs::write(&path, bytes),
        };
        made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::pages::{PAGE, STALE};
    use super::*;

    fn calls(whats: Vec<What>) -> Vec<Call> {
        whats.into_iter().enumerate().map(|(begun, what)| Call { begun, what }).collect()
    }

    fn write(path: &str, text: &str) -> [What; 2] {
        let path = PathBuf::from(path);
        let open = What::Open { path: path.clone(), create: true, truncate: false };
        [open, What::Write { path, at: None, bytes: text.into() }]
    }

    fn rename(from: &str, to: &str) -> What {
        What::Rename { from: from.into(), to: to.into() }
    }

    /// What lies under a name in each state after all calls, sorted: `-` for nothing.
    fn seen(whats: Vec<What>, name: &str) -> Vec<String> {
        let calls = calls(whats);
        let disk = Disk::replay(Path::new("/f"), &calls);
        let states = disk.states(calls.len(), 10_000, &mut Random(1));
        let text = |state: &CrashState| match state.get(Path::new(name)) {
            Some(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "-".to_owned(),
        };
        let seen: BTreeSet<String> = states.iter().map(text).collect();
        seen.into_iter().collect()
    }

    #[test]
    fn what_was_not_synced_may_be_missing_or_torn() {
        let stale = String::from_utf8_lossy(&[STALE; 2]).into_owned();
        let unsynced: Vec<What> = write("/f/new", "ab").into_iter().chain([rename("/f/new", "/f/a")]).collect();
        assert_eq!(seen(unsynced, "a"), ["", "\0\0", "-", "ab", &stale]);
    }

    #[test]
    fn a_file_that_was_synced_before_its_name_is_whole_or_missing() {
        let after = |made_to_last: Vec<What>| {
            let renamed = write("/f/new", "ab").into_iter().chain(made_to_last).chain([rename("/f/new", "/f/a")]);
            renamed.collect::<Vec<What>>()
        };
        assert_eq!(seen(after(vec![What::Sync("/f/new".into())]), "a"), ["-", "ab"]);
        assert_eq!(seen(after(vec![What::WriteOut("/f/new".into())]), "a"), ["-", "ab"]);
        let mut synced = after(vec![What::Sync("/f/new".into())]);
        synced.push(What::Sync("/f".into()));
        assert_eq!(seen(synced, "a"), ["ab"]);
    }

    #[test]
    fn a_sync_covers_what_came_before_it_began() {
        let [open, bytes] = write("/f/a", "ab");
        let mut whats = calls(vec![open, What::Sync("/f".into()), bytes, What::Sync("/f/a".into())]);
        assert_eq!(Disk::replay(Path::new("/f"), &whats).states(4, 100, &mut Random(1)).len(), 1);
        // It began before the write had ended.
        whats[3].begun = 2;
        assert!(Disk::replay(Path::new("/f"), &whats).states(4, 100, &mut Random(1)).len() > 1);
    }

    #[test]
    fn pages_are_torn_apart() {
        let text = "x".repeat(PAGE as usize) + &"y".repeat(10);
        let states = seen(write("/f/a", &text).into(), "a");
        let torn = "x".repeat(PAGE as usize) + &"\0".repeat(10);
        for possible in ["-", "", &text, &torn, &text[..PAGE as usize]] {
            assert!(states.iter().any(|state| state == possible), "{possible:.5} is missing");
        }
    }
}
