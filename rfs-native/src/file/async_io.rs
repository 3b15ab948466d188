//! Started reads and writes: they end while the thread does other work.
//!
//! Over a network, a small request in space of the file is started in the session, and the thread
//! that finds its completion ends it. In mapped memory a request takes less time than a hand-over,
//! and is done at once. Any other request goes to a worker.
//!
//! # Concurrency
//! Any thread starts and waits. The session's polling threads, the workers and threads that wait
//! complete.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
};

use parking_lot::{Condvar, Mutex};
use rdmabox::RequestError;
use rfs_client::{AsyncIo, QueueHint, ReadData};

use super::{File, OpenFile};
use crate::error::{Error, Result, on};

/// Completions that a thread polls for before it sleeps until its own.
const MAX_POLLS: u32 = 64;

/// A request in flight. It is a future, and a thread can [wait](Started::wait) for it. If it is
/// dropped, the request ends all the same.
#[derive(Debug)]
#[must_use = "the outcome of a started request is in here"]
pub struct Started<T> {
    slot: Arc<Slot<T>>,
    /// Polls for completions.
    io: Weak<AsyncIo>,
}

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

#[derive(Debug)]
struct State<T> {
    outcome: Option<Result<T>>,
    is_ended: bool,
    waker: Option<Waker>,
}

impl<T> Started<T> {
    fn new(file: &File) -> (Started<T>, Completion<T>) {
        let state = Mutex::new(State { outcome: None, is_ended: false, waker: None });
        let slot = Arc::new(Slot { state, done: Condvar::new() });
        let io = Arc::downgrade(&file.inner.core.client.async_io);
        (Started { slot: Arc::clone(&slot), io }, Completion { slot, ino: file.ino() })
    }

    /// Blocks until the request has ended. Over a network, the thread polls for completions first,
    /// so no other thread has to wake it. It runs callbacks of other requests meanwhile, so do not
    /// hold a lock that one of them takes.
    ///
    /// # Errors
    /// As the call that blocks.
    pub fn wait(self) -> Result<T> {
        if let Some(io) = self.io.upgrade() {
            for _ in 0..MAX_POLLS {
                if self.is_done() || !io.poll() {
                    break;
                }
            }
        }
        let mut state = self.slot.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            self.slot.done.wait(&mut state);
        }
    }

    /// Returns true if the request has ended.
    pub fn is_done(&self) -> bool {
        self.slot.state.lock().outcome.is_some()
    }
}

impl<T> Future for Started<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut state = self.slot.state.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The other end of a [`Started`].
struct Completion<T> {
    slot: Arc<Slot<T>>,
    ino: u64,
}

impl<T> Completion<T> {
    fn complete(self, outcome: Result<T>) {
        self.end(outcome);
    }

    /// Ends the request, once.
    fn end(&self, outcome: Result<T>) {
        let waker = {
            let mut state = self.slot.state.lock();
            if state.is_ended {
                return;
            }
            (state.outcome, state.is_ended) = (Some(outcome), true);
            state.waker.take()
        };
        self.slot.done.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        // A request without an answer ends, too: a thread may wait for it.
        self.end(Err(on("started request", self.ino)(RequestError::Disconnected.into())));
    }
}

/// Returns the hint for a request. `more` promises another request, but nothing holds the caller to
/// it.
fn hint(more: bool) -> QueueHint {
    if more { QueueHint::Waits } else { QueueHint::Unknown }
}

fn bytes_of(data: ReadData<'_>) -> Vec<u8> {
    match data {
        ReadData::Bytes(bytes) => bytes.to_vec(),
        ReadData::Mapped { memory, offset, len } => {
            let mut bytes = vec![0; len];
            memory.read(offset, &mut bytes);
            bytes
        }
    }
}

impl OpenFile {
    /// Starts a read. `next` tells about the caller's next request.
    fn start_read(
        self: &Arc<Self>,
        (offset, len): (u64, usize),
        next: QueueHint,
        answer: impl FnOnce(Result<Vec<u8>>) + Send + 'static,
    ) {
        let ino = self.node.ino;
        if let Err(e) = self.check_read() {
            return answer(Err(on("read", ino)(e)));
        }
        self.was_read();
        let io = &self.core.client.async_io;
        let mut prepared = None;
        if next == QueueHint::Follows {
            prepared = io.prepare_read_known(ino, offset, len);
            if prepared.is_none() {
                // The next requests may wait for the server, and the server for those that were
                // started.
                io.flush();
            }
        }
        if let Some(prepared) = prepared.or_else(|| io.prepare_read_alone(ino, offset, len)) {
            return prepared.start(next, move |data| answer(data.map(bytes_of).map_err(on("read", ino))));
        }
        let file = File { inner: Arc::clone(self) };
        self.run(move || answer(file.read_up_to(offset, len)));
    }

