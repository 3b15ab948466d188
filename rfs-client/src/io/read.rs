//! One-sided reads.
//!
//! If records are mapped, every read reads the record. Over a network, a read inside the known
//! size ([`KnownSize`](crate::inode::size::KnownSize)) skips the record, because the server recalls
//! that size before it falls. Other reads read the record at the end of their list. A read that
//! finds a new layout generation begins anew.
//!
//! # Concurrency
//! Session threads. Takes the inode's locks in the order `io` (shared), `layout_users` (shared),
//! `layout_calls`; `file` for moments.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use rdmabox::Memory;
use rfs_proto::Errno;
use smallvec::SmallVec;

use crate::{
    error::ClientError,
    inode::{
        Inode,
        layout::{Piece, is_in_arena},
        table::InodeTable,
    },
    io::{buffer::ReadTarget, checksum_read::CheckedReads},
    remote::{Mapped, Remote, RemoteExt, address::Epoch},
    requests::{
        TRIES,
        file_times::FileTimes,
        layouts::Layouts,
        record_reader::{ReadParts, RecordReader},
    },
    transfers::Transfers,
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

/// Where the bytes of a read are.
enum Found<'a> {
    /// In mapped memory: the mapping, the offset of the first byte, and the number of bytes.
    Mapped(&'a Memory, usize, usize),
    /// In this range of the target.
    Placed(Range<usize>),
}

/// Reads open files, and blocks until the bytes are here.
#[derive(Debug)]
pub struct Reads {
    remote: Arc<dyn Remote>,
    pub(super) inodes: Arc<InodeTable>,
    pub(super) records: Arc<RecordReader>,
    pub(super) layouts: Arc<Layouts>,
    pub(super) times: Arc<FileTimes>,
    transfers: Arc<Transfers>,
    /// Local mapping of the arena, if the provider maps it.
    pub(super) arena_map: Option<Mapped>,
    /// Reads with checksums, if the export has them.
    pub(super) checked: Option<CheckedReads>,
}

impl Reads {
    pub(crate) fn new(
        layouts: &Arc<Layouts>,
        times: &Arc<FileTimes>,
        transfers: &Arc<Transfers>,
        arena_map: Option<Mapped>,
        checked: Option<CheckedReads>,
    ) -> Reads {
        let calls = &layouts.calls;
        Reads {
            remote: Arc::clone(&calls.remote),
            inodes: Arc::clone(&calls.caching.inodes),
            records: Arc::clone(&layouts.records),
            layouts: Arc::clone(layouts),
            times: Arc::clone(times),
            transfers: Arc::clone(transfers),
            arena_map,
            checked,
        }
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
        self.read_issued_in(self.remote.epochs().in_use, (ino, offset, len), buffer, sink)
    }

    /// Reads as [`read`](Self::read), into a buffer. Returns the number of bytes, which is less
    /// than the buffer's length only at the end of the file.
    pub fn read_into(&self, ino: u64, offset: u64, out: &mut [u8]) -> Result<usize, ClientError> {
        let (epoch, len) = (self.remote.epochs().in_use, out.len());
        let mut target = out;
        self.find(epoch, (ino, offset, len), &mut target, |found, target| match found {
            Found::Mapped(memory, offset, len) => {
                memory.read(offset, target.room(len));
                len
            }
            Found::Placed(range) => range.len(),
        })
    }

    /// Reads as [`read`](Self::read). The caller issued the read in `issued_epoch`, which may have
    /// ended.
    pub(crate) fn read_issued_in<R>(
        &self,
        issued_epoch: Epoch,
        (ino, offset, len): (u64, u64, usize),
        buffer: &mut Vec<u8>,
        sink: impl FnOnce(ReadData<'_>) -> R,
    ) -> Result<R, ClientError> {
        self.find(issued_epoch, (ino, offset, len), buffer, |found, buffer| match found {
            Found::Mapped(memory, offset, len) => sink(ReadData::Mapped { memory, offset, len }),
            Found::Placed(range) => sink(ReadData::Bytes(&buffer[range])),
        })
    }

    /// Finds or fetches the bytes of a read, and calls `sink` while the file keeps its space.
    fn find<T: ReadTarget, R>(
        &self,
        issued_epoch: Epoch,
        (ino, offset, len): (u64, u64, usize),
        target: &mut T,
        sink: impl FnOnce(Found<'_>, &mut T) -> R,
    ) -> Result<R, ClientError> {
        let inode = self.inodes.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        self.times.was_read(&inode);
        // Counted until the bytes are here: the caller may issue its next read at once, and that
        // read is alone.
        let counted = (!self.records.is_mapped()).then(|| self.transfers.count());
        let end = offset.saturating_add(len as u64);
        if let Some(checked) = &self.checked {
            let range = read_checked(checked, &inode, issued_epoch, (offset, end), target)?;
            drop(counted);
            return Ok(sink(Found::Placed(range), target));
        }
        // Held over all attempts. The server waits for this client's acknowledgement before it
        // moves the next piece of the file. So an attempt succeeds while data moves.
        let _places = inode.layout_users.read();
        for attempt in 1..=TRIES {
            if let Some(map) = &self.arena_map
                && self.records.is_mapped()
            {
                let now = self.records.look(&inode)?;
                let len = end.min(now.size).saturating_sub(offset);
                // Most reads lie in one extent of a layout that is known.
                let place = inode.file.read().layout.one_place(now.generation, offset, len);
                if let Some(place) = place.filter(|_| len != 0) {
                    self.layouts.count_use(true);
                    let found = Found::Mapped(&map.memory, map.offset + place as usize, len as usize);
                    return Ok(sink(found, target));
                }
                if inode.layout_generation() != now.generation {
                    self.layouts.count_use(false);
                    self.layouts.follow_generation(&inode, now.generation)?;
                    continue;
                }
                let found = self.find_mapped(&inode, map, offset, len, target)?;
                return Ok(sink(found, target));
            }
            let last = attempt == TRIES;
            if let Some(len) = self.layouts.retry_in_new_epoch(&inode, issued_epoch, || {
                self.read_remote(&inode, offset, end, target, last)
            })? {
                drop(counted);
                return Ok(sink(Found::Placed(0..len), target));
            }
        }
        Err(ClientError::Unstable)
    }

    /// Finds `len` bytes in mapped memory. Copies them if they are in several pieces, or in stores,
    /// whose memory is not mapped here.
    fn find_mapped<'m>(
        &self,
        inode: &Inode,
        map: &'m Mapped,
        offset: u64,
        len: u64,
        target: &mut impl ReadTarget,
    ) -> Result<Found<'m>, ClientError> {
        if len == 0 {
            return Ok(Found::Placed(0..0));
        }
        let (pieces, layout) = self.layouts.readable(inode, offset, len)?;
        // Layouts lie inside the arena (checked), and the arena is mapped whole.
        let place = |arena: u64| map.offset + arena as usize;
        if let [Piece::Data { arena, len }] = pieces[..]
            && is_in_arena(arena)
        {
            return Ok(Found::Mapped(&map.memory, place(arena), len as usize));
        }
        let mut rest = target.room(len as usize);
        let mut parts = ReadParts::new();
        for piece in &pieces {
            let (out, behind) = rest.split_at_mut(piece.len() as usize);
            match *piece {
                Piece::Data { arena, .. } if is_in_arena(arena) => map.memory.read(place(arena), out),
                Piece::Data { arena, len } => {
                    parts.push((self.layouts.place(layout.epoch, arena, len)?, out));
                }
                Piece::Hole { .. } => out.fill(0),
            }
            rest = behind;
        }
        if !parts.is_empty() {
            self.remote.read(&mut parts)?;
        }
        Ok(Found::Placed(0..len as usize))
    }

    /// Reads over a network into the beginning of `target`. Returns `None` to begin anew. With
    /// `accept`, takes an end of file that may have moved during the read.
    fn read_remote(
        &self,
        inode: &Inode,
        offset: u64,
        end: u64,
        target: &mut impl ReadTarget,
        accept: bool,
    ) -> Result<Option<usize>, ClientError> {
        let start = self.records.before_look();
        let (known, layout) = inode.known();
        let size = known.guess();
        let len = end.min(size).saturating_sub(offset);
        let (pieces, layout) = match len {
            0 => (SmallVec::new(), layout),
            _ => self.layouts.readable(inode, offset, len)?,
        };
        let mut parts = ReadParts::new();
        let mut rest = target.room(len as usize);
        for piece in &pieces {
            let (out, behind) = rest.split_at_mut(piece.len() as usize);
            match *piece {
                Piece::Data { arena, len } => {
                    parts.push((self.layouts.place(layout.epoch, arena, len)?, out))
                }
                Piece::Hole { .. } => out.fill(0),
            }
            rest = behind;
        }
        if known.reaches(layout, end, self.inodes.recalls().now()) {
            if !parts.is_empty() {
                self.remote.read(&mut parts)?;
            }
            return Ok(Some(len as usize));
        }
        let now = self.records.read_and_look(inode, parts, start)?;
        if now.generation != layout.generation {
            self.layouts.follow_generation(inode, now.generation)?;
            return Ok(None);
        }
        if now.size > size && end > size && !accept {
            return Ok(None);
        }
        Ok(Some(len.min(now.size.saturating_sub(offset)) as usize))
    }
}

/// Reads with checksums. Returns the range of the bytes in the target.
fn read_checked(
    checked: &CheckedReads,
    inode: &Inode,
    issued_epoch: Epoch,
    range: (u64, u64),
    target: &mut impl ReadTarget,
) -> Result<Range<usize>, ClientError> {
    if let Some(buffer) = target.growing() {
        return checked.read(inode, issued_epoch, range, buffer);
    }
    // Whole blocks are verified, which may be more than the target has room for.
    let mut buffer = Vec::new();
    let bytes = checked.read(inode, issued_epoch, range, &mut buffer)?;
    let len = bytes.len();
    target.room(len).copy_from_slice(&buffer[bytes]);
    Ok(0..len)
}
