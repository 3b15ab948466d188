//! Keeping the layout of an open file: looking whether it still holds, fetching it, asking for space.

use rfs_proto::{BLOCK, Errno, Layout, Recall, Reply, Request};

use super::{
    Client, ClientError,
    inode::Inode,
    layout::{LayoutCache, Piece, Pieces, validate},
    record::Glimpse,
    size::{LayoutId, LookStart},
};

/// How often an operation begins anew because the file's space changed under it.
pub(crate) const TRIES: usize = 16;

/// About half as many bytes from an offset on, up to the end of a block. `None` if they all lie in one block.
fn fewer(offset: u64, len: usize) -> Option<usize> {
    let first = BLOCK - offset % BLOCK;
    let half = (offset.saturating_add(len as u64 / 2) / BLOCK * BLOCK).saturating_sub(offset);
    let fewer = usize::try_from(half.max(first)).ok()?;
    (fewer < len).then_some(fewer)
}

impl Client {
    /// Writes as [`write`](Self::write), or, where there is not enough space for all of it, a part of it from the beginning. How many bytes;
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

    /// Returns what a look at a size has to know that begins now.
    pub(crate) fn before_look(&self) -> LookStart {
        LookStart { era: self.remote.era(), epoch: self.inodes.recalls().now() }
    }

    /// Looks at an inode's record now. An error without a session.
    pub(crate) fn look(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if self.records.is_mapped() {
            self.remote.ready()?;
        }
        self.peek(inode)
    }

    /// Looks at an inode's record for who has just used the session, or is about to: where it is mapped, there may be no session any more.
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

    /// Fetches the layout again unless it is of this generation.
    pub(crate) fn follow_generation(&self, inode: &Inode, generation: u64) -> Result<(), ClientError> {
        let _calls = inode.layout_calls.lock();
        if inode.layout.read().generation() == generation {
            return Ok(());
        }
        self.fetch_layout(inode, None)
    }

    /// Makes the layout known up to `to`.
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

    /// True if the holes of the layout are known to be holes still; false after the layout was fetched to find out.
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
            self.fetch_layout(inode, now.allocated)?;
        }
        Ok(false)
    }

    /// Fetches the whole layout. With `layout_calls` held.
    pub(super) fn fetch_layout(&self, inode: &Inode, stamp: Option<u64>) -> Result<(), ClientError> {
        'anew: for _ in 0..TRIES {
            let (era, voids) = (self.remote.era(), self.inodes.voids());
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
            fresh.set_stamp(stamp);
            if self.take_in(inode, fresh, voids) {
                return Ok(());
            }
        }
        Err(ClientError::Unstable)
    }

    /// Takes in a layout that was asked for when so many had become void. False, and nothing done, if it has, too.
    pub(super) fn take_in(&self, inode: &Inode, fresh: LayoutCache, voids: u64) -> bool {
        // Counted before it is cleared, which waits for this.
        let mut layout = inode.layout.write();
        self.inodes.voids() == voids && layout.renew(fresh)
    }

    /// Makes sure that a range has space. ENOSPC changes nothing.
    pub(crate) fn allocate(&self, inode: &Inode, offset: u64, len: u64) -> Result<(), ClientError> {
        let _calls = inode.layout_calls.lock();
        if inode.layout.read().covers(offset, len) {
            return Ok(());
        }
        let (era, voids) = (self.remote.era(), self.inodes.voids());
        let reply = self.call_layout(&Request::Allocate { ino: inode.ino, offset, len })?;
        let all = {
            let mut layout = inode.layout.write();
            layout.era() == era
                && self.inodes.voids() == voids
                && layout.merge(offset, &reply)
                && layout.known_to() >= offset.saturating_add(len)
        };
        // A reply may hold only a part of the extents of a file in many pieces.
        if all { Ok(()) } else { self.fetch_layout(inode, None) }
    }

    /// The server may have changed the layout, or be about to.
    pub(super) fn lose_layout(&self, inode: &Inode) {
        // In this order: what is on its way is not taken in after it is forgotten.
        self.inodes.void_what_comes();
        inode.forget_layout();
    }

    /// On return no operation uses what these recalls, which came in an era, take from layouts, and none will.
    pub(crate) fn give_layouts_back(&self, era: u32, recalls: &[Recall]) {
        for recall in recalls {
            match *recall {
                Recall::Layout { ino, generation } => {
                    let Some(inode) = self.inodes.get_or_void(ino) else { continue };
                    let _unused = inode.unused();
                    inode.layout_recalled(era, generation);
                }
                Recall::All => {
                    self.inodes.void_what_comes();
                    for inode in self.inodes.numbers().into_iter().filter_map(|ino| self.inodes.get(ino)) {
                        let _unused = inode.unused();
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

    /// Returns the pieces of a range that is read, and by which layout.
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
        // Here they hold, or the layout was fetched. Another thread may have done so, too, since the pieces above
        // were taken.
        self.holes_hold(inode)?;
        Ok(pieces())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_of_it_to_the_end_of_a_block() {
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
        fn it_comes_down_to_the_first_block(offset in 0..1_u64 << 62, len in 1..4_usize << 20) {
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
