//! Asynchronous small reads and writes.
//!
//! If a request is the only one in flight, the calling thread blocks for it. Otherwise the
//! request is only started: the thread takes the next request, and the thread that polls the
//! completion sends the reply. If more requests wait, several start in one batch (`Coalescer`).
//!
//! An asynchronous write places bytes where space is allocated, and raises the size if they are
//! past the end ([`PendingWrite`]). Its data is copied, because the request's buffer is reused, and
//! its time is noted before. `transfers::write_retries` repeats a failed write. Until then no other
//! file can get its space, because the write may still take effect.
//!
//! # Concurrency
//! Session threads start requests; any polling thread runs the replies. Takes `io` and
//! `layout_users` of an inode without blocking, and holds them as a count (`StartedRequests`)
//! during the request. Takes `file` briefly. A thread `rfs-read` repeats failed reads.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    thread,
};

use parking_lot::Mutex;
use rdmabox::RequestError;

use crate::{
    error::ClientError,
    inode::{
        Inode,
        layout::Piece,
        size::{KnownSize, LayoutId},
        started_requests::StartedGuard,
        table::InodeTable,
    },
    io::{
        pending_write::{PendingWrite, Raise},
        read::{ReadData, Reads},
        write::Writes,
    },
    remote::{
        Remote,
        address::{Epoch, Place},
        operation::Transfer,
    },
    requests::{file_times::FileTimes, layouts::Layouts},
    transfers::{
        Transfers,
        in_flight::{InFlightGuard, QueueHint},
    },
};

/// Longest asynchronous request in bytes. Copying a longer one takes longer than to wake a
/// thread, and the polling thread would copy for all.
const MAX_ASYNC_BYTES: u64 = 32 << 10;

/// Parameters of a started read.
#[derive(Clone, Copy, Debug)]
struct ReadParams {
    ino: u64,
    offset: u64,
    len: usize,
    /// Epoch in which the caller issued the read.
    issued_epoch: Epoch,
}

/// Starts small reads and writes over a network without waiting for them.
#[derive(Debug)]
pub struct AsyncIo {
    pub(super) remote: Arc<dyn Remote>,
    inodes: Arc<InodeTable>,
    pub(super) layouts: Arc<Layouts>,
    pub(super) times: Arc<FileTimes>,
    pub(crate) transfers: Arc<Transfers>,
    reads: Arc<Reads>,
    pub(super) writes: Arc<Writes>,
    /// False if memory is mapped, or the server carries out writes. Every request blocks then.
    is_possible: bool,
}

impl AsyncIo {
    pub(crate) fn new(
        layouts: &Arc<Layouts>,
        times: &Arc<FileTimes>,
        transfers: &Arc<Transfers>,
        reads: &Arc<Reads>,
        writes: &Arc<Writes>,
    ) -> AsyncIo {
        let calls = &layouts.calls;
        AsyncIo {
            remote: Arc::clone(&calls.remote),
            inodes: Arc::clone(&calls.caching.inodes),
            layouts: Arc::clone(layouts),
            times: Arc::clone(times),
            transfers: Arc::clone(transfers),
            reads: Arc::clone(reads),
            writes: Arc::clone(writes),
            is_possible: !layouts.records.is_mapped() && !writes.are_by_server(),
        }
    }

    /// Starts a read as [`Reads::read`], and returns before the bytes arrive. The polling
    /// thread runs `answer`, which must not block.
    ///
    /// Returns `answer` if the caller should block instead, or the read needs more than bytes.
    /// `next` tells about other work. If another request is waiting, this one may be sent together
    /// with it. If no request is waiting, this thread may poll for the completions of all threads.
    pub fn start_read<A>(
        self: &Arc<Self>,
        ino: u64,
        offset: u64,
        len: usize,
        next: impl FnOnce() -> QueueHint,
        answer: A,
    ) -> Result<(), A>
    where
        A: FnOnce(Result<ReadData<'_>, ClientError>) + Send + 'static,
    {
        if !self.can_be_async(len) {
            return Err(answer);
        }
        let Some(next) = self.transfers.queue_hint(next) else { return Err(answer) };
        match self.prepare_read_alone(ino, offset, len) {
            Some(read) => {
                read.start(next, answer);
                Ok(())
            }
            None => Err(answer),
        }
    }

    /// Prepares a read, also if it is the only request in flight. Returns `None` if the caller
    /// should block instead, or the read needs more than bytes.
    pub fn prepare_read_alone(
        self: &Arc<Self>,
        ino: u64,
        offset: u64,
        len: usize,
    ) -> Option<PreparedRead<'_>> {
        let find = |inode: &Inode| {
            // If this fails, the caller makes the read again and reports the error.
            let (pieces, layout) = self.layouts.readable(inode, offset, len as u64).ok()?;
            let [Piece::Data { arena, len }] = pieces[..] else { return None };
            Some((arena, len, layout))
        };
        self.prepare_read_at(ino, offset, len, find)
    }

