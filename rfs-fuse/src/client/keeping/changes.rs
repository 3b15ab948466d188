//! The requests of this client's own whose replies the server may hold back, until other clients have given up what they keep.
//!
//! The kernel holds the locks of directories and pages over such a request. Who drops something from the kernel on behalf of
//! another client must not wait for one of those: the two would wait for each other.

use std::{collections::HashMap, time::Duration};

use parking_lot::{Condvar, Mutex};
use rfs_proto::{Attr, FileKind, RenameFlags, Request};
use smallvec::{SmallVec, smallvec};

/// So many at once. Each keeps one of the session's places for calls, of which started calls take half: one has to be left to
/// say with that something is kept no longer.
const AT_ONCE: u32 = 6;

/// What a request changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect<'r> {
    /// Names, and whether one does not exist if the request succeeds.
    pub(crate) names: SmallVec<[(u64, &'r [u8], bool); 2]>,
    /// An inode.
    pub(crate) ino: Option<u64>,
    /// What a name stood for may have been a directory, which is no more.
    pub(crate) may_remove_a_directory: bool,
}

impl<'r> Effect<'r> {
    /// `None`: nothing that another client may keep.
    pub(crate) fn of(request: &Request<'r>) -> Option<Effect<'r>> {
        let names = match *request {
            Request::Mknod { parent, name, .. }
            | Request::Create { parent, name, .. }
            | Request::Mkdir { parent, name, .. }
            | Request::Symlink { parent, name, .. }
            | Request::Link { parent, name, .. } => smallvec![(parent, name, false)],
            Request::Unlink { parent, name } | Request::Rmdir { parent, name } => {
                smallvec![(parent, name, true)]
            }
            Request::Rename { parent, name, new_parent, new_name, flags, whiteout } => {
                // Where the other name exists it may be one of the same inode by now: then nothing has happened.
                let gone = flags == RenameFlags::NOREPLACE && whiteout.is_none();
                smallvec![(parent, name, gone), (new_parent, new_name, false)]
            }
            Request::SetAttr { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Fallocate { .. }
            | Request::Copy { .. }
            | Request::Open { write: true, .. } => SmallVec::new(),
            _ => return None,
        };
        let ino = match *request {
            Request::SetAttr { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. }
            | Request::Fallocate { ino, .. }
            | Request::Link { ino, .. }
            | Request::Open { ino, .. } => Some(ino),
            Request::Copy { to, .. } => Some(to),
            _ => None,
        };
        let may_remove_a_directory = matches!(request, Request::Rmdir { .. } | Request::Rename { .. });
        Some(Effect { names, ino, may_remove_a_directory })
    }

    /// Attributes that came with the reply are those of a directory in which a name changed.
    pub(crate) fn is_of(&self, attr: &Attr) -> bool {
        attr.kind == FileKind::Directory && self.names.iter().any(|(parent, ..)| *parent == attr.ino)
    }

    /// The inodes whose attributes change, and whose locks the kernel may hold meanwhile.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = u64> {
        self.names.iter().map(|(parent, ..)| *parent).chain(self.ino)
    }
}

/// Those under way.
#[derive(Debug, Default)]
pub struct UnderWay {
    by_ino: HashMap<u64, u32>,
    count: u32,
    ended: u64,
    /// Somebody wants to be woken.
    waiting: bool,
}

impl UnderWay {
    /// True if one changes this inode, or a name in this directory.
    pub fn changes(&self, ino: u64) -> bool {
        self.by_ino.contains_key(&ino)
    }

    /// How many have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Knows which are under way.
#[derive(Debug, Default)]
pub struct Changes {
    under_way: Mutex<UnderWay>,
    moved: Condvar,
}

impl Changes {
    /// One begins, once there are few enough under way.
    pub(crate) fn begin(&self, effect: &Effect<'_>) -> Change<'_> {
        let inodes: SmallVec<[u64; 3]> = effect.inodes().collect();
        let mut under_way = self.under_way.lock();
        // Also who waits here has locks in the kernel.
        for &ino in &inodes {
            *under_way.by_ino.entry(ino).or_default() += 1;
        }
        self.tell(&mut under_way);
        while under_way.count >= AT_ONCE {
            under_way.waiting = true;
            self.moved.wait(&mut under_way);
        }
        under_way.count += 1;
        Change { changes: self, inodes }
    }

    fn tell(&self, under_way: &mut UnderWay) {
        if std::mem::take(&mut under_way.waiting) {
            self.moved.notify_all();
        }
    }

    /// Waits until `is_so`, which is asked again whenever a change begins or ends or somebody
    /// [says so](Self::look_again), and after `at_most`, if that says something.
    pub fn wait_until(
        &self,
        at_most: impl Fn(&UnderWay) -> Option<Duration>,
        mut is_so: impl FnMut(&UnderWay) -> bool,
    ) {
        let mut under_way = self.under_way.lock();
        while !is_so(&under_way) {
            under_way.waiting = true;
            match at_most(&under_way) {
                Some(time) => {
                    self.moved.wait_for(&mut under_way, time);
                }
                None => self.moved.wait(&mut under_way),
            }
        }
    }

    /// Whoever waits is to look again.
    pub fn look_again(&self) {
        self.tell(&mut self.under_way.lock());
    }
}

/// One that is under way.
#[derive(Debug)]
pub(crate) struct Change<'c> {
    changes: &'c Changes,
    inodes: SmallVec<[u64; 3]>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut under_way = self.changes.under_way.lock();
        under_way.count -= 1;
        under_way.ended += 1;
        for ino in &self.inodes {
            if let Some(count) = under_way.by_ino.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    under_way.by_ino.remove(ino);
                }
            }
        }
        self.changes.tell(&mut under_way);
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::Owner;

    use super::*;

    #[test]
    fn what_is_under_way_is_known() {
        let changes = Changes::default();
        let renamed = |flags, whiteout| {
            let (parent, new_parent) = (1, 2);
            Request::Rename { parent, name: b"a", new_parent, new_name: b"b", flags, whiteout }
        };
        let rename = |flags| renamed(flags, None);
        let effect = Effect::of(&rename(RenameFlags::empty())).expect("an effect");
        assert_eq!(effect.names[..], [(1, &b"a"[..], false), (2, &b"b"[..], false)]);
        let to_nothing = Effect::of(&rename(RenameFlags::NOREPLACE)).expect("an effect");
        assert_eq!(to_nothing.names[..], [(1, &b"a"[..], true), (2, &b"b"[..], false)]);
        let whiteout = Effect::of(&renamed(RenameFlags::NOREPLACE, Some(Owner { uid: 0, gid: 0 })));
        assert_eq!(whiteout.expect("an effect").names[..], [(1, &b"a"[..], false), (2, &b"b"[..], false)]);
        let swap = Effect::of(&rename(RenameFlags::EXCHANGE)).expect("an effect");
        assert_eq!(swap.names[..], [(1, &b"a"[..], false), (2, &b"b"[..], false)]);
        let (one, two) = (changes.begin(&effect), changes.begin(&swap));
        let seen = |ino| changes.under_way.lock().changes(ino);
        assert!(seen(1) && seen(2) && !seen(3));
        drop(one);
        assert!(seen(1));
        drop(two);
        assert!(!seen(1) && changes.under_way.lock().by_ino.is_empty());
        assert_eq!(changes.under_way.lock().count(), 0);
        assert_eq!(Effect::of(&Request::Lookup { parent: 1, name: b"a" }), None);
    }

    #[test]
    fn there_are_not_too_many_at_once() {
        let changes = Changes::default();
        let effect = Effect::of(&Request::Unlink { parent: 5, name: b"x" }).expect("an effect");
        let mut all: Vec<Change<'_>> = (0..AT_ONCE).map(|_| changes.begin(&effect)).collect();
        std::thread::scope(|scope| {
            let other = Effect::of(&Request::Unlink { parent: 6, name: b"x" }).expect("an effect");
            let changes = &changes;
            let one_more = scope.spawn(move || drop(changes.begin(&other)));
            changes.wait_until(|_| None, |under_way| under_way.changes(6));
            assert_eq!(changes.under_way.lock().count(), AT_ONCE);
            all.pop();
            one_more.join().expect("it gets its turn");
        });
    }

    #[test]
    fn who_waits_hears_of_a_change_that_begins() {
        let changes = Changes::default();
        let effect = Effect::of(&Request::Unlink { parent: 5, name: b"x" }).expect("an effect");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| changes.wait_until(|_| None, |under_way| under_way.changes(5)));
            let change = changes.begin(&effect);
            waiter.join().expect("it hears of it");
            drop(change);
        });
    }
}
