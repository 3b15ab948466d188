//! What the client remembers of inodes.
//!
//! Lock order within one inode, outermost first: `opens`, `io`, `append`, `places`, `layout_calls`,
//! then any one of `layout`, `size`, `at_server`, `severed`, `times`, `lease`, `listing`,
//! `pages_as_of`, `told` and `may_hold`, which are held for moments only (`times` over one small
//! WRITE). The table's lock is never held over another but that of its aliases.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use rfs_proto::{Attr, Marks};
use rustc_hash::FxHashMap;

use super::{
    access::Access,
    aliases::{Aliases, Names},
    clock::WriteTimes,
    holdings::Holdings,
    keeping::{Interest, Lease, Listing, PageState},
    later::Started,
    layout::LayoutCache,
    orphans::Orphans,
    sharing::{PageHold, Shared, Sharing},
    size::{KnownSize, LayoutId, LookStart, RecallEpoch},
};

const NO_SLOT: u32 = u32::MAX;

/// How often an inode is open.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// Here.
    pub(crate) local: u32,
}

/// How often an inode is open at the server, for this session. Held for moments, so that whoever begins a new era can have it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtServer {
    pub(crate) opens: u32,
    pub(crate) to_write: bool,
}

/// The part of attributes that tells whether a file changed, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    size: u64,
    mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) perm: u32,
    pub(crate) marks: Marks,
}

pub(crate) fn told_of(attr: &Attr) -> Told {
    let marks = attr.marks - Marks::KEEP - Marks::SHARED;
    Told { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, perm: attr.perm, marks }
}

/// The threads that attributes were asked for by: nobody, one, or several.
#[derive(Debug, Default)]
pub(crate) struct Listeners(AtomicU32);

/// More than one.
const SEVERAL: u32 = u32::MAX;

