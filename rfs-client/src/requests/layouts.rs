//! Fetching and extending the layout of an open file, and the places in it.
//!
//! # Concurrency
//! Session threads, and the thread that obeys recalls. `layout_calls` is held over the calls that
//! fetch or extend a layout. A recall takes `layout_users` exclusively.

use std::sync::Arc;

use rdmabox::{RequestError, trace::span};
use rfs_proto::{Errno, Layout, Recall, Reply, Request};
use smallvec::SmallVec;

use crate::{
    cache::uses::CacheKind,
    error::ClientError,
    inode::{
        Inode,
        layout::{LayoutCache, Piece, Pieces, validate},
        size::LayoutId,
        table::InodeTable,
    },
    remote::{
        Remote,
        address::{Epoch, Place, RegionBounds},
        records::Glimpse,
    },
    requests::{
        TRIES,
        calls::{Calls, wrong_kind},
        record_reader::RecordReader,
    },
};

/// Parts of one write, in file order.
pub(crate) type WriteParts<'a> = SmallVec<[(Place, &'a [u8]); 4]>;

/// The layouts of open files: fetches them, extends them, and gives them back.
#[derive(Debug)]
pub(crate) struct Layouts {
    remote: Arc<dyn Remote>,
    pub(crate) calls: Arc<Calls>,
    inodes: Arc<InodeTable>,
    pub(crate) records: Arc<RecordReader>,
    arena: RegionBounds,
}

impl Layouts {
    pub(crate) fn new(calls: &Arc<Calls>, records: &Arc<RecordReader>, arena: RegionBounds) -> Layouts {
        let (remote, inodes) = (Arc::clone(&calls.remote), Arc::clone(&calls.caching.inodes));
        Layouts { remote, calls: Arc::clone(calls), inodes, records: Arc::clone(records), arena }
    }

    /// Checks that a layout from the server lies inside the arena.
    pub(crate) fn validate(&self, layout: &Layout) -> Result<(), ClientError> {
        validate(layout, self.arena.len).map_err(ClientError::Protocol)
    }

    /// Fetches the layout again, unless it is of this generation.
    pub(crate) fn follow_generation(&self, inode: &Inode, generation: u64) -> Result<(), ClientError> {
        let _calls = inode.layout_calls.lock();
        if inode.layout_generation() == generation {
            return Ok(());
        }
        self.fetch_layout(inode, None)
    }

    /// Makes sure that the layout is known up to `to`. Returns true if it was known.
    pub(crate) fn know(&self, inode: &Inode, to: u64) -> Result<bool, ClientError> {
        if inode.file.read().layout.known_to() >= to {
            return Ok(true);
        }
        let _calls = inode.layout_calls.lock();
        if inode.file.read().layout.known_to() < to {
            self.fetch_layout(inode, None)?;
        }
        Ok(false)
    }

    /// Counts a read whose layout was known, or had to be fetched.
    pub(crate) fn count_use(&self, was_known: bool) {
        self.calls.caching.cache.uses.count(CacheKind::Layouts, was_known);
    }

    /// Returns true if the layout's holes are known to be holes still. Otherwise fetches the layout
    /// and returns false.
    pub(crate) fn holes_hold(&self, inode: &Inode) -> Result<bool, ClientError> {
        let matches = |now: Glimpse| {
            let layout = &inode.file.read().layout;
            layout.generation() == now.generation
                && now.allocated.is_some()
                && layout.stamp() == now.allocated
        };
        if matches(self.records.look(inode)?) {
            return Ok(true);
        }
        let _calls = inode.layout_calls.lock();
        let now = self.records.look(inode)?;
        if !matches(now) {
            self.fetch_layout(inode, Some(now))?;
        }
        Ok(false)
    }

