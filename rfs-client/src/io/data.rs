//! One-sided reads and writes.
//!
//! A write places its bytes. Past the end of the file, it raises the size in the same list. If
//! records are mapped, every operation reads the record. Over a network, an operation inside the
//! known size ([`super::size`]) skips the record, because the server recalls that size before it
//! falls. Other operations read the record at the end of their list. An operation that finds a
//! new layout generation begins anew.
//!
//! # Concurrency
//! Session threads. Takes the inode's locks in the order `io` (shared), `layout_users` (shared),
//! `layout_calls`.

use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};

use rdmabox::{Memory, Op, RemoteAddr, RequestError};
use rfs_proto::{Errno, MAX_FILE_SIZE, record};
use smallvec::SmallVec;

use crate::{
    Client, ClientError,
    client::layouts::TRIES,
    inode::{
        Inode,
        layout::Piece,
        size::{LayoutId, LookStart},
    },
    memory::records::{Glimpse, RawRecord, Seen},
    remote::{Mapped, at, clock::WriteTimes},
};

/// The result of a read.
#[derive(Debug)]
pub enum ReadData<'a> {
    /// Bytes in the server's memory, which is mapped here. Other clients may change them.
    Mapped {
        /// The mapping.
        memory: &'a Memory,
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
    /// Bytes in the caller's buffer.
    Bytes(&'a [u8]),
}

/// Parts of one write, in file order.
pub(crate) type Parts<'a> = SmallVec<[(RemoteAddr, &'a [u8]); 4]>;

/// Parts of one read, with their destinations.
pub(crate) type Reads<'a> = SmallVec<[(RemoteAddr, &'a mut [u8]); 4]>;

/// Steps that every session accepts in one list. Longer writes and reads place their bytes before
/// the list.
pub(crate) const LIST: usize = 32;

/// One list for the session.
pub(crate) type Ops<'a> = SmallVec<[Op<'a>; 8]>;

impl Client {
    pub(crate) fn opened(&self, ino: u64) -> Result<Arc<Inode>, ClientError> {
        self.inodes.get(ino).ok_or_else(|| Errno::EBADF.into())
    }

