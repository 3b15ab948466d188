//! The client's state per inode.
//!
//! # Concurrency
//! Locks of one inode, outermost first: `opens`, `io`, `append`, `layout_users`, `layout_calls`,
//! then any one of `layout`, `size`, `at_server`, `lost_lock_handles`, `times`, `attr_caching`,
//! `listing`, `pages_as_of`, `told_attrs` and `held_locks`. The latter are held briefly (`times`
//! over one small WRITE). The table's lock is never held over another lock, except over that of
//! its aliases.

pub(crate) mod access;
pub(crate) mod aliases;
pub(crate) mod held_locks;
pub(crate) mod layout;
pub(crate) mod orphans;
pub(crate) mod size;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use rfs_proto::{Attr, Marks};
use rustc_hash::FxHashMap;

use crate::{
    cache::{
        AttrCaching, Interest, Listing, PageState,
        sharing::{PageHold, Shared, Sharing},
    },
    inode::{
        access::Access,
        aliases::{Aliases, Names},
        held_locks::HeldLocks,
        layout::LayoutCache,
        orphans::Orphans,
        size::{KnownSize, LayoutId, LookStart, RecallEpoch},
    },
    remote::clock::WriteTimes,
    transfers::in_flight::StartedRequests,
};

const NO_SLOT: u32 = u32::MAX;

/// Opens of an inode at this client.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// Number of opens.
    pub(crate) local: u32,
}

/// Opens of an inode at the server, for this session. Held briefly, so that a reclaim can take
/// the lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtServer {
    pub(crate) opens: u32,
    pub(crate) to_write: bool,
}

/// The attributes that tell whether a file changed, and the permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VisibleAttrs {
    size: u64,
    mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) perm: u32,
    pub(crate) marks: Marks,
}

pub(crate) fn visible_attrs(attr: &Attr) -> VisibleAttrs {
    let marks = attr.marks - Marks::KEEP - Marks::SHARED;
    VisibleAttrs { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, perm: attr.perm, marks }
}

/// The threads that asked for attributes: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct ReaderThreads(AtomicU32);

/// Stands for more than one thread.
const SEVERAL: u32 = u32::MAX;

impl ReaderThreads {
    /// Adds a thread.
    pub(crate) fn add(&self, thread: u32) {
        // A thread without a known number counts as several.
        let thread = if thread == 0 { SEVERAL } else { thread };
        let with = |before| match before {
            0 => Some(thread),
            before if before == thread => None,
            _ => Some(SEVERAL),
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok();
    }

    /// Forgets all threads. Returns true if another thread than `thread` was among them.
    pub(crate) fn take_others(&self, thread: u32) -> bool {
        let before = self.0.swap(0, Ordering::Relaxed);
        before != 0 && before != thread
    }
}

/// The state of one inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: u64,
    slot: AtomicU32,
    /// Lookups that are not forgotten, plus one while it is open. Changed under the table's lock.
    references: AtomicU64,
    pub(crate) opens: Mutex<Opens>,
    pub(crate) at_server: Mutex<AtServer>,
    /// True if the inode was open when a new era began, and does not exist any more.
    gone: AtomicBool,
    /// True if the inode has lost its last name. The server hears when the caller forgets it.
    /// Changed under the table's lock.
    unlinked: AtomicBool,
    /// Handles that held locks which are lost.
    lost_lock_handles: Mutex<Vec<u64>>,
    any_lost_lock: AtomicBool,
    /// Last era at whose beginning locks were lost; 0, the first era, if none were.
    locks_lost_in: AtomicU32,
    /// True while reads and writes are allowed.
    pub(crate) open: AtomicBool,
    /// Held shared by reads and writes, and exclusively by a change of size.
    pub(crate) io: RwLock<()>,
    /// Reads and writes in flight. They count as shared holders of `io` and `layout_users`, without
    /// holding them.
    pub(crate) started: StartedRequests,
    /// Held shared by operations that use addresses of the layout, from the lookup to the end. Held
    /// exclusively to give addresses back. Holders wait for no operation that needs another
    /// client's consent.
    pub(crate) layout_users: RwLock<()>,
    /// Held over an append, so that this session appends once at a time.
    pub(crate) append: Mutex<()>,
    /// Held over calls that fetch or extend the layout.
    pub(crate) layout_calls: Mutex<()>,
    pub(crate) layout: RwLock<LayoutCache>,
    pub(crate) size: Mutex<KnownSize>,
    pub(crate) times: Mutex<WriteTimes>,
    /// The server's count of visits at which the caller's pages were current, if only this client
    /// could have changed the file since.
    pub(crate) pages_as_of: Mutex<Option<u64>>,
    /// Whether the caller may cache the attributes.
    pub(crate) attr_caching: Mutex<AttrCaching>,
    /// Whether the caller's pages are current.
    pub(crate) pages: PageState,
    /// Whether the server recalls the caller's pages while the file is open.
    pub(crate) hold: PageHold,
    /// Whether other mounts had the file open when it was opened here for writing.
    pub(crate) shared: Shared,
    /// Whether the caller's listing of the directory is current.
    pub(crate) listing: Mutex<Listing>,
    /// Whether this mount uses the directory.
    pub(crate) interest: Interest,
    /// Attributes that the caller was told last.
    pub(crate) told_attrs: Mutex<Option<VisibleAttrs>>,
    /// Threads of the caller that asked for the attributes since the last change here.
    pub(crate) attr_readers: ReaderThreads,
    /// Locks that this client may hold.
    pub(crate) held_locks: Mutex<HeldLocks>,
    /// Number of releases in flight that give up locks.
    pub(crate) unlocking: AtomicU32,
    /// Last read that counts as an access.
    pub(crate) access: Access,
}

