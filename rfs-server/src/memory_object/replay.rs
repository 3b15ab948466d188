//! Replays the operations of a log into the inodes of a file system. No I/O, no locks, no clock.
//!
//! [`State::apply`] takes the operations in order. [`State::check_tree`] then checks that the
//! directories form a tree.
//!
//! # Concurrency
//! Recovery owns the value; one thread uses it.

use std::num::NonZeroI64;

use rfs_proto::{FileKind, ROOT_INO};

use super::{
    log::LogError,
    op::{Attributes, Content, Op},
    session_replay::SessionReplay,
};
use crate::{
    metadata::{
        id_map::ByNumber,
        namespace::{
            directory::Directory,
            inode::{Body, Inode, New},
            xattr::XattrName,
        },
    },
    space::alloc::range::Range,
};

/// Device number of a file without a name that may get one. Other regular files have 0. Servers
/// that do not know it ignore it: there, the file gets no name.
const NAMEABLE: u32 = 1;

/// The inodes and sessions at the current point of the log.
#[derive(Debug, Default)]
pub struct State {
    /// By inode number.
    pub inodes: ByNumber<Inode>,
    /// Highest inode number that was ever in use.
    pub last_ino: u64,
    /// End of the records of the table that were ever in use.
    pub slots: u32,
    /// Sessions and their state.
    pub sessions: SessionReplay,
}

/// Reason why the directories form no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTree {
    /// The root is missing, or is below another directory.
    #[error("there is no root directory")]
    Root,
    /// A name refers to an inode that does not exist.
    #[error("dangling directory entry in inode {0}")]
    Name(u64),
    /// An inode has more names than its link count. It would be freed while names are left.
    #[error("inode {0} has more names than links")]
    Links(u64),
    /// A directory has no name, several names, or is below itself.
    #[error("directory {0} is not reachable from the root directory by exactly one path")]
    Place(u64),
}

impl State {
    /// Applies an operation.
    ///
    /// # Errors
    /// [`LogError::Nonsense`] if the operation contradicts the state.
    pub fn apply(&mut self, op: Op<'_>) -> Result<(), LogError> {
        match op {
            Op::Inode(ino, attributes) => self.set(ino, &attributes, None)?,
            Op::Born(ino, attributes, age) => {
                let birth = attributes.ctime.wrapping_sub_unsigned(age);
                self.set(ino, &attributes, NonZeroI64::new(birth))?;
            }
            // `SessionReplay::present` drops open counts of inodes that do not exist.
            Op::Gone(ino) => drop(self.inodes.remove(&ino)),
            Op::Name(directory, name, entry) => {
                let directory = self.inodes.get_mut(&directory).map(|inode| &mut inode.body);
                let Some(Body::Directory(directory)) = directory else { return Err(LogError::Nonsense) };
                match entry {
                    Some((ino, cookie)) => directory.restore(name, ino, cookie),
                    None => directory.remove(name),
                }
            }
            Op::Extents(ino, (from, to), extents) => {
                let file = self.inodes.get_mut(&ino).map(|inode| &mut inode.body);
                let Some(Body::File(map)) = file else { return Err(LogError::Nonsense) };
                map.punch(from, to);
                for extent in extents {
                    if !map.is_hole(extent.file, extent.len) {
                        return Err(LogError::Nonsense);
                    }
                    map.insert(extent.file, &[Range { start: extent.arena, len: extent.len }]);
                }
                map.take_touched();
            }
            Op::Xattr(ino, name, value) => {
                let inode = self.inodes.get_mut(&ino).ok_or(LogError::Nonsense)?;
                let name = XattrName::parse(name).map_err(|_| LogError::Nonsense)?;
                let value = value.map(|value| value.to_vec());
                inode.xattrs_mut().restore(name, value).map_err(|_| LogError::Nonsense)?;
            }
            Op::Counters(ino, slots) => {
                self.last_ino = self.last_ino.max(ino);
                self.slots = self.slots.max(slots);
            }
            Op::Complete => {}
            Op::Session(session, mount) => self.sessions.attach(session, &mount),
            Op::Abandoned(session) => self.sessions.attach_abandoned(session),
            Op::Left(session) => self.sessions.end(session),
            Op::Open(session, ino, times, writes) => self.sessions.open(session, ino, (times, writes)),
            Op::Lock(ino, locked) => self.sessions.lock(ino, &locked),
            Op::Turn(session, slot, sequence, reply) => {
                self.sessions.turn(session, (slot, sequence), reply)?;
            }
            Op::Part(session, value) => self.sessions.part(session, value),
            Op::GivenUp(ino, ranges, holders) => self.sessions.give_up(ino, &ranges, &holders)?,
        }
        Ok(())
    }

