//! Files that may be evicted: regular files with a name that no session has open. No I/O, no locks,
//! no clock.
//!
//! [`Candidates`] keeps the exact order of their last uses, the time at which each becomes too old,
//! and their names. A use is the last close of a file. Open files are in no list. Files that were
//! found to be pinned wait in a list of their own until a pin goes.
//!
//! Memory is bounded by the number of inodes: files are known by the slot of their record.
//!
//! # Concurrency
//! None; the lock in [`Eviction`](super::Eviction) protects the value.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::use_list::{ListName, UseLists};

/// Files with more names than this are no candidates, now or later. They would need too large a
/// transaction, and each change of a name takes time in proportion to their number.
const MAX_NAMES: usize = 1000;

/// Name of a file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The directory.
    pub parent: u64,
    /// The name.
    pub name: Box<[u8]>,
}

/// A file, by the slot of its record and its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Slot of the record.
    pub slot: u32,
    /// Inode number.
    pub ino: u64,
}

/// A file to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file.
    pub file: FileId,
    /// All its names.
    pub homes: Vec<Home>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    ino: u64,
    homes: SmallVec<[Home; 1]>,
    /// It has had too many names: its names are not kept, and it is in no list.
    has_too_many_names: bool,
    /// Time at which the file becomes too old, while it is in a list.
    due: i64,
    /// Bytes of the file, while it is in a list.
    bytes: u64,
}

/// The files that may be evicted.
#[derive(Debug, Default)]
pub struct Candidates {
    nodes: Vec<Node>,
    lists: UseLists,
    /// Unpinned files by the time at which they become too old; empty without a limit of age.
    by_age: BTreeSet<(i64, u32)>,
    /// Nanoseconds from the last change of a file until it goes.
    ttl: Option<i64>,
    /// Bytes of the unpinned files.
    bytes: u64,
    /// Directories that are pinned.
    pins: BTreeSet<u64>,
}

impl Candidates {
    /// Returns no files. `ttl`: nanoseconds from the last change of a file until it goes.
    pub fn new(ttl: Option<i64>) -> Candidates {
        Candidates { ttl, ..Candidates::default() }
    }

    /// Records that a file has lost the names `gone`, and then got the names `new`. A file that
    /// gets too many names is no candidate any more.
    pub fn renamed(&mut self, file: FileId, gone: &[(u64, &[u8])], new: &[(u64, &[u8])]) {
        let node = self.node(file);
        if node.has_too_many_names {
            return;
        }
        node.homes.retain(|home| !gone.contains(&(home.parent, &*home.name)));
        node.homes.extend(new.iter().map(|&(parent, name)| Home { parent, name: name.into() }));
        if node.homes.len() > MAX_NAMES {
            (node.homes, node.has_too_many_names) = (SmallVec::new(), true);
            self.leave(file.slot);
        }
    }

    /// Records that a file was used, and that no session has it open: it becomes the most recently
    /// used file. `changed`: the time of its last change.
    pub fn used(&mut self, file: FileId, changed: i64, bytes: u64) {
        self.leave(file.slot);
        if self.node(file).has_too_many_names {
            return;
        }
        self.enter(file.slot, changed, bytes);
        self.lists.push_last(ListName::Unused, file.slot);
    }

    /// Makes a file that no session has open a candidate, if it is none. A candidate keeps its
    /// place. A file that was found to be pinned comes first, so that its pins are looked at again.
    pub fn closed(&mut self, file: FileId, changed: i64, bytes: u64) {
        match self.lists.list_of(file.slot) {
            Some(ListName::Unused) => {}
            Some(ListName::Pinned) => self.unpin(file.slot),
            None => self.used(file, changed, bytes),
        }
    }

    /// Records that a session has opened a file: it may not go.
    pub fn opened(&mut self, slot: u32) {
        self.leave(slot);
    }

    /// Moves a candidate to the end of the order, because it would free no space now.
    pub fn pass_over(&mut self, slot: u32) {
        if self.lists.list_of(slot) == Some(ListName::Unused) {
            self.lists.push_last(ListName::Unused, slot);
        }
    }

