//! The client's state per inode.
//!
//! # Concurrency
//! Locks of one inode, outermost first: `opens`, `io`, `append`, `layout_users`, `layout_calls`,
//! `times`, then `file` or `caller`. `times` is held over one small WRITE. `file` and `caller` are
//! held briefly, and never both. Waiting for started requests releases `caller`. The table's lock
//! is never held over another lock, except over that of its aliases. docs/design/locks.md has the
//! locks of all parts.

pub(crate) mod access;
pub(crate) mod caller;
pub(crate) mod known_file;
pub(crate) mod layout;
pub(crate) mod locks;
pub(crate) mod size;
pub(crate) mod started_requests;
pub(crate) mod table;
pub(crate) mod visible_attrs;
pub(crate) mod write_times;

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use rfs_proto::Attr;

use crate::{
    cache::{
        interest::Interest,
        page_hold::{PageHold, Shared},
        pages::PageState,
    },
    inode::{
        caller::CallerState,
        known_file::{AtServer, KnownFile},
        locks::LockState,
        size::{KnownSize, LayoutId, LookStart},
        started_requests::StartedRequests,
        visible_attrs::{ReaderThreads, VisibleAttrs},
        write_times::WriteTimes,
    },
    remote::address::Epoch,
    remote::kept_state::{Counter, Row},
};

const NO_SLOT: u32 = u32::MAX;

/// Opens of an inode at this client.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// Number of opens.
    pub(crate) local: u32,
}

/// The state of one inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: u64,
    slot: AtomicU32,
    /// Lookups that are not forgotten, plus one while it is open. Changed under the table's lock.
    pub(crate) references: AtomicU64,
    /// Those of `references` that replies of this process have given. Changed under the table's
    /// lock.
    pub(crate) own_references: AtomicU64,
    pub(crate) opens: Mutex<Opens>,
    /// True if the inode was open when a new epoch began, and does not exist any more.
    gone: AtomicBool,
    /// True if the inode has lost its last name. The server hears when the caller forgets it.
    /// Changed under the table's lock.
    pub(crate) unlinked: AtomicBool,
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
    /// Held over one small WRITE.
    pub(crate) times: Mutex<WriteTimes>,
    /// The file at the server. Held briefly, so that a reclaim can take the lock.
    pub(crate) file: RwLock<KnownFile>,
    /// State that the caller caches, was told or holds. Held briefly.
    pub(crate) caller: Mutex<CallerState>,
    /// Whether the caller's pages are current.
    pub(crate) pages: PageState,
    /// Whether the server recalls the caller's pages while the file is open.
    pub(crate) hold: PageHold,
    /// Whether other mounts had the file open when it was opened here for writing.
    pub(crate) shared: Shared,
    /// Whether this mount uses the directory.
    pub(crate) interest: Interest,
    /// Threads of the caller that asked for the attributes since the last change here.
    readers: ReaderThreads,
    /// Losses and releases of file locks.
    pub(crate) locks: LockState,
    /// True if the next read counts as an access.
    pub(crate) access_due: AtomicBool,
    /// Time of birth, once the server was asked; `None` inside if the server does not know it.
    pub(crate) birth: OnceLock<Option<i64>>,
    /// Row in the kept state of the mount, if its state is kept.
    pub(crate) row: OnceLock<Row>,
}

impl Inode {
    pub(crate) fn new(ino: u64) -> Inode {
        Inode {
            ino,
            slot: AtomicU32::new(NO_SLOT),
            references: AtomicU64::new(0),
            own_references: AtomicU64::new(0),
            opens: Mutex::default(),
            gone: AtomicBool::new(false),
            unlinked: AtomicBool::new(false),
            open: AtomicBool::new(false),
            io: RwLock::default(),
            started: StartedRequests::default(),
            layout_users: RwLock::default(),
            append: Mutex::default(),
            layout_calls: Mutex::default(),
            times: Mutex::default(),
            file: RwLock::default(),
            caller: Mutex::default(),
            pages: PageState::default(),
            hold: PageHold::default(),
            shared: Shared::default(),
            interest: Interest::default(),
            readers: ReaderThreads::default(),
            locks: LockState::default(),
            access_due: AtomicBool::new(false),
            birth: OnceLock::new(),
            row: OnceLock::new(),
        }
    }