impl Listeners {
    /// A thread is told.
    pub(crate) fn add(&self, thread: u32) {
        // A thread that nobody knows the number of is like several.
        let thread = if thread == 0 { SEVERAL } else { thread };
        let with = |before| match before {
            0 => Some(thread),
            before if before == thread => None,
            _ => Some(SEVERAL),
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok();
    }

    /// Forgets them all. True if there was another one than this.
    pub(crate) fn take_others(&self, thread: u32) -> bool {
        let before = self.0.swap(0, Ordering::Relaxed);
        before != 0 && before != thread
    }
}

/// One inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: u64,
    slot: AtomicU32,
    /// References: lookups not forgotten, and one while it is open. Changed under the table's lock.
    references: AtomicU64,
    pub(crate) opens: Mutex<Opens>,
    pub(crate) at_server: Mutex<AtServer>,
    /// It was open when a new era began, and is there no more.
    gone: AtomicBool,
    /// It has lost its last name: the server hears when it is forgotten. Changed under the table's
    /// lock.
    unlinked: AtomicBool,
    /// Open files through which locks were had that are lost.
    severed: Mutex<Vec<u64>>,
    any_severed: AtomicBool,
    /// The era whose beginning cost locks last; 0, the first one, cost none.
    severed_in: AtomicU32,
    /// True while reads and writes are allowed.
    pub(crate) open: AtomicBool,
    /// Reads and writes share it, a change of size excludes them.
    pub(crate) io: RwLock<()>,
    /// Started reads and writes, which share it, and `places`, without holding them.
    pub(crate) started: Started,
    /// Shared by whoever uses places that the layout names, from the look at it to the end; whoever gives them back excludes those. Nothing
    /// that others have to agree to is waited for with it.
    pub(crate) places: RwLock<()>,
    /// Held over an append, so that this session has one at a time.
    pub(crate) append: Mutex<()>,
    /// Held over calls that fetch or extend the layout.
    pub(crate) layout_calls: Mutex<()>,
    pub(crate) layout: RwLock<LayoutCache>,
    pub(crate) size: Mutex<KnownSize>,
    pub(crate) times: Mutex<WriteTimes>,
    /// The count of visits as of which the caller's pages are, if nobody else could change the file since.
    pub(crate) pages_as_of: Mutex<Option<u64>>,
    /// Whether its attributes may be kept.
    pub(crate) lease: Mutex<Lease>,
    /// Whether the caller's pages are good.
    pub(crate) pages: PageState,
    /// Whether the server recalls the caller's pages while the file is open.
    pub(crate) hold: PageHold,
    /// Others had the file open when it was opened here to write.
    pub(crate) shared: Shared,
    /// Whether the caller's listing of a directory is right.
    pub(crate) listing: Mutex<Listing>,
    /// Whether a directory is used here.
    pub(crate) interest: Interest,
    /// What the caller was told last.
    pub(crate) told: Mutex<Option<Told>>,
    /// Whom the caller asked for, since it changed the inode last.
    pub(crate) told_to: Listeners,
    /// Locks that this client may have.
    pub(crate) may_hold: Mutex<Holdings>,
    /// Releases that give locks up and have not been answered.
    pub(crate) unlocking: AtomicU32,
    /// The last read, if it counts as an access.
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
            severed: Mutex::default(),
            any_severed: AtomicBool::new(false),
            severed_in: AtomicU32::new(0),
            open: AtomicBool::new(false),
            io: RwLock::default(),
            started: Started::default(),
            places: RwLock::default(),
            append: Mutex::default(),
            layout_calls: Mutex::default(),
            layout: RwLock::default(),
            size: Mutex::default(),
            times: Mutex::default(),
            pages_as_of: Mutex::default(),
            lease: Mutex::default(),
            pages: PageState::default(),
            hold: PageHold::default(),
            shared: Shared::default(),
            listing: Mutex::default(),
            interest: Interest::default(),
            told: Mutex::default(),
            told_to: Listeners::default(),
            may_hold: Mutex::default(),
            unlocking: AtomicU32::new(0),
            access: Access::default(),
        }
    }

    /// Keeps reads and writes out, and waits for those that are under way.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        let alone = self.io.write();
        self.started.wait();
        alone
    }

    /// In an era, layouts before a generation are void.
    pub(crate) fn layout_recalled(&self, era: u32, generation: u64) {
        self.layout.write().recalled(era, generation);
        self.size.lock().recalled(LayoutId { era, generation });
    }

    /// Takes in a size that was seen with a layout generation by a look that began at `start`.
    pub(crate) fn saw(&self, start: LookStart, generation: u64, size: u64) {
        self.size.lock().saw(start, generation, size);
    }

    /// The layout may be any by now: what is known of it is forgotten.
    pub(crate) fn forget_layout(&self) {
        self.layout.write().clear(0);
        self.size.lock().distrust();
    }

    /// Waits for those who use places of the layout, and keeps others from it.
    pub(crate) fn unused(&self) -> RwLockWriteGuard<'_, ()> {
        let unused = self.places.write();
        self.started.wait();
        unused
    }

    /// Where its attribute record is, once any attributes were seen.
    pub(crate) fn slot(&self) -> Option<u32> {
        let slot = self.slot.load(Ordering::Relaxed);
        (slot != NO_SLOT).then_some(slot)
    }

    /// It was open when a new era began, and is there no more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// It has lost its last name.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        *self.at_server.lock() = AtServer::default();
        self.gone.store(true, Ordering::Release);
    }

    /// Locks are lost as `era` begins: what was open when they were had is of no use any more. How many open files these are.
    pub(crate) fn sever_locks(&self, era: u32) -> usize {
        let held = self.may_hold.lock().take(|_| true);
        let mut severed = self.severed.lock();
        let before = severed.len();
        for held in held {
            if !severed.contains(&held.handle) {
                severed.push(held.handle);
            }
        }
        self.any_severed.store(!severed.is_empty(), Ordering::Release);
        let lost = severed.len() - before;
        if lost > 0 {
            self.severed_in.store(era, Ordering::Release);
        }
        lost
    }

    /// True if locks were lost when an era after this one began: what was asked for before that may have been guarded by them.
    pub(crate) fn has_lost_locks_since(&self, era: u32) -> bool {
        self.severed_in.load(Ordering::Acquire) > era
    }

    /// True if a lock that was had through an open file is lost.
    pub(crate) fn is_severed(&self, handle: u64) -> bool {
        self.any_severed.load(Ordering::Acquire) && self.severed.lock().contains(&handle)
    }

    /// An open file is closed for good.
    pub(crate) fn forget_severed(&self, handle: u64) {
        if self.any_severed.load(Ordering::Acquire) {
            self.severed.lock().retain(|severed| *severed != handle);
        }
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }
}

/// The inodes that the caller knows.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    /// Their numbers are the server's, which can hold up its clients in simpler ways than by collisions.
    inodes: RwLock<FxHashMap<u64, Arc<Inode>>>,
    /// By which names the caller knows them. An inode that is not known has none.
    aliases: Mutex<Aliases>,
    /// How many have been forgotten.
    forgotten: AtomicU64,
    /// How often layouts that were asked for before have become void, of whichever inode.
    voids: AtomicU64,
    /// Releases that are begun with and have not said of which file.
    releasing: AtomicU32,
    /// Some file's locks were lost once.
    lost_locks: AtomicBool,
    /// Whether the server is known to recall layouts from this client.
    recalls: RecallEpoch,
    orphans: Orphans,
    sharing: Sharing,
}

