//! Started writes until their end: the completion, the raise of the size, and the repetition.
//!
//! A write inside the file is one WRITE. A write past the end is a list ([`Extend`]): the bytes, a
//! compare-and-swap of the size, and a read of the record. If another client has raised the size
//! meanwhile, the completion starts the list again, without the bytes. All else that a blocking
//! write can meet (an error, another layout) is left to a blocking write on a thread of its own.
//!
//! # Concurrency
//! Any polling thread runs a completion. It takes the inode's `file` for moments. The
//! count of started requests keeps the extents in use, as for every started request.

use std::sync::{Arc, Weak, atomic::Ordering};

use rdmabox::RequestError;
use rfs_proto::{Errno, MAX_FILE_SIZE, record};

use crate::{
    error::ClientError,
    inode::{
        Inode,
        size::{KnownSize, LayoutId, LookStart},
        started_requests::StartedGuard,
    },
    io::async_io::AsyncIo,
    remote::{
        RemoteExt,
        address::{Epoch, Place},
        operation::{Extend, Transfer},
        records::{RawRecord, Seen},
    },
    requests::{TRIES, record_reader::RecordReader},
    transfers::in_flight::{InFlightGuard, QueueHint},
};

/// The raise of a file's size by a started write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raise {
    /// Slot and place of the record.
    slot: u32,
    record: Place,
    size_word: Place,
    /// Size that the file may have now, and the end of the write.
    from: u64,
    to: u64,
    /// Number of lists that found another size.
    misses: usize,
}

/// The state of a write after its list.
enum Progress {
    /// The bytes are part of the file.
    Done,
    /// The bytes are in place, and the file had another size.
    Missed(Raise),
    /// Only a blocking write can tell.
    Unknown,
}

impl Raise {
    /// Returns true if a write to an open file may have to raise the size.
    pub(super) fn is_needed(inode: &Inode, known: KnownSize, (offset, len): (u64, usize)) -> bool {
        let end = offset.saturating_add(len as u64);
        len > 0 && end <= MAX_FILE_SIZE && known.guess() < end && inode.open.load(Ordering::Acquire)
    }

    /// Returns the raise to the end of a write to `place`. Returns `None` if no single list can do
    /// both.
    pub(super) fn new(
        records: &RecordReader,
        inode: &Inode,
        known: KnownSize,
        (place, to): (Place, u64),
    ) -> Option<Raise> {
        let (slot, record, size_word) = records.record_and_field(inode, record::SIZE).ok()?;
        let is_one_list = place.store() == 0 && [record, size_word].iter().all(|at| at.epoch == place.epoch);
        is_one_list.then_some(Raise { slot, record, size_word, from: known.guess(), to, misses: 0 })
    }

    fn list(self, place: Place, data: Vec<u8>) -> Extend {
        let Raise { record, size_word, from, to, misses, .. } = self;
        Extend { target: (misses == 0).then_some(place), data, size_word, from, to, record }
    }
}

/// A started write. It keeps its space from being given up until it is dropped.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) io: Weak<AsyncIo>,
    pub(super) inode: Arc<Inode>,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) issued_epoch: Epoch,
    pub(super) layout: LayoutId,
    pub(super) place: Place,
    /// `None` if the file has the bytes already.
    pub(super) raise: Option<Raise>,
    pub(super) started: StartedGuard,
}

impl PendingWrite {
    /// Returns true if the placed bytes are certainly part of the file, without a read of the
    /// record.
    pub(super) fn is_part(&self, io: &AsyncIo) -> bool {
        let (known, layout) = self.inode.known();
        layout == self.layout && io.is_inside(&self.inode, known, layout, (self.offset, self.len))
    }