impl Inode {
    fn new(ino: u64) -> Inode {
        Inode {
            ino,
            slot: AtomicU32::new(NO_SLOT),
            references: AtomicU64::new(0),
            opens: Mutex::default(),
            at_server: Mutex::default(),
            gone: AtomicBool::new(false),
            unlinked: AtomicBool::new(false),
            lost_lock_handles: Mutex::default(),
            any_lost_lock: AtomicBool::new(false),
            locks_lost_in: AtomicU32::new(0),
            open: AtomicBool::new(false),
            io: RwLock::default(),
            started: StartedRequests::default(),
            layout_users: RwLock::default(),
            append: Mutex::default(),
            layout_calls: Mutex::default(),
            layout: RwLock::default(),
            size: Mutex::default(),
            times: Mutex::default(),
            pages_as_of: Mutex::default(),
            attr_caching: Mutex::default(),
            pages: PageState::default(),
            hold: PageHold::default(),
            shared: Shared::default(),
            listing: Mutex::default(),
            interest: Interest::default(),
            told_attrs: Mutex::default(),
            attr_readers: ReaderThreads::default(),
            held_locks: Mutex::default(),
            unlocking: AtomicU32::new(0),
            access: Access::default(),
        }
    }

    /// Excludes reads and writes, and blocks until those in flight have ended.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        let exclusive = self.io.write();
        self.started.wait();
        exclusive
    }

    /// Voids layouts of this era before this generation.
    pub(crate) fn layout_recalled(&self, era: u32, generation: u64) {
        self.layout.write().recalled(era, generation);
        self.size.lock().recalled(LayoutId { era, generation });
    }

    /// Takes in a size that was read with a layout generation; the read began at `start`.
    pub(crate) fn saw(&self, start: LookStart, generation: u64, size: u64) {
        self.size.lock().saw(start, generation, size);
    }

    /// Forgets the layout, because it may have changed in any way.
    pub(crate) fn forget_layout(&self) {
        self.layout.write().clear(0);
        self.size.lock().distrust();
    }

    /// Excludes users of layout addresses, and blocks until those in flight have ended.
    pub(crate) fn exclude_layout_users(&self) -> RwLockWriteGuard<'_, ()> {
        let excluded = self.layout_users.write();
        self.started.wait();
        excluded
    }

    /// Returns the slot of the attribute record, once any attributes were seen.
    pub(crate) fn slot(&self) -> Option<u32> {
        let slot = self.slot.load(Ordering::Relaxed);
        (slot != NO_SLOT).then_some(slot)
    }

    /// Returns true if the inode was open when a new era began, and does not exist any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns true if the inode has lost its last name.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        *self.at_server.lock() = AtServer::default();
        self.gone.store(true, Ordering::Release);
    }

    /// Marks the handles that hold locks, because the locks are lost as `era` begins.
    /// Returns the number of newly marked handles.
    pub(crate) fn lose_locks(&self, era: u32) -> usize {
        let held = self.held_locks.lock().take(|_| true);
        let mut lost_lock_handles = self.lost_lock_handles.lock();
        let before = lost_lock_handles.len();
        for held in held {
            if !lost_lock_handles.contains(&held.handle) {
                lost_lock_handles.push(held.handle);
            }
        }
        self.any_lost_lock.store(!lost_lock_handles.is_empty(), Ordering::Release);
        let lost = lost_lock_handles.len() - before;
        if lost > 0 {
            self.locks_lost_in.store(era, Ordering::Release);
        }
        lost
    }

    /// Returns true if locks were lost at the beginning of a later era. They may have guarded
    /// operations that were issued in `era`.
    pub(crate) fn has_lost_locks_since(&self, era: u32) -> bool {
        self.locks_lost_in.load(Ordering::Acquire) > era
    }

    /// Returns true if the handle held a lock that is lost.
    pub(crate) fn has_lost_lock(&self, handle: u64) -> bool {
        self.any_lost_lock.load(Ordering::Acquire) && self.lost_lock_handles.lock().contains(&handle)
    }

    /// Forgets a handle that is closed for good.
    pub(crate) fn forget_lost_lock(&self, handle: u64) {
        if self.any_lost_lock.load(Ordering::Acquire) {
            self.lost_lock_handles.lock().retain(|lost| *lost != handle);
        }
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }
}

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
    /// Epoch in which the server recalls layouts from this client.
    recalls: RecallEpoch,
    orphans: Orphans,
    sharing: Sharing,
}