impl InodeTable {
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.inodes.read().get(&ino).cloned()
    }

    /// Takes a reference, making the inode known if it is not.
    pub(crate) fn acquire(&self, ino: u64) -> Arc<Inode> {
        if let Some(inode) = self.inodes.read().get(&ino) {
            // Removal takes the write lock, so it cannot be under way.
            inode.references.fetch_add(1, Ordering::Relaxed);
            return inode.clone();
        }
        let mut inodes = self.inodes.write();
        let inode = inodes.entry(ino).or_insert_with(|| Arc::new(Inode::new(ino)));
        inode.references.fetch_add(1, Ordering::Relaxed);
        inode.clone()
    }

    /// Gives references back; with the last one the inode is forgotten.
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

    /// Marks an inode that has lost its last name. False if it is not known.
    pub(crate) fn mark_unlinked(&self, ino: u64) -> bool {
        let inodes = self.inodes.write();
        inodes.get(&ino).inspect(|inode| inode.unlinked.store(true, Ordering::Relaxed)).is_some()
    }

    /// Inodes that have lost their last name.
    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// The caller is about to be told that a name stands for an inode, to which he has a reference.
    pub(crate) fn named(&self, ino: u64, parent: u64, name: &[u8]) {
        self.aliases.lock().add(ino, parent, name);
    }

    /// The caller is about to be told that a name does not exist. Returns false if it must not keep that.
    pub(crate) fn absent(&self, parent: u64, name: &[u8]) -> bool {
        self.aliases.lock().add_absent(parent, name)
    }

    /// All names in a directory that the caller was told of and is about to drop.
    pub(crate) fn names_in(&self, parent: u64) -> Vec<Arc<[u8]>> {
        self.aliases.lock().in_directory(parent)
    }

    /// The caller has dropped a name.
    pub(crate) fn dropped(&self, parent: u64, name: &[u8]) {
        self.aliases.lock().dropped(parent, name);
    }

    /// A name stands for nothing any more, or for nobody knows what.
    pub(crate) fn unnamed(&self, parent: u64, name: &[u8]) {
        self.aliases.lock().remove(parent, name);
    }

    /// The caller is about to be told that something has been renamed.
    pub(crate) fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        self.aliases.lock().rename(from, to, exchange);
    }

    /// By which names the caller knows an inode.
    pub(crate) fn names(&self, ino: u64) -> Names {
        self.aliases.lock().of(ino)
    }

    /// Returns the epoch in which the server recalls layouts from this client.
    pub(crate) fn recalls(&self) -> &RecallEpoch {
        &self.recalls
    }

    /// How many inodes are shared with other mounts.
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// A release is begun with.
    pub(crate) fn will_release(&self) {
        self.releasing.fetch_add(1, Ordering::SeqCst);
    }

    /// What it gives up is known now.
    pub(crate) fn releases(&self) {
        // One that was not announced counts for nothing.
        let less = |count: u32| count.checked_sub(1);
        self.releasing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).ok();
    }

    /// True if it is not known of a release which file it is of.
    pub(crate) fn is_releasing(&self) -> bool {
        self.releasing.load(Ordering::SeqCst) > 0
    }

    /// Counts up when layouts that are under way may be void.
    pub(crate) fn voids(&self) -> u64 {
        self.voids.load(Ordering::Acquire)
    }

    /// Locks are going to be lost, of whichever inode.
    pub(crate) fn locks_get_lost(&self) {
        self.lost_locks.store(true, Ordering::Release);
    }

    /// False: there is no inode of which locks have been lost. It takes no look at the table.
    pub(crate) fn has_lost_locks(&self) -> bool {
        self.lost_locks.load(Ordering::Acquire)
    }

    /// Whatever layout was asked for until now is void once it comes.
    pub(crate) fn void_what_comes(&self) {
        self.voids.fetch_add(1, Ordering::AcqRel);
    }

    /// An inode whose layout is void. Nobody who makes it known after this takes in a layout that he asked for before.
    pub(crate) fn get_or_void(&self, ino: u64) -> Option<Arc<Inode>> {
        self.get(ino).or_else(|| {
            // It may just be being opened by its name.
            self.void_what_comes();
            self.get(ino)
        })
    }

    /// How many have been known, and are no longer.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// The numbers of all of them.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.inodes.read().keys().copied().collect()
    }

    /// How many inodes are known.
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
    fn others_are_others() {
        let told = Listeners::default();
        assert!(!told.take_others(5));
        told.add(5);
        told.add(5);
        assert!(!told.take_others(5) && !told.take_others(6));
        told.add(5);
        assert!(told.take_others(6));
        told.add(5);
        told.add(6);
        assert!(told.take_others(6));
    }
}
