//! Reading and writing, one-sidedly.
//!
//! A write places its pieces and, past the end of the file, raises the size in the same list. Where records are
//! mapped, every operation looks at the record. Over a network an operation inside the known size ([`super::size`])
//! does not look, because the server recalls that size before it falls; all others read the record at the end of
//! their list. An operation that finds a new layout generation begins anew.

use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};

use rdmabox::{Memory, Op, RemoteAddr, RequestError};
use rfs_proto::{Errno, MAX_FILE_SIZE, record};
use smallvec::SmallVec;

use super::{
    Client, ClientError,
    clock::WriteTimes,
    inode::Inode,
    layout::Piece,
    record::{Glimpse, RawRecord, Seen},
    remote::{Mapped, at},
    size::{LayoutId, LookStart},
    space::TRIES,
};

/// Bytes that a read brought.
#[derive(Debug)]
pub enum ReadData<'a> {
    /// In the server's memory, which is mapped here and which others may be changing.
    Mapped {
        /// The mapping.
        memory: &'a Memory,
        /// First byte in it.
        offset: usize,
        /// Bytes.
        len: usize,
    },
    /// In the caller's buffer.
    Bytes(&'a [u8]),
}

/// Parts of one write, in the order of the file.
pub(crate) type Parts<'a> = SmallVec<[(RemoteAddr, &'a [u8]); 4]>;

/// Parts of one read, and where each goes.
pub(crate) type Reads<'a> = SmallVec<[(RemoteAddr, &'a mut [u8]); 4]>;

/// Steps of a list that a session takes for certain; pieces beyond go before it.
pub(crate) const LIST: usize = 32;

/// One list for the session.
pub(crate) type Ops<'a> = SmallVec<[Op<'a>; 8]>;

impl Client {
    pub(crate) fn opened(&self, ino: u64) -> Result<Arc<Inode>, ClientError> {
        self.inodes.get(ino).ok_or_else(|| Errno::EBADF.into())
    }