    /// Removes a file that has lost its last name.
    pub fn forget(&mut self, slot: u32) {
        self.leave(slot);
        if let Some(node) = self.nodes.get_mut(slot as usize) {
            *node = Node::default();
        }
    }

    /// Returns the least recently used file.
    pub fn oldest(&self) -> Option<Candidate> {
        self.candidate(self.lists.first(ListName::Unused)?)
    }

    /// Returns the file that became too old first, if any is too old now.
    pub fn expired(&self, now: i64) -> Option<Candidate> {
        let &(due, slot) = self.by_age.first()?;
        if due <= now { self.candidate(slot) } else { None }
    }

    /// Returns the time at which the next file becomes too old.
    pub fn next_expiry(&self) -> Option<i64> {
        self.by_age.first().map(|&(due, _)| due)
    }

    /// Returns true if a file may still go under these names.
    pub fn is_current(&self, candidate: &Candidate) -> bool {
        let Candidate { file: FileId { slot, ino }, homes } = candidate;
        let listed = self.lists.list_of(*slot) == Some(ListName::Unused);
        listed && self.nodes.get(*slot as usize).is_some_and(|n| n.ino == *ino && n.homes[..] == homes[..])
    }

    /// Records that a file was changed later than its place by age says. Returns false if it is too
    /// old all the same.
    pub fn changed(&mut self, slot: u32, changed: i64, now: i64) -> bool {
        let (Some(ttl), Some(node)) = (self.ttl, self.nodes.get_mut(slot as usize)) else { return true };
        let due = changed.saturating_add(ttl);
        if self.by_age.remove(&(node.due, slot)) {
            node.due = due;
            self.by_age.insert((due, slot));
        }
        due > now
    }

    /// Records that a file is pinned. It is no candidate until a pin goes, or it is used.
    pub fn park(&mut self, slot: u32) {
        let Some(node) = self.nodes.get(slot as usize) else { return };
        if self.lists.list_of(slot) == Some(ListName::Unused) {
            self.bytes -= node.bytes;
            self.by_age.remove(&(node.due, slot));
            self.lists.push_last(ListName::Pinned, slot);
        }
    }

    /// Makes all pinned files candidates again, behind the others, in their order. Most of them are
    /// likely still pinned.
    pub fn look_again(&mut self) {
        let pinned: Vec<u32> = self.lists.iter(ListName::Pinned).collect();
        for slot in pinned {
            self.unpin(slot);
            self.lists.push_last(ListName::Unused, slot);
        }
    }

    /// Makes all pinned files candidates again, before the others, in their order.
    pub fn unpark_all(&mut self) {
        let pinned: Vec<u32> = self.lists.iter(ListName::Pinned).collect();
        pinned.into_iter().rev().for_each(|slot| self.unpin(slot));
    }

    /// Records that a directory is pinned.
    pub fn pin(&mut self, directory: u64) {
        self.pins.insert(directory);
    }

    /// Records that a directory is not pinned, or is gone.
    pub fn unpin_directory(&mut self, directory: u64) {
        if self.pins.remove(&directory) {
            self.unpark_all();
        }
    }

    /// Returns true if any directory is pinned.
    pub fn has_pins(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Returns true if any of these directories is pinned.
    pub fn is_pinned(&self, directories: &[u64]) -> bool {
        directories.iter().any(|directory| self.pins.contains(directory))
    }

    /// Returns the number of files that may go, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        (self.lists.len(ListName::Unused), self.bytes)
    }

    /// Returns all files that may go, in order.
    #[cfg(test)]
    pub fn all(&self) -> Vec<Candidate> {
        self.lists.iter(ListName::Unused).filter_map(|slot| self.candidate(slot)).collect()
    }

    fn candidate(&self, slot: u32) -> Option<Candidate> {
        let node = self.nodes.get(slot as usize)?;
        Some(Candidate { file: FileId { slot, ino: node.ino }, homes: node.homes.to_vec() })
    }