    /// Excludes reads and writes, and blocks until those in flight have ended.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        let exclusive = self.io.write();
        self.started.wait(&self.caller);
        exclusive
    }

    /// Returns the known size and the layout that is known, as of one moment.
    pub(crate) fn known(&self) -> (KnownSize, LayoutId) {
        let file = self.file.read();
        (file.size, file.layout.id())
    }

    /// Returns the epoch of the layout, in which its addresses and the record's are valid.
    pub(crate) fn layout_epoch(&self) -> Epoch {
        self.file.read().layout.epoch()
    }

    /// Returns the generation of the layout.
    pub(crate) fn layout_generation(&self) -> u64 {
        self.file.read().layout.generation()
    }

    /// Voids layouts of this epoch before this generation.
    pub(crate) fn layout_recalled(&self, epoch: Epoch, generation: u64) {
        self.file.write().recalled(epoch, generation);
    }

    /// Takes in a size that was read with a layout generation; the read began at `start`.
    pub(crate) fn saw(&self, start: LookStart, generation: u64, size: u64) {
        // Most reads of a record find the size that is known. They do not exclude each other.
        if self.file.read().size.learns(start, generation, size) {
            self.file.write().size.saw(start, generation, size);
        }
    }

    /// Forgets the layout, because it may have changed in any way.
    pub(crate) fn forget_layout(&self) {
        self.file.write().forget();
    }

    /// Excludes users of layout addresses, and blocks until those in flight have ended.
    pub(crate) fn exclude_layout_users(&self) -> RwLockWriteGuard<'_, ()> {
        let excluded = self.layout_users.write();
        self.started.wait(&self.caller);
        excluded
    }

    /// Returns the slot of the attribute record, once any attributes were seen.
    pub(crate) fn slot(&self) -> Option<u32> {
        let slot = self.slot.load(Ordering::Relaxed);
        (slot != NO_SLOT).then_some(slot)
    }

    /// Returns true if the inode was open when a new epoch began, and does not exist any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns true if only a previous process has named the inode to the caller, since the caller
    /// has forgotten it last.
    pub(crate) fn is_inherited(&self) -> bool {
        self.own_references.load(Ordering::Relaxed) == 0
    }

    /// Returns true if the inode has lost its last name.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        self.file.write().at_server = AtServer::default();
        self.gone.store(true, Ordering::Release);
    }

    /// Fills in write and access times that are not published yet.
    pub(crate) fn with_pending(&self, mut attr: Attr) -> Attr {
        if let Some(time) = self.times.lock().pending() {
            attr.mtime = time;
            attr.ctime = attr.ctime.max(time);
        }
        attr.atime = self.caller.lock().last_read.latest(attr.atime);
        attr
    }

    /// Returns true if the caller may cache the attributes.
    pub(crate) fn is_cacheable(&self) -> bool {
        self.caller.lock().attr_caching.is_cacheable()
    }

    /// Notes that the caller has cached these attributes, which its thread `thread` asked for.
    /// If they are not `current`, the caller may have newer ones.
    pub(crate) fn told(&self, attr: &Attr, thread: u32, current: bool) {
        self.readers.add(thread);
        let mut caller = self.caller.lock();
        caller.told = Some(VisibleAttrs::of(attr));
        caller.told_links = if current { attr.nlink } else { attr.nlink.max(caller.told_links) };
    }

    /// Notes that `thread` has changed the inode. Returns true if another thread has got the
    /// attributes since the last change.
    pub(crate) fn others_were_told(&self, thread: u32) -> bool {
        self.readers.take_others(thread)
    }

    /// Notes a read at `now` that counts as an access.
    pub(crate) fn note_access(&self, now: i64) {
        self.caller.lock().last_read.note(now);
    }

    /// Marks the handles that hold locks, because the locks are lost as `epoch` begins.
    /// Returns the number of newly marked handles.
    pub(crate) fn lose_locks(&self, epoch: Epoch) -> usize {
        self.locks.lose(&mut self.caller.lock().locks, epoch)
    }

    /// Returns true if the handle held a lock that is lost.
    pub(crate) fn has_lost_lock(&self, handle: u64) -> bool {
        self.locks.has_lost_any() && self.caller.lock().locks.has_lost(handle)
    }

    /// Forgets the lost locks of a handle that is closed for good.
    pub(crate) fn forget_lost_locks(&self, handle: u64) {
        if self.locks.has_lost_any() {
            self.caller.lock().locks.forget_lost(handle);
        }
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        if self.slot.swap(slot, Ordering::Relaxed) != slot
            && let Some(row) = self.row.get()
        {
            row.set_slot(slot);
        }
    }

    /// Takes a reference for a reply of this process. The caller holds the table's lock.
    fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
        self.own_references.fetch_add(1, Ordering::Relaxed);
        self.note(Counter::References, 1);
    }

    /// Returns references, and this process's own ones first. Returns how many are left. The caller
    /// has the table's lock alone.
    fn return_references(&self, count: u64) -> u64 {
        let before = self.references.load(Ordering::Relaxed);
        let left = before.saturating_sub(count);
        self.references.store(left, Ordering::Relaxed);
        let own = self.own_references.load(Ordering::Relaxed);
        self.own_references.store(own.saturating_sub(count), Ordering::Relaxed);
        self.note(Counter::References, -((before - left) as i64));
        left
    }

    /// Notes a change of a counter in the kept state, if there is one.
    pub(crate) fn note(&self, counter: Counter, amount: i64) {
        if let Some(row) = self.row.get() {
            row.count(counter, amount);
        }
    }
}
