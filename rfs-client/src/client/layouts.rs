//! Reading records, and fetching and extending the layout of an open file.
//!
//! # Concurrency
//! Session threads, and the thread that obeys recalls. `layout_calls` is held over the calls that
//! fetch or extend a layout. A recall takes `layout_users` exclusively.

use rfs_proto::{BLOCK, Errno, Layout, Recall, Reply, Request};

use crate::{
    Client, ClientError,
    inode::{
        Inode,
        layout::{LayoutCache, Piece, Pieces, validate},
        size::{LayoutId, LookStart},
    },
    memory::records::Glimpse,
};

/// Number of attempts of an operation while the file's layout keeps changing.
pub(crate) const TRIES: usize = 16;

/// Returns about half of `len` bytes at `offset`, rounded to the end of a block. Returns `None`
/// if all bytes lie in one block.
fn fewer(offset: u64, len: usize) -> Option<usize> {
    let first = BLOCK - offset % BLOCK;
    let half = (offset.saturating_add(len as u64 / 2) / BLOCK * BLOCK).saturating_sub(offset);
    let fewer = usize::try_from(half.max(first)).ok()?;
    (fewer < len).then_some(fewer)
}

impl Client {
    /// Writes as [`write`](Self::write). If there is not enough space, writes a shorter first part.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// ENOSPC if there is no space for the first block.
    pub fn write_some(&self, ino: u64, offset: u64, data: &[u8]) -> Result<usize, ClientError> {
        let mut len = data.len();
        loop {
            match self.write(ino, offset, &data[..len]) {
                Err(ClientError::Errno(Errno::ENOSPC)) => len = fewer(offset, len).ok_or(Errno::ENOSPC)?,
                written => return written.map(|()| len),
            }
        }
    }

    /// Returns the state to note before the read of a size.
    pub(crate) fn before_look(&self) -> LookStart {
        LookStart { era: self.remote.era(), epoch: self.inodes.recalls().now() }
    }

    /// Reads the size, generation and space of an inode.
    ///
    /// # Errors
    /// Fails without a session, even if the record is mapped.
    pub(crate) fn look(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if self.records.is_mapped() {
            self.remote.ready()?;
        }
        self.peek(inode)
    }

    /// Reads as [`look`](Self::look), for a caller that uses the session before or after. A mapped
    /// record can be read without a session.
    pub(crate) fn peek(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if let Some(slot) = inode.slot()
            && let Some(glimpse) = self.records.glimpse(inode.ino, slot)
        {
            return Ok(glimpse);
        }
        let start = self.before_look();
        let read = match inode.slot() {
            Some(slot) => self.records.read(inode.ino, slot)?,
            None => None,
        };
        let now = match read {
            Some(seen) => seen.glimpse(),
            None => {
                let attr = self.call_attr(&Request::GetAttr { ino: inode.ino })?;
                Glimpse { size: attr.size, generation: attr.layout_generation, allocated: None }
            }
        };
        inode.saw(start, now.generation, now.size);
        Ok(now)
    }

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
            let (era, voids) = (self.remote.era(), self.inodes.void_count());
            let first = self.call_layout(&Request::Layout { ino: inode.ino, offset: 0 })?;
            let mut fresh = LayoutCache::of(&first, era);
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
            if let Some(Glimpse { generation, allocated, .. }) = seen {
                fresh.set_stamp(generation, allocated);
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
        let (era, voids) = (self.remote.era(), self.inodes.void_count());
        let reply = self.call_layout(&Request::Allocate { ino: inode.ino, offset, len })?;
        let all = {
            let mut layout = inode.layout.write();
            layout.era() == era
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

    /// Gives up the layouts in these recalls of an era. On return no operation uses them, and none
    /// will.
    pub(crate) fn give_layouts_back(&self, era: u32, recalls: &[Recall]) {
        for recall in recalls {
            match *recall {
                Recall::Layout { ino, generation } => {
                    let Some(inode) = self.inodes.get_or_void(ino) else { continue };
                    let _excluded = inode.exclude_layout_users();
                    inode.layout_recalled(era, generation);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_shorter_write_ends_at_a_block() {
        for (offset, len, expected) in [
            (0, 1 << 20, Some(512 << 10)),
            (5, 1 << 20, Some((512 << 10) - 5)),
            (0, 8192, Some(4096)),
            (4090, 10, Some(6)),
            (4090, 6, None),
            (0, 4096, None),
            (1, 0, None),
            (0, 4097, Some(4096)),
        ] {
            assert_eq!(fewer(offset, len), expected, "{len} bytes at {offset}");
        }
    }

    proptest! {
        #[test]
        fn shorter_writes_come_down_to_the_first_block(offset in 0..1_u64 << 62, len in 1..4_usize << 20) {
            let mut at = len;
            while let Some(less) = fewer(offset, at) {
                prop_assert!(0 < less && less < at);
                prop_assert!((offset + less as u64).is_multiple_of(BLOCK));
                at = less;
            }
            prop_assert_eq!(at, len.min((BLOCK - offset % BLOCK) as usize));
        }
    }
}