    /// Returns the node of a file. A node of an earlier file in the slot is replaced.
    fn node(&mut self, FileId { slot, ino }: FileId) -> &mut Node {
        let at = slot as usize;
        if at >= self.nodes.len() {
            self.nodes.resize_with(at + 1, Node::default);
        }
        if self.nodes[at].ino != ino {
            self.leave(slot);
            self.nodes[at] = Node { ino, ..Node::default() };
        }
        &mut self.nodes[at]
    }

    /// Counts a file that is about to enter the list of unused files.
    fn enter(&mut self, slot: u32, changed: i64, bytes: u64) {
        let Some(node) = self.nodes.get_mut(slot as usize) else { return };
        node.bytes = bytes;
        self.bytes += bytes;
        if let Some(ttl) = self.ttl {
            node.due = changed.saturating_add(ttl);
            self.by_age.insert((node.due, slot));
        }
    }

    fn unpin(&mut self, slot: u32) {
        if let (Some(node), Some(ListName::Pinned)) =
            (self.nodes.get(slot as usize), self.lists.list_of(slot))
        {
            self.bytes += node.bytes;
            if self.ttl.is_some() {
                self.by_age.insert((node.due, slot));
            }
            self.lists.push_first(ListName::Unused, slot);
        }
    }

    /// Takes a file out of its list.
    fn leave(&mut self, slot: u32) {
        let list = self.lists.list_of(slot);
        if let (Some(ListName::Unused), Some(node)) = (list, self.nodes.get(slot as usize)) {
            self.bytes -= node.bytes;
            self.by_age.remove(&(node.due, slot));
        }
        self.lists.remove(slot);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: i64 = 10;

    fn id(slot: u32) -> FileId {
        FileId { slot, ino: 100 + u64::from(slot) }
    }

    type File = (u32, i64, u64);

    /// The candidates as plain lists of slot, time of the last change and bytes.
    #[derive(Clone, Debug, Default)]
    struct Model {
        unused: Vec<File>,
        pinned: Vec<File>,
    }

    impl Model {
        fn step(&mut self, kind: u8, file: File) {
            let find = |files: &[File]| files.iter().position(|other| other.0 == file.0);
            let (unused, pinned) = (find(&self.unused), find(&self.pinned));
            match kind {
                3 => self.pinned.extend(unused.map(|at| self.unused.remove(at))),
                4 if unused.is_some() => {}
                4 if pinned.is_some() => {
                    let file = pinned.map(|at| self.pinned.remove(at));
                    self.unused.splice(0..0, file);
                }
                6 => self.unused.append(&mut self.pinned),
                5 => {
                    self.pinned.append(&mut self.unused);
                    self.unused = std::mem::take(&mut self.pinned);
                }
                _ => {
                    self.unused.retain(|other| other.0 != file.0);
                    self.pinned.retain(|other| other.0 != file.0);
                    self.unused.extend(Some(file).filter(|_| matches!(kind, 0 | 4)));
                }
            }
        }
    }

    proptest! {
        /// Order of use, expiry and totals agree with plain lists.
        #[test]
        fn agrees_with_lists(
            steps in proptest::collection::vec((0..7u8, 0..8u32, 0..40i64, 0..5u64), 1..150),
        ) {
            let mut files = Candidates::new(Some(TTL));
            let mut model = Model::default();
            for (kind, slot, time, bytes) in steps {
                match kind {
                    0 => files.used(id(slot), time, bytes),
                    1 => files.opened(slot),
                    2 => files.forget(slot),
                    3 => files.park(slot),
                    4 => files.closed(id(slot), time, bytes),
                    6 => files.look_again(),
                    _ => files.unpark_all(),
                }
                model.step(kind, (slot, time, bytes));
                let order: Vec<u32> = model.unused.iter().map(|file| file.0).collect();
                prop_assert_eq!(&files.lists.iter(ListName::Unused).collect::<Vec<_>>(), &order);
                prop_assert_eq!(files.oldest().map(|file| file.file.slot), order.first().copied());
                let sum = model.unused.iter().map(|file| file.2).sum::<u64>();
                prop_assert_eq!(files.totals(), (order.len() as u64, sum));
                let due = model.unused.iter().map(|file| file.1 + TTL).min();
                prop_assert_eq!(files.next_expiry(), due);
                prop_assert_eq!(files.expired(30).is_some(), due.is_some_and(|due| due <= 30));
            }
        }
    }

    #[test]
    fn names_follow_links_and_renames() {
        let mut files = Candidates::new(None);
        let names = |files: &Candidates| -> Vec<(u64, Vec<u8>)> {
            let homes = files.oldest().expect("a file").homes;
            homes.into_iter().map(|home| (home.parent, home.name.to_vec())).collect()
        };
        files.renamed(id(1), &[], &[(1, b"a")]);
        files.closed(id(1), 0, 7);
        let before = files.oldest().expect("a file");
        files.renamed(id(1), &[(2, b"b")], &[(2, b"b")]);
        assert_eq!(names(&files), [(1, b"a".to_vec()), (2, b"b".to_vec())]);
        assert!(!files.is_current(&before), "it has another name now");
        files.renamed(id(1), &[(1, b"a"), (1, b"c")], &[(1, b"c")]);
        assert_eq!(names(&files), [(2, b"b".to_vec()), (1, b"c".to_vec())]);
        assert!(files.is_current(&files.oldest().expect("a file")));
        files.opened(1);
        assert_eq!((files.oldest(), files.totals()), (None, (0, 0)));
        // Another file in the slot has none of these names.
        files.renamed(FileId { slot: 1, ino: 9 }, &[], &[(1, b"z")]);
        files.used(FileId { slot: 1, ino: 9 }, 0, 1);
        assert_eq!(names(&files), [(1, b"z".to_vec())]);
    }

    /// The list of names is bounded, and so is the transaction that removes them.
    #[test]
    fn a_file_with_too_many_names_is_no_candidate() {
        let mut files = Candidates::new(Some(TTL));
        let link = |files: &mut Candidates, at: usize| {
            files.renamed(id(1), &[], &[(1, format!("n{at}").as_bytes())]);
            files.closed(id(1), 0, 7);
        };
        (0..MAX_NAMES).for_each(|at| link(&mut files, at));
        assert_eq!(files.oldest().map(|file| file.homes.len()), Some(MAX_NAMES));
        link(&mut files, MAX_NAMES);
        assert_eq!((files.oldest(), files.expired(99), files.totals()), (None, None, (0, 0)));
        assert!(files.nodes[1].homes.is_empty(), "its names are not kept");
        files.renamed(id(1), &[(1, b"n7")], &[]);
        files.used(id(1), 0, 7);
        assert_eq!(files.totals(), (0, 0), "it may have names that are not known");
        files.forget(1);
        link(&mut files, 0);
        assert_eq!(files.totals(), (1, 7), "the file is gone, and another has its slot");
    }

    #[test]
    fn a_changed_file_becomes_older_later() {
        let mut files = Candidates::new(Some(TTL));
        files.used(id(1), 5, 1);
        files.used(id(2), 8, 1);
        assert_eq!(files.expired(15).map(|file| file.file.slot), Some(1));
        assert!(files.changed(1, 9, 15), "it was written after its close");
        assert_eq!((files.expired(17), files.next_expiry()), (None, Some(18)));
        assert!(!files.changed(2, 8, 18), "it was not");
        assert_eq!(files.expired(18).map(|file| file.file.slot), Some(2));
    }

    #[test]
    fn pins_of_directories() {
        let mut files = Candidates::new(None);
        files.used(id(1), 0, 3);
        files.used(id(2), 0, 4);
        files.pin(70);
        assert!(files.has_pins() && files.is_pinned(&[1, 70]) && !files.is_pinned(&[1, 71]));
        files.park(1);
        assert_eq!((files.totals(), files.oldest().map(|file| file.file.slot)), ((1, 4), Some(2)));
        files.unpin_directory(71);
        assert_eq!(files.totals(), (1, 4), "another directory");
        files.unpin_directory(70);
        assert_eq!((files.totals(), files.oldest().map(|file| file.file.slot)), ((2, 7), Some(1)));
        assert!(!files.has_pins());
    }
}
