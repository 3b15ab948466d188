//! One-sided writes.
//!
//! A write places its bytes. Past the end of the file, it raises the size in the same list. If
//! records are mapped, every write reads the record. Over a network, a write inside the known size
//! ([`KnownSize`](crate::inode::size::KnownSize)) skips the record, because the server recalls that
//! size before it falls. Other writes read the record at the end of their list. A write that finds
//! a new layout generation begins anew.
//!
//! # Concurrency
//! Session threads. Takes the inode's locks in the order `io` (shared), `layout_users` (shared),
//! `layout_calls`; `file` for moments.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use rfs_proto::{BLOCK, Errno, MAX_FILE_SIZE, record};

use crate::{
    error::ClientError,
    inode::{Inode, size::LayoutId, table::InodeTable},
    io::checksum_write::ServerWrites,
    metadata::lent_rights::LentRights,
    remote::{
        Remote, RemoteExt,
        address::Epoch,
        operation::{LIST, Op, Ops},
        records::RawRecord,
    },
    requests::{
        TRIES,
        file_times::FileTimes,
        layouts::{Layouts, WriteParts},
        record_reader::RecordReader,
    },
    transfers::Transfers,
};

/// Returns about half of `len` bytes at `offset`, rounded to the end of a block. Returns `None`
/// if all bytes lie in one block.
fn fewer(offset: u64, len: usize) -> Option<usize> {
    let first = BLOCK - offset % BLOCK;
    let half = (offset.saturating_add(len as u64 / 2) / BLOCK * BLOCK).saturating_sub(offset);
    let fewer = usize::try_from(half.max(first)).ok()?;
    (fewer < len).then_some(fewer)
}

/// A write whose bytes are in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Number of bytes.
    pub len: usize,
    /// The rights that the file lends after the write. `None` if the record is not mapped.
    pub rights: Option<LentRights>,
}

/// Writes to open files, and blocks until the bytes are in place.
#[derive(Debug)]
pub struct Writes {
    remote: Arc<dyn Remote>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
    times: Arc<FileTimes>,
    transfers: Arc<Transfers>,
    /// Writes by the server, if it has to carry out all writes.
    by_server: Option<Arc<ServerWrites>>,
}

impl Writes {
    pub(crate) fn new(
        layouts: &Arc<Layouts>,
        times: &Arc<FileTimes>,
        transfers: &Arc<Transfers>,
        by_server: Option<Arc<ServerWrites>>,
    ) -> Writes {
        let calls = &layouts.calls;
        Writes {
            remote: Arc::clone(&calls.remote),
            inodes: Arc::clone(&calls.caching.inodes),
            records: Arc::clone(&layouts.records),
            layouts: Arc::clone(layouts),
            times: Arc::clone(times),
            transfers: Arc::clone(transfers),
            by_server,
        }
    }

    /// Returns true if the server carries out all writes.
    pub(crate) fn are_by_server(&self) -> bool {
        self.by_server.is_some()
    }