    /// Reads up to `len` bytes at `offset` of an open file, fewer at its end, and hands them to `sink`: in place
    /// where that is possible, else in `buffer`, which grows as needed and can be used again and again.
    pub fn read<R>(
        &self,
        ino: u64,
        offset: u64,
        len: usize,
        buffer: &mut Vec<u8>,
        sink: impl FnOnce(ReadData<'_>) -> R,
    ) -> Result<R, ClientError> {
        self.read_since(self.remote.era_in_use(), (ino, offset, len), buffer, sink)
    }

    /// As [`read`](Self::read), of what was asked for in an era that may be over.
    pub(super) fn read_since<R>(
        &self,
        since: u32,
        (ino, offset, len): (u64, u64, usize),
        buffer: &mut Vec<u8>,
        sink: impl FnOnce(ReadData<'_>) -> R,
    ) -> Result<R, ClientError> {
        let inode = self.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        self.was_read(&inode);
        // Until the bytes are here: who is answered may ask for the next ones at once, alone.
        let counted = (!self.records.is_mapped()).then(|| self.one_transfer());
        let end = offset.saturating_add(len as u64);
        if let Some(sums) = &self.sums {
            let bytes = self.read_checked(sums, &inode, since, (offset, end), buffer)?;
            drop(counted);
            return Ok(sink(ReadData::Bytes(&buffer[bytes])));
        }
        for attempt in 1..=TRIES {
            let _places = inode.places.read();
            if let Some(map) = &self.arena_map
                && self.records.is_mapped()
            {
                let now = self.look(&inode)?;
                if inode.layout.read().generation() != now.generation {
                    self.follow_generation(&inode, now.generation)?;
                    continue;
                }
                let len = end.min(now.size).saturating_sub(offset);
                return self.read_mapped(&inode, map, offset, len, buffer, sink);
            }
            let last = attempt == TRIES;
            if let Some(len) =
                self.in_its_era(&inode, since, || self.read_remote(&inode, offset, end, buffer, last))?
            {
                drop(counted);
                return Ok(sink(ReadData::Bytes(&buffer[..len])));
            }
        }
        Err(ClientError::Unstable)
    }

    fn read_mapped<R>(
        &self,
        inode: &Inode,
        map: &Mapped,
        offset: u64,
        len: u64,
        buffer: &mut Vec<u8>,
        sink: impl FnOnce(ReadData<'_>) -> R,
    ) -> Result<R, ClientError> {
        if len == 0 {
            return Ok(sink(ReadData::Bytes(&[])));
        }
        let (pieces, _) = self.readable(inode, offset, len)?;
        // Layouts were checked to lie inside the arena, and the arena is mapped whole.
        let place = |arena: u64| map.offset + arena as usize;
        if let [Piece::Data { arena, len }] = pieces[..] {
            return Ok(sink(ReadData::Mapped {
                memory: &map.memory,
                offset: place(arena),
                len: len as usize,
            }));
        }
        let mut rest = room(buffer, len as usize);
        for piece in &pieces {
            let (out, behind) = rest.split_at_mut(piece.len() as usize);
            match *piece {
                Piece::Data { arena, .. } => map.memory.read(place(arena), out),
                Piece::Hole { .. } => out.fill(0),
            }
            rest = behind;
        }
        Ok(sink(ReadData::Bytes(&buffer[..len as usize])))
    }

    /// Reads over the network into the beginning of `buffer`; `None` to begin anew. `accept` takes an end of file
    /// that may have moved on during this read.
    fn read_remote(
        &self,
        inode: &Inode,
        offset: u64,
        end: u64,
        buffer: &mut Vec<u8>,
        accept: bool,
    ) -> Result<Option<usize>, ClientError> {
        let start = self.before_look();
        let known = *inode.size.lock();
        let size = known.guess();
        let len = end.min(size).saturating_sub(offset);
        let (pieces, layout) = match len {
            0 => (SmallVec::new(), inode.layout.read().id()),
            _ => self.readable(inode, offset, len)?,
        };
        let mut parts = Reads::new();
        let mut rest = room(buffer, len as usize);
        for piece in &pieces {
            let (out, behind) = rest.split_at_mut(piece.len() as usize);
            match *piece {
                Piece::Data { arena, len } => parts.push((self.arena_addr(layout.era, arena, len)?, out)),
                Piece::Hole { .. } => out.fill(0),
            }
            rest = behind;
        }
        if known.reaches(layout, end, self.inodes.recalls().now()) {
            if !parts.is_empty() {
                self.remote.read_vectored(&mut parts)?;
            }
            return Ok(Some(len as usize));
        }
        let now = self.read_and_look(inode, parts, start)?;
        if now.generation != layout.generation {
            self.follow_generation(inode, now.generation)?;
            return Ok(None);
        }
        if now.size > size && end > size && !accept {
            return Ok(None);
        }
        Ok(Some(len.min(now.size.saturating_sub(offset)) as usize))
    }

    /// Reads, and looks at the record behind that in the same list. Returns what the record says.
    pub(crate) fn read_and_look(
        &self,
        inode: &Inode,
        mut parts: Reads<'_>,
        start: LookStart,
    ) -> Result<Glimpse, ClientError> {
        let (slot, remote) = self.record_of(inode)?;
        let mut raw: RawRecord = [0; record::LEN];
        if parts.len() >= LIST {
            self.remote.read_vectored(&mut parts)?;
            parts.clear();
        }
        let mut ops: Ops<'_> = parts.into_iter().map(|(remote, out)| Op::Read { remote, out }).collect();
        ops.push(Op::Read { remote, out: &mut raw });
        self.remote.execute(&mut ops)?;
        drop(ops);
        let Some(seen) = Seen::decode(&raw, inode.ino, slot) else { return self.look(inode) };
        inode.saw(start, seen.attr.layout_generation, seen.attr.size);
        Ok(seen.glimpse())
    }

    /// Writes `data` at `offset` of an open file. On return it is in place, whoever reads next.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.write_since(self.remote.era_in_use(), ino, offset, data)
    }

    /// The same, of what was asked for in an era that may be over.
    pub(super) fn write_since(
        &self,
        since: u32,
        ino: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        self.write_then(since, (ino, offset), data, |inode| self.stamp(inode))
    }

    /// Writes to an open file, and does something more while it is open for certain.
    pub(crate) fn write_then(
        &self,
        since: u32,
        (ino, offset): (u64, u64),
        data: &[u8],
        then: impl Fn(&Inode) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_SIZE);
        let end = end.ok_or(Errno::EFBIG)?;
        self.repeats.those_left();
        let inode = self.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        let _counted = (!self.records.is_mapped()).then(|| self.one_transfer());
        let write = || self.write_open(&inode, since, (offset, end), data).and_then(|()| then(&inode));
        self.in_its_era(&inode, since, write)
    }

    /// Writes up to `end` into a file that stays open meanwhile, what was asked for in the era `since`.
    pub(crate) fn write_open(
        &self,
        inode: &Inode,
        since: u32,
        (offset, end): (u64, u64),
        data: &[u8],
    ) -> Result<(), ClientError> {
        if self.writes_by_server() {
            return self.write_by_server(inode, since, (offset, end), data);
        }
        for _ in 0..TRIES {
            let places = inode.places.read();
            let Some((parts, layout)) = self.targets(inode, offset, data)? else {
                drop(places);
                self.allocate(inode, offset, data.len() as u64)?;
                continue;
            };
            // The places may be those of the next era: space was asked for meanwhile, or another look taken.
            guarded_since(inode, since)?;
            let placed = match self.records.is_mapped() {
                true => self.write_mapped(inode, layout, end, &parts)?,
                false => self.write_remote(inode, layout, end, &parts)?,
            };
            if placed {
                return Ok(());
            }
        }
        Err(ClientError::Unstable)
    }

    /// Writes to places of a layout where the record is mapped. False to begin anew.
    fn write_mapped(
        &self,
        inode: &Inode,
        layout: LayoutId,
        end: u64,
        parts: &Parts<'_>,
    ) -> Result<bool, ClientError> {
        let size = self.peek(inode)?.size;
        if end > size {
            return self.write_and_raise(inode, layout, (size, end), parts);
        }
        self.remote.write_vectored(parts)?;
        self.still_there(inode, layout.generation, end)
    }

    /// Writes to places of a layout over a network. False to begin anew.
    ///
    /// If the file is known to reach so far, the bytes are all that is sent. Otherwise the list takes a look
    /// at the record, which costs no round trip.
    fn write_remote(
        &self,
        inode: &Inode,
        layout: LayoutId,
        end: u64,
        parts: &Parts<'_>,
    ) -> Result<bool, ClientError> {
        let known = *inode.size.lock();
        if !known.reaches(layout, end, self.inodes.recalls().now()) {
            return self.write_and_raise(inode, layout, (known.guess(), end), parts);
        }
        let repeats = self.remote.repeats();
        self.remote.write_vectored(parts)?;
        // The server may be another one by now, which does not know that this client has to hear of a fall.
        Ok(self.remote.repeats() == repeats || self.still_there(inode, layout.generation, end)?)
    }

    /// Returns where the data goes, and by which layout; `None` if there is not enough space yet.
    pub(crate) fn targets<'d>(
        &self,
        inode: &Inode,
        offset: u64,
        mut data: &'d [u8],
    ) -> Result<Option<(Parts<'d>, LayoutId)>, ClientError> {
        let layout = inode.layout.read();
        let mut parts = Parts::new();
        for piece in layout.pieces(offset, data.len() as u64) {
            let Piece::Data { arena, len } = piece else { return Ok(None) };
            let (part, rest) = data.split_at(len as usize);
            parts.push((self.arena_addr(layout.era(), arena, len)?, part));
            data = rest;
        }
        Ok(Some((parts, layout.id())))
    }

