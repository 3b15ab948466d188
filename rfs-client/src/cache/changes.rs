//! This client's changes in flight, whose replies the server holds until other clients have
//! dropped caches.
//!
//! The kernel holds locks of directories and pages during such a request. A thread that drops
//! kernel caches for another client must not wait for one of these requests: the two clients
//! would deadlock.
//!
//! # Concurrency
//! One mutex, held briefly.

pub(crate) mod name_removals;

use std::{collections::HashMap, time::Duration};

use parking_lot::{Condvar, Mutex};
use rfs_proto::{Attr, FileKind, RenameFlags, Request};
use smallvec::{SmallVec, smallvec};

/// Maximum number of changes in flight. Each needs a call slot of the session, and started calls
/// use half of the slots. One slot must stay free to acknowledge recalls.
const MAX_IN_FLIGHT: u32 = 6;

/// The state that a request changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect<'r> {
    /// Directory and name, and whether the name is absent after success.
    pub(crate) names: SmallVec<[(u64, &'r [u8], bool); 2]>,
    /// Inode whose attributes change.
    pub(crate) ino: Option<u64>,
    /// True if the request may remove a directory.
    pub(crate) may_remove_a_directory: bool,
}

/// Returns the inode whose attributes a request changes, besides those of directories.
fn changed_inode(request: &Request<'_>) -> Option<u64> {
    match *request {
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::Fallocate { ino, .. }
        | Request::Link { ino, .. }
        | Request::Open { ino, .. } => Some(ino),
        Request::Copy { to, .. } => Some(to),
        _ => None,
    }
}

impl<'r> Effect<'r> {
    /// Returns the effect of a request, or `None` if it changes nothing that another client may
    /// cache.
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
            Request::Rename { parent, name, new_parent, new_name, flags, whiteout, .. } => {
                // If both names are of one inode, the rename has no effect. Only NOREPLACE excludes
                // that.
                let gone = flags == RenameFlags::NOREPLACE && whiteout.is_none();
                smallvec![(parent, name, gone), (new_parent, new_name, false)]
            }
            Request::SetAttr { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Fallocate { .. }
            | Request::Copy { .. }
            | Request::Open { write: true, .. } => SmallVec::new(),
            // The list is complete, so that the compiler asks for the effect of a new request.
            Request::Attach { .. }
            | Request::Lookup { .. }
            | Request::LookupAhead { .. }
            | Request::GetAttr { .. }
            | Request::Birth { .. }
            | Request::Readlink { .. }
            | Request::Open { write: false, .. }
            | Request::Close { .. }
            | Request::Layout { .. }
            | Request::Allocate { .. }
            | Request::ReadDir { .. }
            | Request::StatFs
            | Request::Stats
            | Request::GetXattr { .. }
            | Request::XattrPart { .. }
            | Request::ListXattr { .. }
            | Request::Lock { .. }
            | Request::StopWaiting { .. }
            | Request::TestLock { .. }
            | Request::Insist { .. }
            | Request::ConfirmLocks { .. }
            | Request::Recalls { .. }
            | Request::Accessed { .. }
            | Request::Grants
            | Request::Once { .. }
            | Request::Detach
            | Request::Write { .. }
            | Request::Verify { .. }
            | Request::ReturnNames { .. }
            | Request::Forget { .. }
            | Request::HoldPages { .. }
            | Request::DropPages { .. }
            | Request::Tmpfile { .. }
            | Request::ReachStore { .. }
            | Request::FenceStore { .. } => return None,
        };
        let ino = changed_inode(request);
        let may_remove_a_directory = matches!(request, Request::Rmdir { .. } | Request::Rename { .. });
        Some(Effect { names, ino, may_remove_a_directory })
    }

    /// Returns true if attributes in the reply are those of a directory with a changed name.
    pub(crate) fn is_of(&self, attr: &Attr) -> bool {
        attr.kind == FileKind::Directory && self.names.iter().any(|(parent, ..)| *parent == attr.ino)
    }

    /// Returns the inodes whose attributes change. The kernel may hold their locks meanwhile.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = u64> {
        self.names.iter().map(|(parent, ..)| *parent).chain(self.ino)
    }
}

/// The changes in flight.
#[derive(Debug, Default)]
pub struct ChangesInFlight {
    by_ino: HashMap<u64, u32>,
    count: u32,
    ended: u64,
    /// True if a thread waits for a notification.
    waiting: bool,
}

impl ChangesInFlight {
    /// Returns true if a change of this inode, or of a name in this directory, is in flight.
    pub fn changes(&self, ino: u64) -> bool {
        self.by_ino.contains_key(&ino)
    }

    /// Returns the number of changes that have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns the number of changes in flight.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Counts the changes in flight.
#[derive(Debug, Default)]
pub struct Changes {
    under_way: Mutex<ChangesInFlight>,
    moved: Condvar,
}

impl Changes {
    /// Begins a change, and blocks while too many are in flight.
    pub(crate) fn begin(&self, effect: &Effect<'_>) -> Change<'_> {
        let inodes: SmallVec<[u64; 3]> = effect.inodes().collect();
        let mut under_way = self.under_way.lock();
        // Counted before the wait, because the kernel holds locks during the wait, too.
        for &ino in &inodes {
            *under_way.by_ino.entry(ino).or_default() += 1;
        }
        self.wake(&mut under_way);
        while under_way.count >= MAX_IN_FLIGHT {
            under_way.waiting = true;
            self.moved.wait(&mut under_way);
        }
        under_way.count += 1;
        Change { changes: self, inodes }
    }

    fn wake(&self, under_way: &mut ChangesInFlight) {
        if std::mem::take(&mut under_way.waiting) {
            self.moved.notify_all();
        }
    }

    /// Blocks until `is_so` returns true. Calls it again whenever a change begins or ends, after
    /// each [`look_again`](Self::look_again), and after the time that `at_most` returns.
    pub fn wait_until(
        &self,
        at_most: impl Fn(&ChangesInFlight) -> Option<Duration>,
        mut is_so: impl FnMut(&ChangesInFlight) -> bool,
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

    /// Wakes the threads in [`wait_until`](Self::wait_until).
    pub fn look_again(&self) {
        self.wake(&mut self.under_way.lock());
    }
}

/// A change in flight, until it is dropped.
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
        self.changes.wake(&mut under_way);
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::Owner;

    use super::*;

    #[test]
    fn changes_in_flight_are_known_by_inode() {
        let changes = Changes::default();
        let renamed = |flags, whiteout| {
            let (parent, new_parent) = (1, 2);
            let (moved, replaced) = (None, None);
            Request::Rename {
                parent,
                name: b"a",
                new_parent,
                new_name: b"b",
                flags,
                whiteout,
                moved,
                replaced,
            }
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
    fn the_number_of_changes_in_flight_is_limited() {
        let changes = Changes::default();
        let effect = Effect::of(&Request::Unlink { parent: 5, name: b"x" }).expect("an effect");
        let mut all: Vec<Change<'_>> = (0..MAX_IN_FLIGHT).map(|_| changes.begin(&effect)).collect();
        std::thread::scope(|scope| {
            let other = Effect::of(&Request::Unlink { parent: 6, name: b"x" }).expect("an effect");
            let changes = &changes;
            let one_more = scope.spawn(move || drop(changes.begin(&other)));
            changes.wait_until(|_| None, |under_way| under_way.changes(6));
            assert_eq!(changes.under_way.lock().count(), MAX_IN_FLIGHT);
            all.pop();
            one_more.join().expect("it gets its turn");
        });
    }

    #[test]
    fn a_waiter_is_woken_when_a_change_begins() {
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
