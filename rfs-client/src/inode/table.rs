//! The inodes that the caller references.
//!
//! # Concurrency
//! Any thread. The table's lock is never held over another lock, except over that of its aliases.

pub(crate) mod aliases;
pub(crate) mod arrival;
pub(crate) mod orphans;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock};
use rfs_proto::Errno;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    cache::page_hold::Sharing,
    error::ClientError,
    inode::{
        Inode,
        size::RecallPeriod,
        table::{
            aliases::{Aliases, CachedName, Names},
            orphans::Orphans,
        },
    },
    remote::kept_state::{KeptState, Row},
};

/// The inodes that the caller references.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    /// Keys come from the server, which has simpler ways to harm its clients than hash collisions.
    inodes: RwLock<FxHashMap<u64, Arc<Inode>>>,
    /// Names of the referenced inodes.
    aliases: Mutex<Aliases>,
    /// Number of inodes that have been forgotten.
    forgotten: AtomicU64,
    /// Number of times that layouts in flight were voided.
    voids: AtomicU64,
    /// Number of releases that have begun without naming their file yet.
    releasing: AtomicU32,
    /// True once locks of any file were lost.
    lost_locks: AtomicBool,
    /// Period in which the server recalls layouts from this client.
    recalls: RecallPeriod,
    orphans: Orphans,
    sharing: Sharing,
    /// State that outlives this process, if the mount does.
    kept: OnceLock<Arc<KeptState>>,
}

