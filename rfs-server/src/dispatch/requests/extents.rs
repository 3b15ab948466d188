//! Requests that change the space of files: fallocate, and copies within the server.
//!
//! # Concurrency
//! As the dispatcher. A transaction zeroes or copies at most 256 KiB; other requests run in
//! between. An allocation that has to wait for clean space releases its inodes, waits, and starts
//! again.

use rfs_proto::{Attr, Copied, Errno, FallocateFlags, MAX_FILE_SIZE, Reply, Request};
use seeded_faults::seeded;

use super::data::Attempt;
use crate::{
    dispatch::{
        state::shards::Mode,
        transaction::{
            call::Call,
            view::{View, WriteView},
        },
    },
    space::{alloc::range::Range, bytes::Bad, lent_memory::Unusable},
};

/// Bytes that one transaction zeroes or copies at most.
const STEP: u64 = 256 << 10;

/// Bytes that one request copies at most, to bound its latency.
const MAX_COPY: u64 = 16 << 20;

/// A copy in progress.
#[derive(Clone, Copy)]
struct Copy {
    from: (u64, u64),
    to: (u64, u64),
    len: u64,
}

impl Call<'_> {
    pub(in crate::dispatch) fn answer_extents(
        &self,
        session: u64,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
        match request {
            Request::Fallocate { ino, offset, len, flags } => {
                self.fallocate(session, ino, (offset, len), flags)
            }
            Request::Copy { from, from_offset, to, to_offset, len } => {
                let copy = Copy { from: (from, from_offset), to: (to, to_offset), len };
                self.copy(session, copy).map(Reply::Copied)
            }
            // Other modules handle the other requests.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn fallocate(
        &self,
        session: u64,
        ino: u64,
        (offset, len): (u64, u64),
        flags: FallocateFlags,
    ) -> Result<Reply, Errno> {
        use FallocateFlags as F;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
        let keep_size = flags.contains(F::KEEP_SIZE);
        match flags - F::KEEP_SIZE {
            F::PUNCH_HOLE if keep_size => {
                let now = self.clock.now();
                let punch =
                    |meta: &mut WriteView<'_>| meta.punch(session, ino, offset, end, now).map(Reply::Attr);
                return self.answered(&[ino], punch);
            }
            what if what.is_empty() || what == F::ZERO_RANGE => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.provide(session, ino, offset, end)?;
        if flags.contains(F::ZERO_RANGE) {
            let mut at = offset;
            while at < end {
                let stop = end.min(at + STEP);
                self.locked(&[ino], |meta| meta.zero(session, ino, at, stop))?;
                at = stop;
            }
        }
        let now = self.clock.now();
        self.answered(&[ino], |meta| meta.extend(session, ino, end, keep_size, now).map(Reply::Attr))
    }

    /// Allocates the space of a range, and no more.
    fn provide(&self, session: u64, ino: u64, offset: u64, end: u64) -> Result<(), Errno> {
        loop {
            match self.locked(&[ino], |meta| meta.try_allocate(session, ino, offset, end, false))? {
                Attempt::Done(_) => return Ok(()),
                Attempt::NotClean => self.space.gain_clean(),
            }
        }
    }

    fn copy(&self, session: u64, copy: Copy) -> Result<Copied, Errno> {
        let Copy { from, to, len } = copy;
        let from_end = from.1.checked_add(len).ok_or(Errno::EFBIG)?;
        let to_end = to.1.checked_add(len).filter(|&end| end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
        if from.0 == to.0 && from.1 < to_end && to.1 < from_end {
            return Err(Errno::EINVAL);
        }
        // The length is fixed first: bytes that the copy itself appends to the source are not
        // copied.
        let len = self.look(&[from.0, to.0], |look| look.copy_len(session, copy))?.min(MAX_COPY);
        let mut buffer = Vec::new();
        let mut bytes = 0;
        while bytes < len {
            let step =
                Copy { from: (from.0, from.1 + bytes), to: (to.0, to.1 + bytes), len: STEP.min(len - bytes) };
            match self.copy_step(session, step, bytes, &mut buffer) {
                Ok(0) => break,
                Ok(copied) => bytes += copied,
                // The reply reports the bytes that were copied.
                Err(_) if bytes > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        let attr = self.look(&[to.0], |look| look.uncached_attrs(session, to.0))?;
        Ok(Copied { bytes, attr })
    }

    /// Copies one step. The logged reply covers this step and the `before` bytes ahead of it. So a
    /// repeated request gets a complete reply, and copies no byte twice.
    fn copy_step(&self, session: u64, step: Copy, before: u64, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
        let inos = [step.from.0, step.to.0];
        loop {
            // Allocates space first, only where the source has data, so that copies of sparse files
            // are sparse.
            for (offset, len) in self.look(&inos, |look| look.lacking(session, step))? {
                self.provide(session, step.to.0, offset, offset + len)?;
            }
            let now = self.clock.now();
            let copy = |meta: &mut WriteView<'_>| {
                let copied = meta.copy(session, step, buffer, now)?;
                if let Some(copied @ 1..) = copied {
                    let attr = meta.attr(step.to.0)?;
                    meta.set_reply(self.number, &Reply::Copied(Copied { bytes: before + copied, attr }));
                }
                Ok(copied)
            };
            if let Some(copied) = self.locked(&inos, copy)? {
                return Ok(copied);
            }
        }
    }
}

impl<M: Mode> View<'_, M> {
    fn check_open(&self, session: u64, ino: u64) -> Result<(), Errno> {
        if self.open_files(ino).holds(session, ino) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Returns the number of bytes of a step that lie within the source.
    fn copy_len(&self, session: u64, step: Copy) -> Result<u64, Errno> {
        for ino in [step.from.0, step.to.0] {
            self.check_open(session, ino)?;
        }
        self.may_read(step.from.0)?;
        self.may_write(step.to.0)?;
        let size = self.table.size(self.namespace.get(step.from.0)?.slot);
        Ok(step.len.min(size.saturating_sub(step.from.1)))
    }

    /// Returns the ranges of the destination that need space: those where the source has data.
    fn lacking(&self, session: u64, step: Copy) -> Result<Vec<(u64, u64)>, Errno> {
        let len = self.copy_len(session, step)?;
        let source = self.file(step.from.0)?.pieces(step.from.1, step.from.1 + len);
        let data = source.into_iter().filter(|(_, place, _)| place.is_some());
        let there: Vec<(u64, u64)> = data.map(|(at, _, len)| (at - step.from.1 + step.to.1, len)).collect();
        let map = self.file(step.to.0)?;
        let lacks =
            |&(at, len): &(u64, u64)| map.pieces(at, at + len).iter().any(|(_, place, _)| place.is_none());
        Ok(there.into_iter().filter(|range| lacks(range)).collect())
    }
}

impl<M: Mode> View<'_, M> {
    /// Logs that a block of one of two files is bad.
    fn bad_of_two(&self, (one, other): (u64, u64), bad: Bad) -> Errno {
        let has = |ino| {
            let mut extents = self.file(ino).into_iter().flat_map(|map| map.extents());
            extents.any(|extent| (extent.arena..extent.arena + extent.len).contains(&bad.place))
        };
        self.bad(if has(one) { one } else { other }, bad)
    }
}

impl WriteView<'_> {
    /// Frees the whole blocks of a range, and zeroes the rest.
    fn punch(&mut self, session: u64, ino: u64, offset: u64, end: u64, now: i64) -> Result<Attr, Errno> {
        self.check_open(session, ino)?;
        self.may_write(ino)?;
        self.will_write(session, ino);
        let slot = self.namespace.get(ino)?.slot;
        let size = self.table.size(slot);
        self.table.begin(slot);
        let map = self.file(ino)?;
        // Space that was given ahead of need goes, too, if the hole reaches it.
        let to = if end >= size && map.kept_to() <= end { u64::MAX } else { end };
        let edges = seeded!(HoleKeepsEdges, Vec::new(), map.edges(offset, end));
        // First, because a store may not answer: then nothing has changed but zeroes.
        let zeroed = self.zero_pieces(&edges);
        if zeroed.is_err() {
            self.publish(ino);
        }
        let zeroed = zeroed?;
        let given_up = self.file_mut(ino)?.punch(offset, to);
        self.give_up(session, ino, &given_up, zeroed)?;
        self.pages_written(session, ino);
        self.changed_by_server(session, ino, now)
    }

    /// Zeroes the parts of a range that have space. Holes read as zeroes.
    fn zero(&mut self, session: u64, ino: u64, offset: u64, end: u64) -> Result<(), Errno> {
        self.check_open(session, ino)?;
        self.may_write(ino)?;
        for (_, place, len) in self.file(ino)?.pieces(offset, end) {
            if let Some(start) = place {
                self.space.zero(Range { start, len }).map_err(|_| Errno::EIO)?;
            }
        }
        Ok(())
    }

    /// Removes set-user-ID, set-group-ID and capabilities, as a kernel does before a write.
    fn drop_privileges(&mut self, session: u64, ino: u64) -> Result<(), Errno> {
        let inode = self.namespace.get_mut(ino)?;
        let before = (inode.perm, inode.xattr_bytes());
        inode.drop_privileges();
        let after = (inode.perm, inode.xattr_bytes());
        self.xattrs.give_back(before.1 - after.1);
        if after != before {
            self.attr_changed(session, ino);
        }
        Ok(())
    }

    /// Completes the allocation of a range up to `end`: the file grows to `end`, or keeps the space
    /// beyond its size.
    fn extend(&mut self, session: u64, ino: u64, end: u64, keep_size: bool, now: i64) -> Result<Attr, Errno> {
        let slot = self.namespace.get(ino)?.slot;
        if keep_size {
            if end > self.table.size(slot) {
                self.file_mut(ino)?.keep(end);
            }
        } else {
            self.table.raise_size(slot, end);
        }
        self.pages_written(session, ino);
        self.changed_by_server(session, ino, now)
    }

    /// Updates times and attributes after the server has changed the contents of a file.
    pub(in crate::dispatch) fn changed_by_server(
        &mut self,
        session: u64,
        ino: u64,
        now: i64,
    ) -> Result<Attr, Errno> {
        if self.is_squashed() {
            self.drop_privileges(session, ino)?;
        }
        let inode = self.namespace.get_mut(ino)?;
        inode.mtime = now;
        inode.ctime = now;
        let (attr, space) = (inode.record_attr(ino), inode.space());
        self.table.publish_times(&attr, &space);
        self.uncached_attrs(session, ino)
    }

    /// Copies one step. Returns `None` if space is missing after all.
    fn copy(
        &mut self,
        session: u64,
        step: Copy,
        buffer: &mut Vec<u8>,
        now: i64,
    ) -> Result<Option<u64>, Errno> {
        if !self.lacking(session, step)?.is_empty() {
            return Ok(None);
        }
        let len = self.copy_len(session, step)?;
        if len == 0 {
            return Ok(Some(0));
        }
        self.will_write(session, step.to.0);
        let source = self.file(step.from.0)?.pieces(step.from.1, step.from.1 + len);
        for (at, place, len) in source {
            let at = at - step.from.1 + step.to.1;
            let mut from = place;
            for (_, to, len) in self.file(step.to.0)?.pieces(at, at + len) {
                match (from, to) {
                    (Some(start), Some(to)) => {
                        let copied = self.space.copy(Range { start, len }, to, buffer);
                        copied.map_err(|error| match error {
                            Unusable::Bad(bad) => self.bad_of_two((step.from.0, step.to.0), bad),
                            Unusable::Store(_) => Errno::EIO,
                        })?;
                    }
                    (None, Some(start)) => {
                        self.space.zero(Range { start, len }).map_err(|_| Errno::EIO)?;
                    }
                    (_, None) => {}
                }
                from = from.map(|from| from + len);
            }
        }
        let slot = self.namespace.get(step.to.0)?.slot;
        self.table.raise_size(slot, step.to.1 + len);
        self.pages_written(session, step.to.0);
        self.changed_by_server(session, step.to.0, now)?;
        Ok(Some(len))
    }
}
