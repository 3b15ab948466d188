//! The client's state per inode.
//!
//! # Concurrency
//! Locks of one inode, outermost first: `opens`, `io`, `append`, `layout_users`, `layout_calls`,
//! then `times` or `size`, then `layout`. `at_server`, `attr_caching`, `listing`, and those in
//! `pages`, `reported_attrs`, `locks`, `access` and `started` are held briefly, over no other lock
//! of the inode. `times` is held over one small WRITE. The table's lock is never held over another
//! lock, except over that of its aliases. docs/design/locks.md has the locks of all parts.

pub(crate) mod access;
pub(crate) mod aliases;
pub(crate) mod arrival;
pub(crate) mod layout;
pub(crate) mod locks;
pub(crate) mod orphans;
pub(crate) mod size;
pub(crate) mod started;
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
        attr_caching::AttrCaching,
        interest::Interest,
        listing::Listing,
        page_hold::{PageHold, Shared},
        pages::PageState,
    },
    inode::{
        access::Access,
        layout::LayoutCache,
        locks::LockState,
        size::{KnownSize, LayoutId, LookStart},
        started::StartedRequests,
        visible_attrs::ReportedAttrs,
        write_times::WriteTimes,
    },
    remote::address::Epoch,
    remote::kept::{Counter, Row},
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
    pub(crate) at_server: Mutex<AtServer>,
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
    pub(crate) layout: RwLock<LayoutCache>,
    pub(crate) size: Mutex<KnownSize>,
    pub(crate) times: Mutex<WriteTimes>,
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
    pub(crate) reported_attrs: ReportedAttrs,
    /// File locks of this client.
    pub(crate) locks: LockState,
    /// Last read that counts as an access.
    pub(crate) access: Access,
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
            at_server: Mutex::default(),
            gone: AtomicBool::new(false),
            unlinked: AtomicBool::new(false),
            open: AtomicBool::new(false),
            io: RwLock::default(),
            started: StartedRequests::default(),
            layout_users: RwLock::default(),
            append: Mutex::default(),
            layout_calls: Mutex::default(),
            layout: RwLock::default(),
            size: Mutex::default(),
            times: Mutex::default(),
            attr_caching: Mutex::default(),
            pages: PageState::default(),
            hold: PageHold::default(),
            shared: Shared::default(),
            listing: Mutex::default(),
            interest: Interest::default(),
            reported_attrs: ReportedAttrs::default(),
            locks: LockState::default(),
            access: Access::default(),
            birth: OnceLock::new(),
            row: OnceLock::new(),
        }
    }

    /// Excludes reads and writes, and blocks until those in flight have ended.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        let exclusive = self.io.write();
        self.started.wait();
        exclusive
    }

    /// Voids layouts of this epoch before this generation.
    pub(crate) fn layout_recalled(&self, epoch: Epoch, generation: u64) {
        self.layout.write().recalled(epoch, generation);
        self.size.lock().recalled(LayoutId { epoch, generation });
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
        *self.at_server.lock() = AtServer::default();
        self.gone.store(true, Ordering::Release);
    }

    /// Fills in write and access times that are not published yet.
    pub(crate) fn with_pending(&self, mut attr: Attr) -> Attr {
        if let Some(time) = self.times.lock().pending() {
            attr.mtime = time;
            attr.ctime = attr.ctime.max(time);
        }
        attr.atime = self.access.latest(attr.atime);
        attr
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