    /// Checks that the directories form a tree with the root on top.
    ///
    /// Each name refers to an inode, no inode has more names than links, and each directory has one
    /// name, in its parent. Path walks to the root would not end otherwise.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_tree(&self) -> Result<(), NoTree> {
        let directory = |ino: &u64| self.inodes.get(ino).and_then(Inode::directory);
        if directory(&ROOT_INO).is_none_or(|root| root.parent != ROOT_INO) {
            return Err(NoTree::Root);
        }
        let mut named = ByNumber::<u32>::with_capacity_and_hasher(self.inodes.len(), Default::default());
        for (&ino, inode) in &self.inodes {
            for (_, _, child) in inode.directory().into_iter().flat_map(|directory| directory.after(0)) {
                let Some(inode) = self.inodes.get(&child) else { return Err(NoTree::Name(ino)) };
                let names = named.entry(child).or_default();
                *names += 1;
                if let Some(below) = inode.directory()
                    && (child == ROOT_INO || below.parent != ino || *names > 1)
                {
                    return Err(NoTree::Place(child));
                }
                if *names > inode.nlink {
                    return Err(NoTree::Links(child));
                }
            }
        }
        // Each directory has a name in its parent now, so only cycles are left to find.
        let mut below_root: ByNumber<()> = [(ROOT_INO, ())].into_iter().collect();
        // A removed directory has no name and is empty. It exists for sessions that may use its
        // number.
        let is_removed = |ino: &u64, inode: &Inode| {
            inode.nlink == 0 && inode.directory().is_some_and(Directory::is_empty) && !named.contains_key(ino)
        };
        let lies_somewhere =
            |(ino, inode): &(&u64, &Inode)| directory(ino).is_some() && !is_removed(ino, inode);
        for (&ino, _) in self.inodes.iter().filter(lies_somewhere) {
            let (mut at, mut path) = (ino, Vec::new());
            while !below_root.contains_key(&at) {
                path.push(at);
                match directory(&at) {
                    Some(one) if named.contains_key(&at) && path.len() <= self.inodes.len() => {
                        at = one.parent
                    }
                    _ => return Err(NoTree::Place(ino)),
                }
            }
            below_root.extend(path.into_iter().map(|ino| (ino, ())));
        }
        Ok(())
    }

    fn set(
        &mut self,
        ino: u64,
        attributes: &Attributes<'_>,
        birth: Option<NonZeroI64>,
    ) -> Result<(), LogError> {
        let &Attributes { kind, perm, nlink, uid, gid, rdev, atime, mtime, ctime, slot, .. } = attributes;
        self.last_ino = self.last_ino.max(ino);
        self.slots = self.slots.max(slot.checked_add(1).ok_or(LogError::Nonsense)?);
        let inode = self.inodes.entry(ino).or_insert_with(|| {
            let new = New { kind, perm, umask: 0, uid, gid, rdev, target: b"", slot };
            Inode::new(new, ino, ctime)
        });
        if inode.kind != kind {
            return Err(LogError::Nonsense);
        }
        (inode.perm, inode.nlink, inode.uid, inode.gid, inode.rdev) = (perm, nlink, uid, gid, rdev);
        (inode.atime, inode.mtime, inode.ctime, inode.slot) = (atime, mtime, ctime, slot);
        inode.birth = birth;
        if kind == FileKind::Regular {
            inode.is_nameable = nlink == 0 && rdev == NAMEABLE;
            inode.rdev = 0;
        }
        if attributes.xattr_version > 0 {
            inode.xattrs_mut().restore_version(attributes.xattr_version);
        }
        match (&mut inode.body, attributes.content) {
            (Body::File(map), Content::File(needed_to, kept_to)) => map.restore_ends(needed_to, kept_to),
            (Body::Directory(directory), Content::Directory(parent, last_cookie)) => {
                directory.parent = parent;
                directory.restore_last_cookie(last_cookie);
            }
            (Body::Symlink(target), Content::Symlink(bytes)) => *target = bytes.into(),
            (Body::Special, Content::Special) => {}
            _ => return Err(LogError::Nonsense),
        }
        Ok(())
    }
}