    /// Fetches the whole layout. `seen` is the record before the call. The caller holds
    /// `layout_calls`.
    pub(crate) fn fetch_layout(&self, inode: &Inode, seen: Option<Glimpse>) -> Result<(), ClientError> {
        'anew: for _ in 0..TRIES {
            let (epoch, voids) = (self.remote.epochs().newest, self.inodes.void_count());
            let first = self.call_layout(&Request::Layout { ino: inode.ino, offset: 0 })?;
            let mut fresh = LayoutCache::of(&first, epoch);
            while fresh.known_to() != u64::MAX {
                let offset = fresh.known_to();
                let page = self.call_layout(&Request::Layout { ino: inode.ino, offset })?;
                if !fresh.merge(offset, &page) {
                    continue 'anew;
                }
                if fresh.known_to() <= offset {
                    return Err(ClientError::Protocol("a layout that goes on without end"));
                }
            }
            if let Some(seen) = seen {
                fresh.set_stamp(seen);
            }
            if self.take_in(inode, fresh, voids) {
                return Ok(());
            }
        }
        Err(ClientError::Unstable)
    }

    /// Takes in a layout that was requested when the count of voided layouts was `voids`. Returns
    /// false if layouts were voided since.
    pub(crate) fn take_in(&self, inode: &Inode, fresh: LayoutCache, voids: u64) -> bool {
        // A thread that voids layouts first counts, then takes this lock.
        let layout = &mut inode.file.write().layout;
        self.inodes.void_count() == voids && layout.renew(fresh)
    }

    /// Makes sure that a range has space. ENOSPC changes nothing.
    pub(crate) fn allocate(&self, inode: &Inode, offset: u64, len: u64) -> Result<(), ClientError> {
        let _calls = inode.layout_calls.lock();
        if inode.file.read().layout.covers(offset, len) {
            return Ok(());
        }
        let (epoch, voids) = (self.remote.epochs().newest, self.inodes.void_count());
        let reply = self.call_layout(&Request::Allocate { ino: inode.ino, offset, len })?;
        let all = {
            let layout = &mut inode.file.write().layout;
            layout.epoch() == epoch
                && self.inodes.void_count() == voids
                && layout.merge(offset, &reply)
                && layout.known_to() >= offset.saturating_add(len)
        };
        // For a file of many extents, the reply may hold only a part of them.
        if all { Ok(()) } else { self.fetch_layout(inode, None) }
    }

    /// Forgets the layout, because the server may change it.
    pub(crate) fn lose_layout(&self, inode: &Inode) {
        // This order matters: a layout in flight must not be taken in after the reset.
        self.inodes.void_layouts_in_flight();
        inode.forget_layout();
    }

    /// Gives up the layouts in these recalls of an epoch. On return no operation uses them, and
    /// none will.
    pub(crate) fn give_layouts_back(&self, epoch: Epoch, recalls: &[Recall]) {
        for recall in recalls {
            match *recall {
                Recall::Layout { ino, generation } => {
                    let Some(inode) = self.inodes.get_or_void(ino) else { continue };
                    let _excluded = inode.exclude_layout_users();
                    inode.layout_recalled(epoch, generation);
                }
                Recall::All => {
                    self.inodes.void_layouts_in_flight();
                    for inode in self.inodes.numbers().into_iter().filter_map(|ino| self.inodes.get(ino)) {
                        let _excluded = inode.exclude_layout_users();
                        inode.forget_layout();
                    }
                }
                Recall::Name { .. }
                | Recall::Names { .. }
                | Recall::Attr { .. }
                | Recall::Pages { .. }
                | Recall::Owner { .. }
                | Recall::Unlinked { .. }
                | Recall::Written { .. }
                | Recall::Locks { .. } => {}
            }
        }
    }

    fn call_layout(&self, request: &Request<'_>) -> Result<Layout, ClientError> {
        let Reply::Layout(layout) = self.calls.call(request)? else {
            return wrong_kind();
        };
        self.validate(&layout)?;
        Ok(layout)
    }

    /// Returns the pieces of a range to read, and the layout that they are of.
    pub(crate) fn readable(
        &self,
        inode: &Inode,
        offset: u64,
        len: u64,
    ) -> Result<(Pieces, LayoutId), ClientError> {
        let _span = span("layout", "layout of a read");
        let was_known = self.know(inode, offset.saturating_add(len))?;
        let pieces = || {
            let layout = &inode.file.read().layout;
            (layout.pieces(offset, len), layout.id())
        };
        let found = pieces();
        if !found.0.iter().any(|piece| matches!(piece, Piece::Hole { .. })) {
            self.count_use(was_known);
            return Ok(found);
        }
        // The holes were confirmed, or the layout was fetched. Another thread may also have fetched
        // it since the first look.
        let are_holes = self.holes_hold(inode)?;
        self.count_use(was_known && are_holes);
        Ok(pieces())
    }

    /// Returns the places of the data, and their layout. Returns `None` if space is missing.
    pub(crate) fn targets<'d>(
        &self,
        inode: &Inode,
        offset: u64,
        mut data: &'d [u8],
    ) -> Result<Option<(WriteParts<'d>, LayoutId)>, ClientError> {
        let _span = span("layout", "layout of a write");
        let layout = &inode.file.read().layout;
        let mut parts = WriteParts::new();
        // Most writes lie in one extent.
        if let Some(place) = layout.one_place(layout.generation(), offset, data.len() as u64) {
            parts.push((self.place(layout.epoch(), place, data.len() as u64)?, data));
            return Ok(Some((parts, layout.id())));
        }
        for piece in layout.pieces(offset, data.len() as u64) {
            let Piece::Data { arena, len } = piece else { return Ok(None) };
            let (part, rest) = data.split_at(len as usize);
            parts.push((self.place(layout.epoch(), arena, len)?, part));
            data = rest;
        }
        Ok(Some((parts, layout.id())))
    }

    /// Returns the place of `len` bytes at an offset of the arena.
    pub(crate) fn place(&self, epoch: Epoch, offset: u64, len: u64) -> Result<Place, ClientError> {
        self.arena.place(epoch, offset, len).ok_or(ClientError::Protocol("an extent outside the arena"))
    }

    /// Runs `act` on an open file, and repeats it if a new epoch has begun meanwhile and voided its
    /// addresses.
    ///
    /// # Errors
    /// ESTALE if the file is gone. EIO if locks that were held in `issued_epoch` are lost: they
    /// may have guarded this operation.
    pub(crate) fn retry_in_new_epoch<R>(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        mut act: impl FnMut() -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        for _ in 0..TRIES {
            inode.locks.check_guards(issued_epoch)?;
            let (epoch, used) = (inode.layout_epoch(), self.remote.epochs().in_use);
            let has_begun = || epoch != self.remote.epochs().newest || used != self.remote.epochs().in_use;
            match act() {
                Err(ClientError::Request(RequestError::Disconnected) | ClientError::Errno(Errno::EBADF))
                    if has_begun() && self.calls.is_connected() => {}
                outcome => return outcome,
            }
            // The reclaim has renewed the layout, unless the file was opened just then.
            self.remote.ready()?;
            if inode.is_gone() {
                return Err(Errno::ESTALE.into());
            }
            if inode.layout_epoch() != self.remote.epochs().newest {
                let _calls = inode.layout_calls.lock();
                self.fetch_layout(inode, None)?;
            }
        }
        Err(ClientError::Unstable)
    }
}
