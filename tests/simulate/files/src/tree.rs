//! Directories and files, as processes see them and as the disk has them.
//!
//! The disk is that of `tests/torture/src/states/disk.rs`, kept while a history goes on:
//! - What a directory says under a name is, after a power loss, what the last sync of that directory found there, or any later value: names reach
//!   the disk in any order, or not at all; the two halves of a rename are apart.
//! - A file has what its last sync found in it, and of each later write any of its pages or none.
//! - A sync covers what came before it began. One that failed has lost what it should have written: what is in the cache counts as written from
//!   then on, and the next sync has nothing to do.
//! - Bytes that were written out are on the disk under every name that the file gets later.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::{Errno, Result};

use crate::pages::{self, Pick};

pub type Node = usize;

/// Everything is numbered in the order in which it happens.
type Order = u64;

pub const ROOT: Node = 0;

/// Nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Default)]
pub struct Times {
    pub accessed: u64,
    pub modified: u64,
    pub changed: u64,
}

pub struct Inode {
    pub what: What,
    pub times: Times,
    /// Names that lead to it.
    pub links: u32,
}

pub enum What {
    Directory(BTreeMap<String, Name>),
    File(File),
}

/// What a name leads to: what is on the disk, each later value, and last what processes see.
pub struct Name(Vec<(Order, Option<Node>)>);

#[derive(Default)]
pub struct File {
    /// What is on the disk, each later one, and last what processes see.
    versions: Vec<(Order, Arc<Vec<u8>>)>,
    /// When it was written out: what came before that began is under names that came after it ended.
    written_out: Option<(Order, Order)>,
    /// What a sync should have written is lost.
    pub lost: Option<Lost>,
    /// It has other bytes than were written to it.
    pub damaged: bool,
}

/// The processes whose syncs of a file failed first, and last. A process that opens it in between is not told of the first.
#[derive(Clone, Copy)]
pub struct Lost {
    pub first: usize,
    pub last: usize,
    /// When the last one failed.
    at: Order,
}

/// What a power loss may leave of a file, oldest first, and whether it is damaged.
type Left = (Vec<Arc<Vec<u8>>>, bool);

pub struct Tree {
    nodes: Vec<Inode>,
    last: Order,
}

impl Name {
    fn now(&self) -> Option<Node> {
        self.0.last().and_then(|(_, node)| *node)
    }
}

impl File {
    pub fn bytes(&self) -> Arc<Vec<u8>> {
        self.versions.last().map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    /// What a sync that failed may have lost, and what was there then.
    pub fn when_lost(&self) -> Option<(Lost, &[u8])> {
        let lost = self.lost?;
        let then = self.versions.get(last_before(&self.versions, lost.at));
        Some((lost, then.map_or(&[], |(_, bytes)| bytes.as_slice())))
    }

    /// What may be on the disk under a name that it has since then.
    fn on_disk(&self, since: Order) -> &[(Order, Arc<Vec<u8>>)] {
        let written_out = self.written_out.filter(|(_, ended)| *ended < since);
        let first = written_out.map_or(0, |(begun, _)| last_before(&self.versions, begun));
        self.versions.get(first..).unwrap_or_default()
    }
}

/// The place of the last value that is not younger.
fn last_before<T>(values: &[(Order, T)], than: Order) -> usize {
    values.iter().rposition(|(order, _)| *order <= than).unwrap_or(0)
}

impl Tree {
    #[allow(clippy::new_without_default, reason = "what is empty is said to be new")]
    pub fn new() -> Self {
        let root = Inode { what: What::Directory(BTreeMap::new()), times: Times::default(), links: 1 };
        Tree { nodes: vec![root], last: 0 }
    }

    fn next(&mut self) -> Order {
        self.last += 1;
        self.last
    }

    /// What begins now is ordered by this.
    pub fn order(&self) -> Order {
        self.last
    }

    pub fn inode(&self, node: Node) -> &Inode {
        &self.nodes[node]
    }

    pub fn inode_mut(&mut self, node: Node) -> &mut Inode {
        &mut self.nodes[node]
    }