impl InodeTable {
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.inodes.read().get(&ino).cloned()
    }

    /// Returns an inode that the caller has open.
    pub(crate) fn opened(&self, ino: u64) -> Result<Arc<Inode>, ClientError> {
        self.get(ino).ok_or_else(|| Errno::EBADF.into())
    }

    /// Takes a reference. Adds the inode if it is new.
    pub(crate) fn acquire(&self, ino: u64) -> Arc<Inode> {
        if let Some(inode) = self.inodes.read().get(&ino) {
            // A removal needs the write lock, so none can be in progress.
            inode.add_reference();
            return inode.clone();
        }
        let mut inodes = self.inodes.write();
        let inode = inodes.entry(ino).or_insert_with(|| Arc::new(self.new_inode(ino)));
        inode.add_reference();
        inode.clone()
    }

    fn new_inode(&self, ino: u64) -> Inode {
        let inode = Inode::new(ino);
        if let Some(row) = self.kept.get().and_then(|kept| Row::add(kept, ino)) {
            inode.row.get_or_init(|| row);
        }
        inode
    }

    /// Keeps the state of all inodes from now on, except that of the root directory, which the
    /// caller always references.
    pub(crate) fn keep_state(&self, kept: &Arc<KeptState>) {
        // The state is set once, before the first request.
        let _ = self.kept.set(Arc::clone(kept));
    }

    /// Returns the kept state, if there is one.
    pub(crate) fn kept(&self) -> Option<&Arc<KeptState>> {
        self.kept.get()
    }

    /// Adds an inode of the previous process.
    pub(crate) fn restore(&self, inode: Inode) -> Arc<Inode> {
        let inode = Arc::new(inode);
        self.inodes.write().insert(inode.ino, Arc::clone(&inode));
        inode
    }

    /// Returns references. Forgets the inode with the last one.
    pub(crate) fn release(&self, ino: u64, count: u64) {
        self.release_if(ino, count, |_| true);
    }

    /// Forgets an inode that only a previous process has named to the caller, and that is not open.
    /// Returns true if it was one.
    pub(crate) fn release_inherited(&self, ino: u64) -> bool {
        let is_unused = |inode: &Inode| inode.is_inherited() && !inode.open.load(Ordering::Acquire);
        self.release_if(ino, u64::MAX, is_unused)
    }

    /// Returns references if the inode meets a condition. No reference is taken meanwhile.
    fn release_if(&self, ino: u64, count: u64, condition: impl Fn(&Inode) -> bool) -> bool {
        let mut inodes = self.inodes.write();
        let Some(inode) = inodes.get(&ino).filter(|inode| condition(inode)) else { return false };
        if inode.return_references(count) == 0 {
            let unlinked = inode.is_unlinked();
            inodes.remove(&ino);
            self.aliases.lock().forget(ino);
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            drop(inodes);
            self.orphans.forgotten(ino, unlinked);
        }
        true
    }

    /// Marks an inode that has lost its last name. Returns false if it is not referenced.
    pub(crate) fn mark_unlinked(&self, ino: u64) -> bool {
        let inodes = self.inodes.write();
        inodes.get(&ino).inspect(|inode| inode.unlinked.store(true, Ordering::Relaxed)).is_some()
    }

    /// Returns the unlinked inodes.
    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Records that a name stands for an inode, before the caller is told. The caller has a
    /// reference to the inode.
    pub(crate) fn named(&self, ino: u64, parent: u64, name: &[u8]) {
        self.aliases.lock().add(ino, parent, name);
    }

    /// Records that a name does not exist, before the caller is told. Returns false if the caller
    /// must not cache that.
    pub(crate) fn absent(&self, parent: u64, name: &[u8]) -> bool {
        self.aliases.lock().add_absent(parent, name)
    }

    /// Returns all recorded names in a directory, which the caller is about to drop.
    pub(crate) fn names_in(&self, parent: u64) -> Vec<Arc<[u8]>> {
        self.aliases.lock().in_directory(parent)
    }

    /// Notes that the caller has dropped a name.
    pub(crate) fn dropped(&self, parent: u64, name: &[u8]) {
        self.aliases.lock().dropped(parent, name);
    }

    /// Removes a name that stands for nothing any more, or for an unknown inode.
    pub(crate) fn unnamed(&self, parent: u64, name: &[u8]) {
        self.aliases.lock().remove(parent, name);
    }

    /// Records a rename, before the caller is told.
    pub(crate) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        self.aliases.lock().rename(from, to, exchange);
    }

    /// Returns the entry that the caller may have cached under a name.
    pub(crate) fn cached_name(&self, parent: u64, name: &[u8]) -> CachedName {
        self.aliases.lock().cached(parent, name)
    }

    /// Returns the inodes that a name may stand for at the caller.
    pub(crate) fn named_inodes(&self, parent: u64, name: &[u8]) -> SmallVec<[u64; 1]> {
        SmallVec::from_slice(self.aliases.lock().inodes_of(parent, name))
    }

    /// Returns the names under which the caller knows an inode.
    pub(crate) fn names(&self, ino: u64) -> Names {
        self.aliases.lock().of(ino)
    }

    /// Returns the period in which the server recalls layouts from this client.
    pub(crate) fn recalls(&self) -> &RecallPeriod {
        &self.recalls
    }

    /// Returns the counts of inodes that are shared with other mounts.
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Announces a release.
    pub(crate) fn will_release(&self) {
        self.releasing.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that an announced release has named its file.
    pub(crate) fn releases(&self) {
        // A release without an announcement does not count.
        let less = |count: u32| count.checked_sub(1);
        self.releasing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).ok();
    }

    /// Returns true while any release has not named its file yet.
    pub(crate) fn is_releasing(&self) -> bool {
        self.releasing.load(Ordering::SeqCst) > 0
    }

    /// Returns a count that rises when layouts in flight may be void.
    pub(crate) fn void_count(&self) -> u64 {
        self.voids.load(Ordering::Acquire)
    }

    /// Notes that locks are going to be lost.
    pub(crate) fn note_lost_locks(&self) {
        self.lost_locks.store(true, Ordering::Release);
    }

    /// Returns false if no locks were ever lost. Needs no lock of the table.
    pub(crate) fn has_lost_locks(&self) -> bool {
        self.lost_locks.load(Ordering::Acquire)
    }

    /// Voids all layouts that were requested before this call.
    pub(crate) fn void_layouts_in_flight(&self) {
        self.voids.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns an inode whose layout is void. If it is not referenced, voids all layouts in flight:
    /// one of them may be this inode's.
    pub(crate) fn get_or_void(&self, ino: u64) -> Option<Arc<Inode>> {
        self.get(ino).or_else(|| {
            // An open by name may be in flight.
            self.void_layouts_in_flight();
            self.get(ino)
        })
    }

    /// Returns the number of inodes that have been forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Returns the numbers of all referenced inodes.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.inodes.read().keys().copied().collect()
    }

    /// Returns the inodes that only a previous process has named to the caller.
    pub(crate) fn inherited(&self) -> Vec<u64> {
        let inodes = self.inodes.read();
        inodes.values().filter(|inode| inode.is_inherited()).map(|inode| inode.ino).collect()
    }

    /// Returns the number of referenced inodes.
    pub(crate) fn len(&self) -> usize {
        self.inodes.read().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_lives_until_its_last_reference() {
        let table = InodeTable::default();
        let a = table.acquire(5);
        table.acquire(5);
        table.acquire(5);
        table.named(5, 1, b"a");
        table.release(5, 2);
        assert_eq!(table.names(5).len(), 1);
        assert!(Arc::ptr_eq(&a, &table.get(5).expect("one reference left")));
        table.release(5, 1);
        assert!(table.get(5).is_none() && table.names(5).is_empty());
        table.release(5, 9);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn an_inherited_inode_is_forgotten_at_once_unless_it_is_named_again_or_open() {
        let table = InodeTable::default();
        for ino in 5..9 {
            let inode = Inode::new(ino);
            inode.references.store(3, Ordering::Relaxed);
            table.restore(inode);
        }
        table.acquire(6);
        table.get(7).expect("restored").open.store(true, Ordering::Relaxed);
        let mut inherited = table.inherited();
        inherited.sort_unstable();
        assert_eq!(inherited, [5, 7, 8]);
        assert_eq!([4, 5, 6, 7].map(|ino| table.release_inherited(ino)), [false, true, false, false]);
        assert_eq!([5, 6, 7, 8].map(|ino| table.get(ino).is_some()), [false, true, true, true]);
        assert_eq!(table.get(6).expect("named again").references.load(Ordering::Relaxed), 4);
        // The caller forgets the names that it was told here. It was told to forget the rest
        // before.
        table.release(6, 1);
        assert!(table.inherited().contains(&6) && table.release_inherited(6));
    }
}