/// Returns the operation that describes an inode. The birth of a new inode takes one byte.
pub fn inode_op(ino: u64, inode: &Inode) -> Op<'_> {
    let attributes = attributes(inode);
    match inode.birth {
        Some(birth) => Op::Born(ino, attributes, inode.ctime.wrapping_sub(birth.get()).cast_unsigned()),
        None => Op::Inode(ino, attributes),
    }
}

/// Returns the attributes of an inode as the log stores them, without its birth.
pub fn attributes(inode: &Inode) -> Attributes<'_> {
    let &Inode { kind, perm, nlink, uid, gid, rdev, atime, mtime, ctime, slot, .. } = inode;
    let content = match &inode.body {
        Body::File(map) => Content::File(map.space().needed_to, map.kept_to()),
        Body::Directory(directory) => Content::Directory(directory.parent, directory.last_cookie()),
        Body::Symlink(target) => Content::Symlink(target),
        Body::Special => Content::Special,
    };
    let rdev = if inode.is_nameable { NAMEABLE } else { rdev };
    let xattr_version = inode.xattrs.as_ref().map_or(0, |xattrs| xattrs.version());
    Attributes { kind, perm, nlink, uid, gid, rdev, atime, mtime, ctime, slot, xattr_version, content }
}

/// Returns the names of a directory as the log stores them.
pub fn names(directory: &Directory) -> impl Iterator<Item = (&[u8], (u64, u64))> + '_ {
    directory.after(0).map(|(cookie, name, ino)| (name, (ino, cookie)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_object::op;

    /// Returns a state with directories (inode, parent) and names (directory, name, inode).
    fn state(directories: &[(u64, u64)], names: &[(u64, &str, u64)]) -> State {
        let mut state = State::default();
        for (slot, &(ino, parent)) in directories.iter().enumerate() {
            let (kind, content) = (FileKind::Directory, Content::Directory(parent, 9));
            let slot = slot as u32;
            let (perm, nlink, uid, gid, rdev, atime, mtime, ctime) = (0o755, 2, 0, 0, 0, 0, 0, 0);
            let attributes = Attributes {
                kind,
                perm,
                nlink,
                uid,
                gid,
                rdev,
                atime,
                mtime,
                ctime,
                slot,
                xattr_version: 0,
                content,
            };
            state.apply(Op::Inode(ino, attributes)).unwrap();
        }
        for (cookie, (directory, name, ino)) in (3..).zip(names) {
            state.apply(Op::Name(*directory, name.as_bytes(), Some((*ino, cookie)))).unwrap();
        }
        state
    }

    /// A directory below itself would send the server on an endless walk under the lock of the
    /// tree.
    #[test]
    fn directories_make_a_tree() {
        let check = |directories: &[_], names: &[_]| state(directories, names).check_tree();
        assert_eq!(check(&[(1, 1), (2, 1), (3, 2)], &[(1, "a", 2), (2, "b", 3)]), Ok(()));
        assert_eq!(check(&[(2, 2)], &[]), Err(NoTree::Root));
        assert_eq!(check(&[(1, 2), (2, 1)], &[(1, "a", 2), (2, "b", 1)]), Err(NoTree::Root));
        assert_eq!(check(&[(1, 1)], &[(1, "a", 2)]), Err(NoTree::Name(1)));
        // A cycle beside the root.
        let circle = check(&[(1, 1), (2, 3), (3, 2)], &[(2, "a", 3), (3, "b", 2)]);
        assert!(matches!(circle, Err(NoTree::Place(2 | 3))), "{circle:?}");
        assert_eq!(check(&[(1, 1), (2, 2)], &[(2, "a", 2)]), Err(NoTree::Place(2)));
        assert_eq!(check(&[(1, 1), (2, 1)], &[(1, "a", 2), (1, "b", 2)]), Err(NoTree::Place(2)), "two names");
        assert_eq!(check(&[(1, 1), (2, 1)], &[(1, "a", 2), (2, "b", 1)]), Err(NoTree::Place(1)));
        assert_eq!(check(&[(1, 1), (2, 1)], &[]), Err(NoTree::Place(2)), "no name");
        let removed = |names: &[_]| {
            let mut state = state(&[(1, 1), (2, 1), (3, 2)], names);
            state.inodes.get_mut(&2).unwrap().nlink = 0;
            state.inodes.get_mut(&3).unwrap().nlink = 0;
            state.check_tree()
        };
        assert_eq!(removed(&[]), Ok(()), "removed directories have no name");
        assert_eq!(removed(&[(1, "a", 2)]), Err(NoTree::Links(2)));
        assert!(removed(&[(2, "a", 3)]).is_err(), "nor has anything a name in them");
        let elsewhere = check(&[(1, 1), (2, 1), (3, 1)], &[(1, "a", 2), (2, "b", 3)]);
        assert_eq!(elsewhere, Err(NoTree::Place(3)));
    }

    /// Detects a file without a name that cannot get one after a restart, and an unlinked file that
    /// can.
    #[test]
    fn a_file_that_may_get_a_name_is_told_from_an_unlinked_one() {
        let root = state(&[(1, 1)], &[]).inodes[&1].clone();
        let (kind, content) = (FileKind::Regular, Content::File(0, 0));
        let file = Attributes { kind, nlink: 0, content, ..attributes(&root) };
        for is_nameable in [false, true] {
            let mut state = State::default();
            state.apply(Op::Inode(7, file)).unwrap();
            state.inodes.get_mut(&7).unwrap().is_nameable = is_nameable;
            let before = state.inodes[&7].clone();
            let mut next = State::default();
            next.apply(Op::Inode(7, attributes(&before))).unwrap();
            assert_eq!((next.inodes[&7].is_nameable, next.inodes[&7].rdev), (is_nameable, 0));
        }
    }

    /// Detects a birth that moves with ctime, and one that costs a new file more than a byte.
    #[test]
    fn the_birth_of_an_inode_survives_its_log() {
        let mut inode = state(&[(1, 1)], &[]).inodes[&1].clone();
        let logged = |inode: &Inode| {
            let mut bytes = Vec::new();
            op::encode(&inode_op(1, inode), &mut bytes);
            let mut next = State::default();
            op::decode(&bytes).for_each(|op| next.apply(op.unwrap()).unwrap());
            (next.inodes[&1].birth, bytes.len())
        };
        let now = 1_800_000_000_000_000_000;
        (inode.ctime, inode.birth) = (now, None);
        let (unknown, bytes) = logged(&inode);
        assert_eq!(unknown, None, "an inode of an older log");
        inode.birth = NonZeroI64::new(now);
        assert_eq!(logged(&inode), (inode.birth, bytes + 1));
        const YEAR: i64 = 365 * 86_400 * 1_000_000_000;
        inode.ctime = now + 2 * YEAR;
        assert_eq!(logged(&inode), (inode.birth, bytes + 8));
        // The owner may set ctime's neighbours to anything, and clocks may go back.
        for ctime in [i64::MIN, -1, now - 1, i64::MAX] {
            inode.ctime = ctime;
            assert_eq!(logged(&inode).0, inode.birth, "{ctime}");
        }
    }

    /// A listing would look forever for an inode that was freed while it has a name.
    #[test]
    fn nothing_has_more_names_than_links() {
        let with_file = |nlink, names: &[&str]| {
            let mut state = state(&[(1, 1)], &[]);
            let root = state.inodes[&1].clone();
            let (kind, content) = (FileKind::Regular, Content::File(0, 0));
            let file = Attributes { kind, nlink, slot: 5, content, ..attributes(&root) };
            state.apply(Op::Inode(7, file)).unwrap();
            for (cookie, name) in (1..).zip(names) {
                state.apply(Op::Name(1, name.as_bytes(), Some((7, cookie)))).unwrap();
            }
            state.check_tree()
        };
        assert_eq!(with_file(2, &["a", "b"]), Ok(()));
        assert_eq!(with_file(2, &["a"]), Ok(()));
        assert_eq!(with_file(0, &[]), Ok(()));
        assert_eq!(with_file(0, &["a"]), Err(NoTree::Links(7)));
        assert_eq!(with_file(2, &["a", "b", "c"]), Err(NoTree::Links(7)));
    }
}