impl InodeTable {
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.inodes.read().get(&ino).cloned()
    }

    /// Takes a reference. Adds the inode if it is new.
    pub(crate) fn acquire(&self, ino: u64) -> Arc<Inode> {
        if let Some(inode) = self.inodes.read().get(&ino) {
            // A removal needs the write lock, so none can be in progress.
            inode.references.fetch_add(1, Ordering::Relaxed);
            return inode.clone();
        }
        let mut inodes = self.inodes.write();
        let inode = inodes.entry(ino).or_insert_with(|| Arc::new(Inode::new(ino)));
        inode.references.fetch_add(1, Ordering::Relaxed);
        inode.clone()
    }

    /// Returns references. Forgets the inode with the last one.
    pub(crate) fn release(&self, ino: u64, count: u64) {
        let mut inodes = self.inodes.write();
        let Some(inode) = inodes.get(&ino) else { return };
        let left = inode.references.load(Ordering::Relaxed).saturating_sub(count);
        inode.references.store(left, Ordering::Relaxed);
        if left == 0 {
            let unlinked = inode.is_unlinked();
            inodes.remove(&ino);
            self.aliases.lock().forget(ino);
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            drop(inodes);
            self.orphans.forgotten(ino, unlinked);
        }
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

    /// Returns the names under which the caller knows an inode.
    pub(crate) fn names(&self, ino: u64) -> Names {
        self.aliases.lock().of(ino)
    }

    /// Returns the epoch in which the server recalls layouts from this client.
    pub(crate) fn recalls(&self) -> &RecallEpoch {
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
    fn listeners_tell_other_threads_from_this_one() {
        let readers = ReaderThreads::default();
        assert!(!readers.take_others(5));
        readers.add(5);
        readers.add(5);
        assert!(!readers.take_others(5) && !readers.take_others(6));
        readers.add(5);
        assert!(readers.take_others(6));
        readers.add(5);
        readers.add(6);
        assert!(readers.take_others(6));
    }
}