    pub(crate) fn arena_addr(&self, era: u32, arena: u64, len: u64) -> Result<RemoteAddr, ClientError> {
        at(&self.arena, era, arena, len).ok_or(ClientError::Protocol("an extent outside the arena"))
    }

    /// True if what was just written up to `end` under `generation` is part of the file. Without a session by now it is as if that had been
    /// lost after this: whoever truncates changes the record first.
    fn still_there(&self, inode: &Inode, generation: u64, end: u64) -> Result<bool, ClientError> {
        // Bytes that were stored in mapped memory are there for everybody before the record is looked at.
        fence(Ordering::SeqCst);
        let now = self.peek(inode)?;
        if now.generation != generation {
            self.follow_generation(inode, now.generation)?;
            return Ok(false);
        }
        Ok(now.size >= end)
    }

    /// Writes, and makes the file `end` bytes long if it is shorter. `size` is a guess. False to begin anew.
    fn write_and_raise(
        &self,
        inode: &Inode,
        layout: LayoutId,
        (mut size, end): (u64, u64),
        parts: &Parts<'_>,
    ) -> Result<bool, ClientError> {
        let (slot, record_addr) = self.record_of(inode)?;
        let remote = self.field_of(inode, record::SIZE)?;
        let mapped = self.records.is_mapped();
        let mut raw: RawRecord = [0; record::LEN];
        for attempt in 0..TRIES {
            let start = self.before_look();
            let (raises, mut old) = (size < end, 0);
            let mut ops = Ops::new();
            if attempt == 0 && parts.len() + 2 > LIST {
                self.remote.write_vectored(parts)?;
            } else if attempt == 0 {
                ops.extend(parts.iter().map(|(remote, data)| Op::Write { remote: *remote, data }));
            }
            if raises {
                ops.push(Op::CompareSwap { remote, compare: size, swap: end, old: &mut old });
            }
            // The record after the bytes and the swap: a truncation that this write overlapped with shows there.
            if !mapped {
                ops.push(Op::Read { remote: record_addr, out: &mut raw });
            }
            self.remote.execute(&mut ops)?;
            drop(ops);
            let seen = if mapped { None } else { Seen::decode(&raw, inode.ino, slot) };
            let now = seen.map_or_else(|| self.peek(inode), |seen| Ok(seen.glimpse()))?;
            if now.generation != layout.generation {
                self.follow_generation(inode, now.generation)?;
                return Ok(false);
            }
            inode.saw(start, now.generation, now.size);
            let raised = raises && (old == size || old >= end);
            if raised || !raises && now.size >= end {
                return Ok(now.size >= end);
            }
            size = if raises { old } else { now.size };
        }
        // Others keep raising the size, one byte at a time: that is progress, too.
        Ok(false)
    }