    /// Writes `data` at `offset` of an open file. The bytes are visible to all readers on return.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.write_issued_in(self.remote.epochs().in_use, ino, offset, data)
    }

    /// Writes as [`write`](Self::write). If there is not enough space, writes a shorter first part.
    ///
    /// # Errors
    /// ENOSPC if there is no space for the first block.
    pub fn write_some(&self, ino: u64, offset: u64, data: &[u8]) -> Result<Written, ClientError> {
        let (epoch, mut len, rights) = (self.remote.epochs().in_use, data.len(), Cell::new(None));
        // The inode is at hand here, and after the write it would have to be found again.
        let then = |inode: &Inode| {
            self.times.stamp(inode)?;
            let bits = self.records.privileges(inode);
            rights.set(bits.map(|(perm, marks)| LentRights::new(perm, marks)));
            Ok(())
        };
        loop {
            match self.write_then(epoch, (ino, offset), &data[..len], then) {
                Err(ClientError::Errno(Errno::ENOSPC)) => len = fewer(offset, len).ok_or(Errno::ENOSPC)?,
                written => return written.map(|()| Written { len, rights: rights.get() }),
            }
        }
    }

    /// Writes as [`write`](Self::write). The caller issued the write in `issued_epoch`, which may
    /// have ended.
    pub(crate) fn write_issued_in(
        &self,
        issued_epoch: Epoch,
        ino: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        self.write_then(issued_epoch, (ino, offset), data, |inode| self.times.stamp(inode))
    }

    /// Writes to an open file, and runs `then` while the file is certainly open.
    pub(crate) fn write_then(
        &self,
        issued_epoch: Epoch,
        (ino, offset): (u64, u64),
        data: &[u8],
        then: impl Fn(&Inode) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_SIZE);
        let end = end.ok_or(Errno::EFBIG)?;
        self.transfers.retries.run_stranded();
        let inode = self.inodes.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        let _counted = (!self.records.is_mapped()).then(|| self.transfers.count());
        let write = || self.write_open(&inode, issued_epoch, (offset, end), data).and_then(|()| then(&inode));
        self.layouts.retry_in_new_epoch(&inode, issued_epoch, write)
    }

    /// Writes up to `end`. The caller keeps the file open, and issued the write in `issued_epoch`.
    pub(crate) fn write_open(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        (offset, end): (u64, u64),
        data: &[u8],
    ) -> Result<(), ClientError> {
        if let Some(by_server) = &self.by_server {
            return by_server.write(inode, issued_epoch, (offset, end), data);
        }
        // Over all attempts, as for a read.
        let mut places = inode.layout_users.read();
        for _ in 0..TRIES {
            let Some((parts, layout)) = self.layouts.targets(inode, offset, data)? else {
                drop(places);
                self.layouts.allocate(inode, offset, data.len() as u64)?;
                places = inode.layout_users.read();
                continue;
            };
            // The places may be of the next epoch, because space was requested or a record was
            // read meanwhile.
            inode.locks.check_guards(issued_epoch)?;
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

    /// Writes to places of a layout if records are mapped. Returns false to begin anew.
    fn write_mapped(
        &self,
        inode: &Inode,
        layout: LayoutId,
        end: u64,
        parts: &WriteParts<'_>,
    ) -> Result<bool, ClientError> {
        let size = self.records.peek(inode)?.size;
        if end > size {
            return self.write_and_raise(inode, layout, (size, end), parts);
        }
        self.remote.write(parts)?;
        self.still_there(inode, layout.generation, end)
    }

    /// Writes to places of a layout over a network. Returns false to begin anew.
    ///
    /// If the known size covers the write, the list has only the bytes. Otherwise it also reads the
    /// record, which costs no extra round trip.
    fn write_remote(
        &self,
        inode: &Inode,
        layout: LayoutId,
        end: u64,
        parts: &WriteParts<'_>,
    ) -> Result<bool, ClientError> {
        let (known, _) = inode.known();
        if !known.reaches(layout, end, self.inodes.recalls().now()) {
            return self.write_and_raise(inode, layout, (known.guess(), end), parts);
        }
        let repeats = self.remote.epochs().repeats;
        self.remote.write(parts)?;
        // A repetition may have gone to another server process, which does not recall the size from
        // this client yet.
        Ok(self.remote.epochs().repeats == repeats || self.still_there(inode, layout.generation, end)?)
    }

    /// Returns true if the bytes written up to `end` under `generation` are part of the file.
    ///
    /// If the session is lost by now, the result is as if the loss came later: a truncation changes
    /// the record first.
    pub(crate) fn still_there(&self, inode: &Inode, generation: u64, end: u64) -> Result<bool, ClientError> {
        // The fence makes bytes stored in mapped memory visible before the record is read.
        fence(Ordering::SeqCst);
        let now = self.records.peek(inode)?;
        if now.generation != generation {
            self.layouts.follow_generation(inode, now.generation)?;
            return Ok(false);
        }
        Ok(now.size >= end)
    }

    /// Writes, and raises the file's size to at least `end`. `size` is a guess. Returns false to
    /// begin anew.
    pub(crate) fn write_and_raise(
        &self,
        inode: &Inode,
        layout: LayoutId,
        (mut size, end): (u64, u64),
        parts: &WriteParts<'_>,
    ) -> Result<bool, ClientError> {
        let (slot, record_place, size_word) = self.records.record_and_field(inode, record::SIZE)?;
        let mapped = self.records.is_mapped();
        let mut raw: RawRecord = [0; record::LEN];
        for attempt in 0..TRIES {
            let start = self.records.before_look();
            let (raises, mut old) = (size < end, 0);
            let mut ops = Ops::new();
            if attempt == 0 && parts.len() + 2 > LIST {
                self.remote.write(parts)?;
            } else if attempt == 0 {
                ops.extend(parts.iter().map(|(place, data)| Op::Write { place: *place, data }));
            }
            if raises {
                ops.push(Op::CompareSwap { place: size_word, compare: size, swap: end, old: &mut old });
            }
            // The record comes after the bytes and the swap, so it shows a truncation that
            // overlapped this write.
            if !mapped {
                ops.push(Op::Read { place: record_place, out: &mut raw });
            }
            self.remote.execute(&mut ops)?;
            drop(ops);
            let now = self.records.record_behind(inode, slot, &raw, start)?;
            if now.generation != layout.generation {
                self.layouts.follow_generation(inode, now.generation)?;
                return Ok(false);
            }
            let raised = raises && (old == size || old >= end);
            if raised || !raises && now.size >= end {
                return Ok(now.size >= end);
            }
            size = if raises { old } else { now.size };
        }
        // Other clients keep raising the size in small steps, which is progress.
        Ok(false)
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