    /// Prepares a read as [`prepare_read_alone`](Self::prepare_read_alone), but asks the server
    /// for nothing: started requests that have not been sent do not wait for an answer.
    pub fn prepare_read_known(
        self: &Arc<Self>,
        ino: u64,
        offset: u64,
        len: usize,
    ) -> Option<PreparedRead<'_>> {
        let find = |inode: &Inode| {
            let layout = &inode.file.read().layout;
            let arena = layout.one_place(layout.generation(), offset, len as u64)?;
            Some((arena, len as u64, layout.id()))
        };
        self.prepare_read_at(ino, offset, len, find)
    }

    /// Prepares a read of bytes that `find` finds: their place, length and layout.
    fn prepare_read_at(
        self: &Arc<Self>,
        ino: u64,
        offset: u64,
        len: usize,
        find: impl FnOnce(&Inode) -> Option<(u64, u64, LayoutId)>,
    ) -> Option<PreparedRead<'_>> {
        if !self.can_be_async(len) {
            return None;
        }
        let issued_epoch = self.remote.epochs().in_use;
        let inode = self.inodes.get(ino)?;
        let (shared, places) = (inode.io.try_read()?, inode.layout_users.try_read()?);
        let (known, layout) = inode.known();
        if !self.is_inside(&inode, known, layout, (offset, len)) {
            return None;
        }
        let (arena, found, layout) = find(&inode)?;
        if !self.is_inside(&inode, known, layout, (offset, len)) {
            return None;
        }
        let place = self.layouts.place(layout.epoch, arena, found).ok()?;
        if !self.can_start(place) {
            return None;
        }
        self.times.was_read(&inode);
        let (started, counted) = (StartedGuard::new(&inode), self.transfers.count());
        // From here on the count protects the extents, also while this thread serves other threads'
        // requests.
        drop((shared, places));
        let params = ReadParams { ino, offset, len, issued_epoch };
        Some(PreparedRead { io: self, params, place, started, counted })
    }

    /// Starts the requests that wait for another one of their caller
    /// ([`QueueHint::Follows`]).
    pub fn flush(&self) {
        self.transfers.flush(&*self.remote);
    }

    /// Polls on this thread until a started request completes, whichever it is, for 100
    /// microseconds at most. Their answers run on this thread. Only one thread polls at a time: on
    /// others, and in an answer, this returns at once.
    ///
    /// Returns false if no request is started.
    pub fn poll(&self) -> bool {
        self.transfers.poll(&*self.remote)
    }

    /// Prepares a write that replies when its bytes are in place. Returns `None` if the caller
    /// should block instead, or the write needs more than to place bytes. `next` is as for
    /// [`start_read`](Self::start_read).
    pub fn prepare_write<'a>(
        self: &'a Arc<Self>,
        ino: u64,
        offset: u64,
        data: &'a [u8],
        next: impl FnOnce() -> QueueHint,
    ) -> Option<PreparedWrite<'a>> {
        self.prepare_write_if(ino, offset, data, || self.transfers.queue_hint(next))
    }

    /// Prepares a write as [`prepare_write`](Self::prepare_write), also if it is the only request
    /// in flight.
    pub fn prepare_write_alone<'a>(
        self: &'a Arc<Self>,
        ino: u64,
        offset: u64,
        data: &'a [u8],
        next: QueueHint,
    ) -> Option<PreparedWrite<'a>> {
        self.prepare_write_if(ino, offset, data, || Some(next))
    }

    fn prepare_write_if<'a>(
        self: &'a Arc<Self>,
        ino: u64,
        offset: u64,
        data: &'a [u8],
        next: impl FnOnce() -> Option<QueueHint>,
    ) -> Option<PreparedWrite<'a>> {
        if !self.can_be_async(data.len()) {
            return None;
        }
        let issued_epoch = self.remote.epochs().in_use;
        let inode = self.inodes.get(ino)?;
        let (shared, places) = (inode.io.try_read()?, inode.layout_users.try_read()?);
        let (known, id) = inode.known();
        let range = (offset, data.len());
        let extends = Raise::is_needed(&inode, known, range);
        // These checks precede `next`, which may be a system call.
        let has_places = if extends {
            inode.file.read().layout.covers(offset, data.len() as u64)
        } else {
            self.is_inside(&inode, known, id, range)
        };
        if !has_places {
            return None;
        }
        let next = next()?;
        let (place, layout) = match self.layouts.targets(&inode, offset, data) {
            Ok(Some((parts, layout))) if parts.len() == 1 && self.can_start(parts[0].0) => {
                (parts[0].0, layout)
            }
            _ => return None,
        };
        let raise = if extends {
            inode.locks.check_guards(issued_epoch).ok()?;
            Some(Raise::new(&self.layouts.records, &inode, known, (place, offset + data.len() as u64))?)
        } else if self.is_inside(&inode, known, layout, range) {
            None
        } else {
            return None;
        };
        self.times.stamp(&inode).ok()?;
        let (started, counted) = (StartedGuard::new(&inode), self.transfers.count());
        drop((shared, places));
        let io = Arc::downgrade(self);
        let write =
            PendingWrite { io, inode, offset, len: data.len(), issued_epoch, layout, place, raise, started };
        Some(PreparedWrite { io: self, data, next, write, counted })
    }

    /// Returns true if a request of `len` bytes may be asynchronous.
    pub fn can_be_async(&self, len: usize) -> bool {
        len as u64 <= MAX_ASYNC_BYTES && self.is_possible
    }

    /// Returns true if a transfer can start without blocking: the first request for a store makes a
    /// session, which blocks.
    fn can_start(&self, place: Place) -> bool {
        place.store() == 0 || self.remote.has_session_to(place.store())
    }

    /// Returns true if an open file with this layout certainly has these bytes, without a read of
    /// the record.
    pub(super) fn is_inside(
        &self,
        inode: &Inode,
        known: KnownSize,
        layout: LayoutId,
        (offset, len): (u64, usize),
    ) -> bool {
        let end = offset.saturating_add(len as u64);
        len > 0
            && inode.open.load(Ordering::Acquire)
            && known.reaches(layout, end, self.inodes.recalls().now())
    }
}