    /// Reads up to `len` bytes at `offset` of an open file, and calls `sink` with them. Past the
    /// end there are fewer bytes. `sink` gets mapped memory if possible, else `buffer`, which grows
    /// as needed.
    pub fn read<R>(
        &self,
        ino: u64,
        offset: u64,
        len: usize,
        buffer: &mut Vec<u8>,
        sink: impl FnOnce(ReadData<'_>) -> R,
    ) -> Result<R, ClientError> {
        self.read_issued_in(self.remote.era_in_use(), (ino, offset, len), buffer, sink)
    }

    /// Reads as [`read`](Self::read). The caller issued the read in `issued_era`, which may have
    /// ended.
    pub(crate) fn read_issued_in<R>(
        &self,
        issued_era: u32,
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
        // Counted until the bytes are here: the caller may issue its next read at once, and that
        // read is alone.
        let counted = (!self.records.is_mapped()).then(|| self.count_in_flight());
        let end = offset.saturating_add(len as u64);
        if let Some(sums) = &self.sums {
            let bytes = self.read_checked(sums, &inode, issued_era, (offset, end), buffer)?;
            drop(counted);
            return Ok(sink(ReadData::Bytes(&buffer[bytes])));
        }
        for attempt in 1..=TRIES {
            let _places = inode.layout_users.read();
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
            if let Some(len) = self.retry_in_new_era(&inode, issued_era, || {
                self.read_remote(&inode, offset, end, buffer, last)
            })? {
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
        // Layouts lie inside the arena (checked), and the arena is mapped whole.
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

    /// Reads over a network into the beginning of `buffer`. Returns `None` to begin anew. With
    /// `accept`, takes an end of file that may have moved during the read.
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

    /// Reads parts, and the record after them in the same list. Returns the contents of the record.
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

    /// Writes `data` at `offset` of an open file. The bytes are visible to all readers on return.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.write_issued_in(self.remote.era_in_use(), ino, offset, data)
    }

    /// Writes as [`write`](Self::write). The caller issued the write in `issued_era`, which may
    /// have ended.
    pub(crate) fn write_issued_in(
        &self,
        issued_era: u32,
        ino: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        self.write_then(issued_era, (ino, offset), data, |inode| self.stamp(inode))
    }

    /// Writes to an open file, and runs `then` while the file is certainly open.
    pub(crate) fn write_then(
        &self,
        issued_era: u32,
        (ino, offset): (u64, u64),
        data: &[u8],
        then: impl Fn(&Inode) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_SIZE);
        let end = end.ok_or(Errno::EFBIG)?;
        self.write_retries.run_stranded();
        let inode = self.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        let _counted = (!self.records.is_mapped()).then(|| self.count_in_flight());
        let write = || self.write_open(&inode, issued_era, (offset, end), data).and_then(|()| then(&inode));
        self.retry_in_new_era(&inode, issued_era, write)
    }

    /// Writes up to `end`. The caller keeps the file open, and issued the write in `issued_era`.
    pub(crate) fn write_open(
        &self,
        inode: &Inode,
        issued_era: u32,
        (offset, end): (u64, u64),
        data: &[u8],
    ) -> Result<(), ClientError> {
        if self.writes_by_server() {
            return self.write_by_server(inode, issued_era, (offset, end), data);
        }
        for _ in 0..TRIES {
            let places = inode.layout_users.read();
            let Some((parts, layout)) = self.targets(inode, offset, data)? else {
                drop(places);
                self.allocate(inode, offset, data.len() as u64)?;
                continue;
            };
            // The addresses may be of the next era, because space was requested or a record was
            // read meanwhile.
            check_guards(inode, issued_era)?;
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

    /// Writes to addresses of a layout if records are mapped. Returns false to begin anew.
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

    /// Writes to addresses of a layout over a network. Returns false to begin anew.
    ///
    /// If the known size covers the write, the list has only the bytes. Otherwise it also reads the
    /// record, which costs no extra round trip.
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
        // A repetition may have gone to another server process, which does not recall the size from
        // this client yet.
        Ok(self.remote.repeats() == repeats || self.still_there(inode, layout.generation, end)?)
    }

    /// Returns the addresses of the data, and their layout. Returns `None` if space is missing.
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

    /// Returns true if the bytes written up to `end` under `generation` are part of the file.
    ///
    /// If the session is lost by now, the result is as if the loss came later: a truncation changes
    /// the record first.
    fn still_there(&self, inode: &Inode, generation: u64, end: u64) -> Result<bool, ClientError> {
        // The fence makes bytes stored in mapped memory visible before the record is read.
        fence(Ordering::SeqCst);
        let now = self.peek(inode)?;
        if now.generation != generation {
            self.follow_generation(inode, now.generation)?;
            return Ok(false);
        }
        Ok(now.size >= end)
    }

    /// Writes, and raises the file's size to at least `end`. `size` is a guess. Returns false to
    /// begin anew.
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
            // The record comes after the bytes and the swap, so it shows a truncation that
            // overlapped this write.
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
        // Other clients keep raising the size in small steps, which is progress.
        Ok(false)
    }

    /// Returns the slot and address of an open inode's record.
    pub(crate) fn record_of(&self, inode: &Inode) -> Result<(u32, RemoteAddr), ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        Ok((slot, self.records.field(inode.layout.read().era(), slot, 0, record::LEN)?))
    }

    /// Returns the address of a word of an open inode's record.
    pub(crate) fn field_of(&self, inode: &Inode, field: usize) -> Result<RemoteAddr, ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        self.records.field(inode.layout.read().era(), slot, field, 8)
    }

    /// Runs `act` on an open file, and repeats it if a new era has begun meanwhile and voided its
    /// addresses.
    ///
    /// # Errors
    /// ESTALE if the file is gone. EIO if locks that were held in `issued_era` are lost: they
    /// may have guarded this operation.
    pub(crate) fn retry_in_new_era<R>(
        &self,
        inode: &Inode,
        issued_era: u32,
        mut act: impl FnMut() -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        for _ in 0..TRIES {
            check_guards(inode, issued_era)?;
            let (era, used) = (inode.layout.read().era(), self.remote.era_in_use());
            let has_begun = || era != self.remote.era() || used != self.remote.era_in_use();
            match act() {
                Err(ClientError::Request(RequestError::Disconnected) | ClientError::Errno(Errno::EBADF))
                    if has_begun() && self.is_connected() => {}
                outcome => return outcome,
            }
            // The reclaim has renewed the layout, unless the file was opened just then.
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

    /// Publishes the time that `due` returns, if any.
    pub(crate) fn publish_time(
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

/// Returns EIO if locks that may have guarded an operation issued in this era are lost.
pub(crate) fn check_guards(inode: &Inode, era: u32) -> Result<(), ClientError> {
    if inode.has_lost_locks_since(era) { Err(Errno::EIO.into()) } else { Ok(()) }
}

/// Returns the first `len` bytes of a buffer, which grows as needed.
pub(crate) fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