    /// Starts the list of a write past the end. The polling thread runs `answer`.
    pub(super) fn start_list<A>(
        self,
        raise: Raise,
        data: Vec<u8>,
        (io, counted, next): (&AsyncIo, InFlightGuard, QueueHint),
        answer: A,
    ) where
        A: FnOnce(Result<(), ClientError>) + Send + 'static,
    {
        let (list, start) = (raise.list(self.place, data), io.layouts.records.before_look());
        let done = move |outcome: Result<(u64, RawRecord), RequestError>, data: Vec<u8>| {
            let Some(io) = self.io.upgrade() else {
                return answer(Err(RequestError::Disconnected.into()));
            };
            match outcome.map(|(old, raw)| self.progress(raise, start, old, &raw)) {
                Ok(Progress::Done) => {
                    // The caller may issue its next write at once, and that write is alone.
                    drop((counted, self));
                    answer(Ok(()));
                }
                Ok(Progress::Missed(raise)) => {
                    self.start_list(raise, data, (&*io, counted, QueueHint::Unknown), answer);
                }
                Ok(Progress::Unknown) => self.repeat(Ok(()), data, answer),
                Err(e) => self.repeat(Err(e), data, answer),
            }
            io.transfers.completed(&*io.remote);
        };
        io.transfers.start(&*io.remote, Transfer::Extend(list, Box::new(done)), next);
    }

    /// Judges a list that began at `start`, found the size `old`, and read the record afterwards.
    fn progress(&self, raise: Raise, start: LookStart, old: u64, raw: &RawRecord) -> Progress {
        // The record was being changed, or is another inode's.
        let Some(seen) = Seen::decode(raw, self.inode.ino, raise.slot) else { return Progress::Unknown };
        let now = seen.glimpse();
        self.inode.saw(start, now.generation, now.size);
        let is_raised = old == raise.from || old >= raise.to;
        if now.generation != self.layout.generation || (is_raised && now.size < raise.to) {
            Progress::Unknown
        } else if is_raised {
            Progress::Done
        } else if raise.misses < TRIES {
            Progress::Missed(Raise { from: old, misses: raise.misses + 1, ..raise })
        } else {
            Progress::Unknown
        }
    }

    /// Repeats a failed write and checks whether it is part of the file, on a thread that may
    /// block.
    pub(super) fn repeat<A>(self, placed: Result<(), RequestError>, data: Vec<u8>, answer: A)
    where
        A: FnOnce(Result<(), ClientError>) + Send + 'static,
    {
        let Some(io) = self.io.upgrade() else {
            return answer(Err(RequestError::Disconnected.into()));
        };
        io.transfers.retries.add(Box::new(move || answer(self.finish(placed, &data))));
    }

    fn finish(self, placed: Result<(), RequestError>, data: &[u8]) -> Result<(), ClientError> {
        let io = self.io.upgrade().ok_or(RequestError::Disconnected)?;
        let outcome = match placed {
            // The known size does not cover the write, or the file has changed.
            Ok(()) => Ok(false),
            // The failed write may still take effect, but not after this one.
            Err(_) => self.repeat_steps(&io, data),
        };
        let PendingWrite { inode, offset, issued_epoch, layout, started, .. } = self;
        drop(started);
        let write = || io.writes.write_issued_in(issued_epoch, inode.ino, offset, data);
        match outcome {
            // The time was noted before the write, which may be long ago.
            Ok(true) => io.times.stamp(&inode),
            // The whole write again, with a read of the record.
            Ok(false) => write(),
            // The place is of an epoch that has ended. A server that has just begun does not know
            // the file until it is opened again.
            Err(ClientError::Request(RequestError::Disconnected) | ClientError::Errno(Errno::EBADF))
                if layout.epoch != io.remote.epochs().newest =>
            {
                write()
            }
            Err(e) => Err(e),
        }
    }

    /// Executes the steps of the write again, at the same places. Returns true if the bytes are
    /// part of the file.
    fn repeat_steps(&self, io: &AsyncIo, data: &[u8]) -> Result<bool, ClientError> {
        let Some(Raise { from, to, .. }) = self.raise else {
            return Ok(io.remote.write(&[(self.place, data)]).map(|()| self.is_part(io))?);
        };
        self.inode.locks.check_guards(self.issued_epoch)?;
        let parts = std::iter::once((self.place, data)).collect();
        io.writes.write_and_raise(&self.inode, self.layout, (from, to), &parts)
    }
}