    fn names(&self, directory: Node) -> Result<&BTreeMap<String, Name>> {
        match &self.nodes[directory].what {
            What::Directory(names) => Ok(names),
            What::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// What a name in a directory leads to.
    pub fn look(&self, directory: Node, name: &str) -> Result<Node> {
        if name.is_empty() || name == "." {
            return self.names(directory).map(|_| directory);
        }
        self.names(directory)?.get(name).and_then(Name::now).ok_or(Errno::NOENT)
    }

    /// What a relative path leads to.
    pub fn resolve(&self, from: Node, path: &str) -> Result<Node> {
        path.split('/').try_fold(from, |node, name| self.look(node, name))
    }

    /// The directory that a path ends in, and the name there.
    pub fn parent<'p>(&self, from: Node, path: &'p str) -> Result<(Node, &'p str)> {
        match path.rsplit_once('/') {
            Some((parent, name)) => Ok((self.resolve(from, parent)?, name)),
            None => Ok((from, path)),
        }
    }

    pub fn list(&self, directory: Node) -> Result<Vec<String>> {
        let there = |(name, value): (&String, &Name)| value.now().map(|_| name.clone());
        Ok(self.names(directory)?.iter().filter_map(there).collect())
    }

    /// Have a name lead to something else, or to nothing.
    pub fn enter(&mut self, directory: Node, name: &str, node: Option<Node>) -> Result<()> {
        if node.is_some() && self.nodes[directory].links == 0 {
            // It was removed.
            return Err(Errno::NOENT);
        }
        let order = self.next();
        let What::Directory(names) = &mut self.nodes[directory].what else { return Err(Errno::NOTDIR) };
        // Before it was made there was nothing.
        let values = &mut names.entry(name.to_owned()).or_insert_with(|| Name(vec![(0, None)])).0;
        let former = values.last().and_then(|(_, former)| *former);
        values.push((order, node));
        if let Some(former) = former {
            self.nodes[former].links -= 1;
        }
        if let Some(node) = node {
            self.nodes[node].links += 1;
        }
        Ok(())
    }

    pub fn make(&mut self, directory: Node, name: &str, what: What, wall: u64) -> Result<Node> {
        let times = Times { accessed: wall, modified: wall, changed: wall };
        self.nodes.push(Inode { what, times, links: 0 });
        let node = self.nodes.len() - 1;
        if let What::File(file) = &mut self.nodes[node].what {
            file.versions.push((0, Arc::default()));
        }
        self.enter(directory, name, Some(node)).map(|()| node)
    }

    pub fn file(&self, node: Node) -> Result<&File> {
        match &self.nodes[node].what {
            What::File(file) => Ok(file),
            What::Directory(_) => Err(Errno::ISDIR),
        }
    }

    fn file_mut(&mut self, node: Node) -> Result<&mut File> {
        match &mut self.nodes[node].what {
            What::File(file) => Ok(file),
            What::Directory(_) => Err(Errno::ISDIR),
        }
    }

    pub fn write(&mut self, node: Node, at: u64, bytes: &[u8]) -> Result<()> {
        let order = self.next();
        let file = self.file_mut(node)?;
        let mut next = (*file.bytes()).clone();
        let (from, to) = (at as usize, at as usize + bytes.len());
        next.resize(next.len().max(to), 0);
        next[from..to].copy_from_slice(bytes);
        file.versions.push((order, Arc::new(next)));
        Ok(())
    }

    /// Have a file be so long: what is behind that is gone, and what it did not have is zeros.
    pub fn set_length(&mut self, node: Node, bytes: usize) -> Result<()> {
        let order = self.next();
        let file = self.file_mut(node)?;
        let mut next = (*file.bytes()).clone();
        next.resize(bytes, 0);
        file.versions.push((order, Arc::new(next)));
        if bytes == 0 {
            // What was lost is not part of it any more: all that is written from now on is new.
            file.lost = None;
        }
        Ok(())
    }

    /// What was there when a sync began is on the disk: it has succeeded.
    pub fn synced(&mut self, node: Node, begun: Order) {
        match &mut self.nodes[node].what {
            What::File(file) if file.lost.is_some() => {}
            What::File(file) => drop(file.versions.drain(..last_before(&file.versions, begun))),
            What::Directory(names) => {
                names.values_mut().for_each(|Name(values)| drop(values.drain(..last_before(values, begun))));
            }
        }
    }

    /// The same for bytes that were written out.
    pub fn written_out(&mut self, node: Node, begun: Order) {
        let ended = self.next();
        if let Ok(file) = self.file_mut(node)
            && file.lost.is_none()
        {
            file.written_out = Some((begun, ended));
        }
    }

    /// A file could not be written to the disk. `forgets`: the cache forgets it too, so that what the disk has is seen.
    pub fn lose(&mut self, node: Node, process: usize, forgets: bool, pick: Pick<'_>) {
        let order = self.next();
        let Ok(file) = self.file_mut(node) else { return };
        let first = file.lost.map_or(process, |lost| lost.first);
        file.lost = Some(Lost { first, last: process, at: order });
        if forgets {
            let versions: Vec<&Vec<u8>> = file.versions.iter().map(|(_, bytes)| &**bytes).collect();
            let left = pages::torn(&versions, pick);
            file.damaged |= left != *file.bytes();
            file.versions = vec![(order, Arc::new(left))];
        }
    }

    /// The bytes of a file change by themselves.
    pub fn spoil(&mut self, node: Node, bytes: Vec<u8>) {
        let order = self.next();
        if let Ok(file) = self.file_mut(node) {
            file.damaged = true;
            file.versions = vec![(order, Arc::new(bytes))];
        }
    }

    /// The oldest that a power loss may leave under a name of a directory that it leaves, and whether it is damaged. None: perhaps nothing, or a
    /// part of a file.
    pub fn certain_oldest(&self, directory: Node, name: &str) -> Option<(Arc<Vec<u8>>, bool)> {
        let Name(values) = self.names(directory).ok()?.get(name)?;
        let mut oldest = None;
        for (since, node) in values {
            let file = self.file((*node)?).ok()?;
            let [(_, bytes)] = file.on_disk(*since) else { return None };
            oldest.get_or_insert_with(|| (bytes.clone(), file.damaged));
        }
        oldest
    }

    /// What a power loss may leave at a path, oldest first, with all that may be left of each file, and whether it is damaged. None: perhaps nothing.
    pub fn left(&self, path: &str) -> Vec<Option<Left>> {
        self.left_of(path).unwrap_or_else(|| vec![None])
    }

    /// The directory that a power loss leaves at a path. None: perhaps another one, or none.
    pub fn certain_directory(&self, path: &str) -> Option<Node> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(ROOT, |directory, name| {
            let Name(values) = self.names(directory).ok()?.get(name)?;
            let (_, first) = values.first()?;
            if values.iter().any(|(_, value)| value != first) {
                return None;
            }
            *first
        })
    }

