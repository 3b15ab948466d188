//! Fetching and extending the layout of an open file.
//!
//! # Concurrency
//! Session threads, and the thread that obeys recalls. `layout_calls` is held over the calls that
//! fetch or extend a layout. A recall takes `layout_users` exclusively.

use rfs_proto::{Layout, Recall, Reply, Request};

use crate::{
    client::{Client, TRIES},
    error::ClientError,
    inode::{
        Inode,
        layout::{LayoutCache, Piece, Pieces, validate},
        size::LayoutId,
    },
    memory::records::Glimpse,
    remote::address::Epoch,
};

impl Client {
    /// Fetches the layout again, unless it is of this generation.
    pub(crate) fn follow_generation(&self, inode: &Inode, generation: u64) -> Result<(), ClientError> {
        let _calls = inode.layout_calls.lock();
        if inode.layout.read().generation() == generation {
            return Ok(());
        }
        self.fetch_layout(inode, None)
    }

    /// Makes sure that the layout is known up to `to`.
    pub(crate) fn know(&self, inode: &Inode, to: u64) -> Result<(), ClientError> {
        if inode.layout.read().known_to() >= to {
            return Ok(());
        }
        let _calls = inode.layout_calls.lock();
        if inode.layout.read().known_to() >= to {
            return Ok(());
        }
        self.fetch_layout(inode, None)
    }

    /// Returns true if the layout's holes are known to be holes still. Otherwise fetches the layout
    /// and returns false.
    pub(crate) fn holes_hold(&self, inode: &Inode) -> Result<bool, ClientError> {
        let matches = |now: Glimpse| {
            let layout = inode.layout.read();
            layout.generation() == now.generation
                && now.allocated.is_some()
                && layout.stamp() == now.allocated
        };
        if matches(self.look(inode)?) {
            return Ok(true);
        }
        let _calls = inode.layout_calls.lock();
        let now = self.look(inode)?;
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
        let mut layout = inode.layout.write();
        self.inodes.void_count() == voids && layout.renew(fresh)
    }

    /// Makes sure that a range has space. ENOSPC changes nothing.
    pub(crate) fn allocate(&self, inode: &Inode, offset: u64, len: u64) -> Result<(), ClientError> {
        let _calls = inode.layout_calls.lock();
        if inode.layout.read().covers(offset, len) {
            return Ok(());
        }
        let (epoch, voids) = (self.remote.epochs().newest, self.inodes.void_count());
        let reply = self.call_layout(&Request::Allocate { ino: inode.ino, offset, len })?;
        let all = {
            let mut layout = inode.layout.write();
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
        let Reply::Layout(layout) = self.call(request)? else {
            return Err(ClientError::Protocol("a reply of the wrong kind"));
        };
        validate(&layout, self.arena.len).map_err(ClientError::Protocol)?;
        Ok(layout)
    }

    /// Returns the pieces of a range to read, and the layout that they are of.
    pub(crate) fn readable(
        &self,
        inode: &Inode,
        offset: u64,
        len: u64,
    ) -> Result<(Pieces, LayoutId), ClientError> {
        self.know(inode, offset.saturating_add(len))?;
        let pieces = || {
            let layout = inode.layout.read();
            (layout.pieces(offset, len), layout.id())
        };
        let found = pieces();
        if !found.0.iter().any(|piece| matches!(piece, Piece::Hole { .. })) {
            return Ok(found);
        }
        // The holes were confirmed, or the layout was fetched. Another thread may also have fetched
        // it since the first look.
        self.holes_hold(inode)?;
        Ok(pieces())
    }
}