    /// Slot and address of an open inode's record.
    pub(crate) fn record_of(&self, inode: &Inode) -> Result<(u32, RemoteAddr), ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        Ok((slot, self.records.field(inode.layout.read().era(), slot, 0, record::LEN)?))
    }

    /// Address of a word of an open inode's record.
    pub(crate) fn field_of(&self, inode: &Inode, field: usize) -> Result<RemoteAddr, ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        self.records.field(inode.layout.read().era(), slot, field, 8)
    }

    /// Does something with an open file, and does it again if a new era has begun meanwhile: what was known of its places was void.
    /// ESTALE: the file is gone. EIO: locks of it are lost that there were in the era `since`, when this was asked for, and which may have been
    /// what it was guarded by.
    pub(crate) fn in_its_era<R>(
        &self,
        inode: &Inode,
        since: u32,
        mut act: impl FnMut() -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        for _ in 0..TRIES {
            guarded_since(inode, since)?;
            let (era, used) = (inode.layout.read().era(), self.remote.era_in_use());
            let has_begun = || era != self.remote.era() || used != self.remote.era_in_use();
            match act() {
                Err(ClientError::Request(RequestError::Disconnected) | ClientError::Errno(Errno::EBADF))
                    if has_begun() && self.is_connected() => {}
                outcome => return outcome,
            }
            // Renewed by now, unless it was opened at that very moment.
            self.remote.ready()?;
            if inode.is_gone() {
                return Err(Errno::ESTALE.into());
            }
            if inode.layout.read().era() != self.remote.era() {
                let _calls = inode.layout_calls.lock();
                self.fetch_layout(inode, None)?;
            }
        }
        Err(ClientError::Unstable)
    }

    /// Notes that the inode was written now.
    pub(crate) fn stamp(&self, inode: &Inode) -> Result<(), ClientError> {
        self.was_written(inode);
        self.publish_time(inode, |times| times.note(self.clock.now()))
    }

    /// Publishes the time of a write, if `due` says that one is.
    pub(super) fn publish_time(
        &self,
        inode: &Inode,
        due: impl FnOnce(&mut WriteTimes) -> Option<i64>,
    ) -> Result<(), ClientError> {
        if self.confined {
            return Ok(());
        }
        let mut times = inode.times.lock();
        match (due(&mut times), inode.slot()) {
            (Some(time), Some(slot)) => {
                let era = inode.layout.read().era();
                self.records.write_time(era, slot, time)
            }
            _ => Ok(()),
        }
    }
}

/// EIO if what was asked for in this era may have been guarded by locks that are lost by now.
pub(super) fn guarded_since(inode: &Inode, era: u32) -> Result<(), ClientError> {
    if inode.has_lost_locks_since(era) { Err(Errno::EIO.into()) } else { Ok(()) }
}

/// The first `len` bytes of a buffer that grows as needed.
pub(super) fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