/// A read that is ready to start.
#[derive(Debug)]
pub struct PreparedRead<'a> {
    io: &'a Arc<AsyncIo>,
    params: ReadParams,
    place: Place,
    started: StartedGuard,
    counted: InFlightGuard,
}

impl PreparedRead<'_> {
    /// Starts the read. The polling thread runs `answer` with the bytes, and `answer` must not
    /// block. If there is no other work, this thread may poll meanwhile.
    pub fn start<A>(self, next: QueueHint, answer: A)
    where
        A: FnOnce(Result<ReadData<'_>, ClientError>) + Send + 'static,
    {
        let PreparedRead { io, params, place, started, counted } = self;
        let (weak, len) = (Arc::downgrade(io), params.len);
        let done = move |got: Result<&[u8], RequestError>| {
            // The bytes are here. The caller may issue its next read at once, and that read is
            // alone.
            drop((started, counted));
            match got {
                Ok(bytes) => answer(Ok(ReadData::Bytes(bytes))),
                Err(e) => retry_read(&weak, params, e.into(), answer),
            }
            if let Some(io) = weak.upgrade() {
                io.transfers.completed(&*io.remote);
            }
        };
        io.transfers.start(&*io.remote, Transfer::Read(place, len, Box::new(done)), next);
    }
}

/// A write that is ready to start.
#[derive(Debug)]
pub struct PreparedWrite<'a> {
    io: &'a AsyncIo,
    data: &'a [u8],
    next: QueueHint,
    write: PendingWrite,
    counted: InFlightGuard,
}

impl PreparedWrite<'_> {
    /// Copies the bytes and starts the write. The polling thread runs `answer` when the write has
    /// ended, and `answer` must not block. If there is no other work, this thread may poll
    /// meanwhile.
    pub fn start(self, answer: impl FnOnce(Result<(), ClientError>) + Send + 'static) {
        let PreparedWrite { io, data, next, write, counted } = self;
        if let Some(raise) = write.raise {
            return write.start_list(raise, data.to_vec(), (io, counted, next), answer);
        }
        let place = write.place;
        let done = move |placed: Result<(), RequestError>, data: Vec<u8>| {
            // The caller may issue its next write at once, and that write is alone.
            drop(counted);
            let io = write.io.upgrade();
            if placed.is_ok() && io.as_deref().is_some_and(|io| write.is_part(io)) {
                drop(write);
                answer(Ok(()));
            } else {
                write.repeat(placed, data, answer);
            }
            if let Some(io) = io {
                io.transfers.completed(&*io.remote);
            }
        };
        io.transfers.start(&*io.remote, Transfer::Write(place, data.to_vec(), Box::new(done)), next);
    }
}

/// Repeats a failed read on a thread that may block. A flushed request says nothing about the
/// next one.
fn retry_read<A>(io: &Weak<AsyncIo>, params: ReadParams, error: ClientError, answer: A)
where
    A: FnOnce(Result<ReadData<'_>, ClientError>) + Send + 'static,
{
    let Some(io) = io.upgrade() else { return answer(Err(error)) };
    let answer = Arc::new(Mutex::new(Some(answer)));
    let own = Arc::clone(&answer);
    let read = move || {
        let ReadParams { ino, offset, len, issued_epoch } = params;
        let tell = |told: Result<ReadData<'_>, ClientError>| {
            let answer = own.lock().take();
            if let Some(answer) = answer {
                answer(told);
            }
        };
        let read =
            io.reads.read_issued_in(issued_epoch, (ino, offset, len), &mut Vec::new(), |data| tell(Ok(data)));
        if let Err(e) = read {
            tell(Err(e));
        }
    };
    if thread::Builder::new().name("rfs-read".into()).spawn(read).is_err() {
        let answer = answer.lock().take();
        if let Some(answer) = answer {
            answer(Err(error));
        }
    }
}