    /// Starts a write of all bytes. With `more`, the caller starts another request at once.
    fn start_write(
        self: &Arc<Self>,
        offset: u64,
        data: Vec<u8>,
        more: bool,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let (client, ino) = (&self.core.client, self.node.ino);
        let only_stores = self.writes && self.only_stores();
        // After all that may wait for the server: a lock that is lost meanwhile does not guard the
        // write any more.
        if let Err(e) = self.check_write() {
            return answer(Err(on("write", ino)(e)));
        }
        if only_stores
            && let Some(prepared) = client.async_io.prepare_write_alone(ino, offset, &data, hint(more))
        {
            return prepared.start(move |written| answer(written.map_err(on("write", ino))));
        }
        let file = File { inner: Arc::clone(self) };
        self.run(move || answer(file.write_all_at(&data, offset)));
    }

    /// Returns true if nothing has to follow the bytes of a write.
    fn only_stores(&self) -> bool {
        let (client, ino) = (&self.core.client, self.node.ino);
        // The second check may ask the server.
        !client.pages.is_shared(ino)
            && client.privileges.of(ino).is_ok_and(|rights| rights.loss(self.user.is_root()).is_nothing())
    }

    /// Runs a request at once in mapped memory, and else on a worker.
    fn run(&self, request: impl FnOnce() + Send + 'static) {
        match self.core.client.is_mapped() {
            true => request(),
            false => self.core.workers.run(Box::new(request)),
        }
    }
}

impl File {
    /// Starts a read of up to `len` bytes at an offset.
    ///
    /// # Errors
    /// The request has those of [`read_at`](Self::read_at).
    pub fn start_read(&self, offset: u64, len: usize) -> Started<Vec<u8>> {
        let (started, completion) = Started::new(self);
        self.inner.start_read((offset, len), QueueHint::Unknown, |read| completion.complete(read));
        started
    }

    /// Starts several reads, and sends them together.
    ///
    /// # Errors
    /// Each request has those of [`read_at`](Self::read_at).
    pub fn start_reads(&self, ranges: impl IntoIterator<Item = (u64, usize)>) -> Vec<Started<Vec<u8>>> {
        let start = |range| {
            let (started, completion) = Started::new(self);
            self.inner.start_read(range, QueueHint::Follows, |read| completion.complete(read));
            started
        };
        // The iterator is the caller's, and may wait: nothing is held back while it runs.
        let ranges: Vec<_> = ranges.into_iter().collect();
        let all = ranges.into_iter().map(start).collect();
        self.inner.core.client.async_io.flush();
        all
    }

    /// Starts a read, and runs `done` with its outcome. `done` runs on this thread, on a thread
    /// that waits for another request, or on a thread that must not block. `done` must be short,
    /// and must not drop the last clone of a file.
    ///
    /// With `more`, the caller starts another request at once, and the session may send both
    /// together.
    pub fn start_read_with(
        &self,
        (offset, len): (u64, usize),
        more: bool,
        done: impl FnOnce(std::result::Result<Vec<u8>, Error>) + Send + 'static,
    ) {
        self.inner.start_read((offset, len), hint(more), done);
    }

    /// Starts a write of all bytes at an offset. They are visible to all mounts when it has ended.
    ///
    /// # Errors
    /// The request has those of [`write_all_at`](Self::write_all_at).
    pub fn start_write(&self, offset: u64, data: Vec<u8>) -> Started<()> {
        let (started, completion) = Started::new(self);
        self.inner.start_write(offset, data, false, |written| completion.complete(written));
        started
    }

    /// Starts several writes, and sends them together. Writes that overlap leave the bytes of any
    /// of them.
    ///
    /// # Errors
    /// Each request has those of [`write_all_at`](Self::write_all_at).
    pub fn start_writes(&self, writes: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Vec<Started<()>> {
        let mut writes = writes.into_iter().peekable();
        let mut all = Vec::new();
        while let Some((offset, data)) = writes.next() {
            let (started, completion) = Started::new(self);
            let more = writes.peek().is_some();
            self.inner.start_write(offset, data, more, |written| completion.complete(written));
            all.push(started);
        }
        all
    }

    /// Starts a write, and runs `done` as [`start_read_with`](Self::start_read_with).
    pub fn start_write_with(
        &self,
        offset: u64,
        data: Vec<u8>,
        more: bool,
        done: impl FnOnce(std::result::Result<(), Error>) + Send + 'static,
    ) {
        self.inner.start_write(offset, data, more, done);
    }
}
