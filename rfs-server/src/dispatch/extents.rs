//! Requests that change the space of files other than by writing and truncation: fallocate, and copies within the server.
//!
//! Threading: as the dispatcher. Long ranges are zeroed and copied in steps, each of which has the inodes to itself; between two of
//! them others get their turn. An allocation that has to wait for space to be zeroed lets them go and starts over.

use rfs_proto::{Attr, Copied, Errno, FallocateFlags, MAX_FILE_SIZE, Reply, Request};
use seeded_faults::{Fault, seeded};

use super::{
    call::Call,
    data::Attempt,
    meta::{Meta, View},
    shards::Mode,
};
use crate::{alloc::Range, bytes::Bad};

/// Bytes that are zeroed or copied at a time.
const STEP: u64 = 256 << 10;

/// Bytes that one request copies at most, so that its answer does not take long.
const MAX_COPY: u64 = 16 << 20;

/// A copy under way.
#[derive(Clone, Copy)]
struct Copy {
    from: (u64, u64),
    to: (u64, u64),
    len: u64,
}

impl Call<'_> {
    pub(super) fn answer_extents(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Fallocate { ino, offset, len, flags } => {
                self.fallocate(session, ino, (offset, len), flags)
            }
            Request::Copy { from, from_offset, to, to_offset, len } => {
                let copy = Copy { from: (from, from_offset), to: (to, to_offset), len };
                self.copy(session, copy).map(Reply::Copied)
            }
            // The others are handled elsewhere.
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
                let punch = |meta: &mut Meta<'_>| meta.punch(session, ino, offset, end, now).map(Reply::Attr);
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

    /// Sees to it that a range has space, and no more than that.
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
        // What the copy itself puts behind the end of the source is no part of it.
        let len = self.look(&[from.0, to.0], |look| look.copy_len(session, copy))?.min(MAX_COPY);
        let mut buffer = Vec::new();
        let mut bytes = 0;
        while bytes < len {
            let step =
                Copy { from: (from.0, from.1 + bytes), to: (to.0, to.1 + bytes), len: STEP.min(len - bytes) };
            match self.copy_step(session, step, bytes, &mut buffer) {
                Ok(0) => break,
                Ok(copied) => bytes += copied,
                // What was copied so far counts.
                Err(_) if bytes > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        let attr = self.look(&[to.0], |look| look.shown(session, to.0))?;
        Ok(Copied { bytes, attr })
    }

    /// What was copied with this step and `before` is a whole reply: a repetition goes on nowhere, and copies nothing twice.
    fn copy_step(&self, session: u64, step: Copy, before: u64, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
        let inos = [step.from.0, step.to.0];
        loop {
            // Space first: only for what is not a hole, so that copies of sparse files are sparse.
            for (offset, len) in self.look(&inos, |look| look.lacking(session, step))? {
                self.provide(session, step.to.0, offset, offset + len)?;
            }
            let now = self.clock.now();
            let copy = |meta: &mut Meta<'_>| {
                let copied = meta.copy(session, step, buffer, now)?;
                if let Some(copied @ 1..) = copied {
                    let attr = meta.attr(step.to.0)?;
                    meta.say(self.number, &Reply::Copied(Copied { bytes: before + copied, attr }));
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
        if self.leases(ino).holds(session, ino) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// How much of a step there is to copy.
    fn copy_len(&self, session: u64, step: Copy) -> Result<u64, Errno> {
        for ino in [step.from.0, step.to.0] {
            self.check_open(session, ino)?;
        }
        self.may_read(step.from.0)?;
        self.may_write(step.to.0)?;
        let size = self.table.size(self.namespace.get(step.from.0)?.slot);
        Ok(step.len.min(size.saturating_sub(step.from.1)))
    }

    /// The ranges of the destination that need space: where the source has data.
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
    /// Says in the log that a block of one of two files is bad.
    fn bad_of_two(&self, (one, other): (u64, u64), bad: Bad) -> Errno {
        let has = |ino| {
            let mut extents = self.file(ino).into_iter().flat_map(|map| map.extents());
            extents.any(|extent| (extent.arena..extent.arena + extent.len).contains(&bad.place))
        };
        self.bad(if has(one) { one } else { other }, bad)
    }
}

impl Meta<'_> {
    /// Takes the space of whole blocks away, and zeroes the rest.
    fn punch(&mut self, session: u64, ino: u64, offset: u64, end: u64, now: i64) -> Result<Attr, Errno> {
        self.check_open(session, ino)?;
        self.may_write(ino)?;
        self.will_write(session, ino);
        let slot = self.namespace.get(ino)?.slot;
        let size = self.table.size(slot);
        self.table.begin(slot);
        let map = self.file_mut(ino)?;
        // What was given ahead of need goes, too, if the hole reaches it.
        let to = if end >= size && map.kept_to() <= end { u64::MAX } else { end };
        let given_up = map.punch(offset, to);
        let edges = if seeded(Fault::HoleKeepsEdges) { Vec::new() } else { map.pieces(offset, end) };
        self.give_up(session, ino, &given_up, &edges)?;
        self.pages_written(session, ino);
        self.changed_by_server(session, ino, now)
    }

    /// Zeroes a range that has space; what has none reads as zero in any case.
    fn zero(&mut self, session: u64, ino: u64, offset: u64, end: u64) -> Result<(), Errno> {
        self.check_open(session, ino)?;
        self.may_write(ino)?;
        for (_, place, len) in self.file(ino)?.pieces(offset, end) {
            if let Some(start) = place {
                self.space.zero(Range { start, len });
            }
        }
        Ok(())
    }

    /// Takes set-user-ID, set-group-ID and capabilities away, as a kernel does before a write.
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

    /// A range up to `end` got its space: the file reaches so far now, or keeps it all the same.
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

    /// The server changed the contents of a file.
    pub(super) fn changed_by_server(&mut self, session: u64, ino: u64, now: i64) -> Result<Attr, Errno> {
        if self.is_squashed() {
            self.drop_privileges(session, ino)?;
        }
        let inode = self.namespace.get_mut(ino)?;
        inode.mtime = now;
        inode.ctime = now;
        let (attr, space) = (inode.attr(ino), inode.space());
        self.table.publish_times(&attr, &space);
        self.shown(session, ino)
    }

    /// Copies; `None` if space is lacking after all.
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
                        copied.map_err(|bad| self.bad_of_two((step.from.0, step.to.0), bad))?;
                    }
                    (None, Some(start)) => self.space.zero(Range { start, len }),
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