    fn left_of(&self, path: &str) -> Option<Vec<Option<Left>>> {
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Name(values) = self.names(self.certain_directory(parents)?).ok()?.get(name)?;
        let left = |(since, node): &(Order, Option<Node>)| {
            let file = self.file((*node)?).ok()?;
            Some((file.on_disk(*since).iter().map(|(_, bytes)| bytes.clone()).collect(), file.damaged))
        };
        Some(values.iter().map(left).collect())
    }

    /// Lose the power: what is left of it all is on the disk.
    pub fn lose_power(&mut self, pick: Pick<'_>) {
        let order = self.next();
        let mut left = vec![Inode { what: What::Directory(BTreeMap::new()), times: self.nodes[ROOT].times, links: 1 }];
        self.leave(ROOT, ROOT, &mut left, order, pick);
        self.nodes = left;
    }

    fn leave(&self, from: Node, to: Node, left: &mut Vec<Inode>, order: Order, pick: Pick<'_>) {
        let Ok(names) = self.names(from) else { return };
        for (name, Name(values)) in names {
            let taken = if values.len() > 1 { pick(values.len()) } else { 0 };
            let Some((since, Some(node))) = values.get(taken) else { continue };
            let what = match &self.nodes[*node].what {
                What::Directory(_) => What::Directory(BTreeMap::new()),
                What::File(file) => {
                    let versions: Vec<&Vec<u8>> = file.on_disk(*since).iter().map(|(_, bytes)| &**bytes).collect();
                    let bytes = pages::torn(&versions, &mut *pick);
                    let damaged = file.damaged || bytes != *file.bytes();
                    let versions = vec![(order, Arc::new(bytes))];
                    What::File(File { versions, written_out: None, lost: None, damaged })
                }
            };
            left.push(Inode { what, times: self.nodes[*node].times, links: 1 });
            let copy = left.len() - 1;
            if let What::Directory(names) = &mut left[to].what {
                names.insert(name.clone(), Name(vec![(order, Some(copy))]));
            }
            self.leave(*node, copy, left, order, &mut *pick);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with two bytes in it.
    fn file(tree: &mut Tree, name: &str) -> Node {
        let node = tree.make(ROOT, name, What::File(File::default()), 0).unwrap();
        tree.write(node, 0, b"ab").unwrap();
        node
    }

    /// What a power loss may leave at a path, oldest first. None: perhaps nothing, or a part of a file.
    fn certain(tree: &Tree, path: &str) -> Option<Vec<Vec<u8>>> {
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
        let oldest = tree.certain_directory(parents).and_then(|directory| tree.certain_oldest(directory, name));
        let only = |left: Option<Left>| match left?.0.as_slice() {
            [bytes] => Some((**bytes).clone()),
            _ => None,
        };
        let all: Option<Vec<Vec<u8>>> = tree.left(path).into_iter().map(only).collect();
        assert_eq!(oldest.map(|(bytes, _)| (*bytes).clone()), all.as_ref().and_then(|all| all.first().cloned()));
        all
    }

    fn sync(tree: &mut Tree, node: Node) {
        tree.synced(node, tree.order());
    }

    #[test]
    fn a_file_is_certain_when_its_bytes_and_each_name_on_the_way_are_synced() {
        let mut tree = Tree::new();
        let folder = tree.make(ROOT, "folder", What::Directory(BTreeMap::new()), 0).unwrap();
        let node = file(&mut tree, "new");
        tree.enter(folder, "a", Some(node)).unwrap();
        for synced in [node, folder] {
            assert_eq!(certain(&tree, "folder/a"), None);
            sync(&mut tree, synced);
        }
        assert_eq!(certain(&tree, "folder/a"), None, "the folder has no name yet");
        sync(&mut tree, ROOT);
        assert_eq!(certain(&tree, "folder/a"), Some(vec![b"ab".to_vec()]));
        // What replaces it may come or not.
        let other = file(&mut tree, "other");
        tree.write(other, 2, b"c").unwrap();
        let begun = tree.order();
        tree.written_out(other, begun);
        tree.enter(folder, "a", Some(other)).unwrap();
        assert_eq!(certain(&tree, "folder/a"), Some(vec![b"ab".to_vec(), b"abc".to_vec()]));
        tree.enter(folder, "a", None).unwrap();
        assert_eq!(certain(&tree, "folder/a"), None);
    }

    #[test]
    fn a_sync_covers_what_came_before_it_began() {
        let mut tree = Tree::new();
        let node = file(&mut tree, "a");
        sync(&mut tree, ROOT);
        let begun = tree.order();
        tree.write(node, 2, b"c").unwrap();
        tree.synced(node, begun);
        assert_eq!(certain(&tree, "a"), None);
        sync(&mut tree, node);
        assert_eq!(certain(&tree, "a"), Some(vec![b"abc".to_vec()]));
    }

    #[test]
    fn what_a_sync_has_lost_no_later_one_brings_to_the_disk() {
        let mut tree = Tree::new();
        let node = file(&mut tree, "a");
        sync(&mut tree, ROOT);
        tree.lose(node, 0, false, &mut |_| 0);
        sync(&mut tree, node);
        assert_eq!((certain(&tree, "a"), &**tree.file(node).unwrap().bytes()), (None, &b"ab"[..]));
        // All that is written after it was emptied is new.
        let mut emptied = Tree::new();
        let node = file(&mut emptied, "a");
        emptied.lose(node, 0, false, &mut |_| 0);
        emptied.set_length(node, 0).unwrap();
        emptied.write(node, 0, b"c").unwrap();
        sync(&mut emptied, node);
        sync(&mut emptied, ROOT);
        assert_eq!(certain(&emptied, "a"), Some(vec![b"c".to_vec()]));
        // A power loss shows it, or the cache that forgets it.
        tree.lose_power(&mut |_| 0);
        let left = tree.look(ROOT, "a").unwrap();
        assert!(tree.file(left).unwrap().bytes().is_empty() && tree.file(left).unwrap().damaged);
        let mut tree = Tree::new();
        let node = file(&mut tree, "a");
        tree.lose(node, 0, true, &mut |options| options - 1);
        assert_eq!(&**tree.file(node).unwrap().bytes(), b"ab");
        tree.lose(node, 0, true, &mut |_| 0);
        assert!(!tree.file(node).unwrap().damaged, "it was the only version");
    }

    #[test]
    fn a_power_loss_leaves_both_halves_of_a_rename_one_or_none() {
        let mut seen = std::collections::BTreeSet::new();
        for picks in 0..4 {
            let mut tree = Tree::new();
            let node = file(&mut tree, "new");
            sync(&mut tree, node);
            sync(&mut tree, ROOT);
            tree.enter(ROOT, "a", Some(node)).unwrap();
            tree.enter(ROOT, "new", None).unwrap();
            let mut pick = 0;
            tree.lose_power(&mut |_| {
                pick += 1;
                picks >> (pick - 1) & 1
            });
            seen.insert(tree.list(ROOT).unwrap());
        }
        let expected: [&[&str]; 4] = [&[], &["a"], &["a", "new"], &["new"]];
        assert!(seen.iter().zip(expected).all(|(seen, expected)| seen == expected) && seen.len() == 4, "{seen:?}");
    }

    #[test]
    fn nothing_is_made_in_a_directory_that_was_removed() {
        let mut tree = Tree::new();
        let folder = tree.make(ROOT, "folder", What::Directory(BTreeMap::new()), 0).unwrap();
        tree.enter(ROOT, "folder", None).unwrap();
        assert_eq!(tree.inode(folder).links, 0);
        assert_eq!(tree.make(folder, "a", What::File(File::default()), 0), Err(Errno::NOENT));
    }
}
