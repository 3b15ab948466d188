//! The queue to the thread that writes a trace.
//!
//! # Concurrency
//! Any thread adds records. It takes `queue` shared for a moment, and never waits for the thread
//! that writes.

use std::{
    cell::Cell,
    sync::{
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Instant,
};

use parking_lot::RwLock;

use super::record::{Record, Step};

/// Records that may wait for the thread that writes.
const QUEUE: usize = 16 << 10;
/// Number of waiting records from which on no new request is reported, so that the steps of those
/// under way find room.
const MAX_FOR_BEGIN: usize = QUEUE / 4 * 3;

/// Whether a record begins a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Begin,
    Rest,
}

/// The queue to the thread that writes.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// `None` while nothing is recorded.
    queue: RwLock<Option<SyncSender<Record>>>,
    /// Number of records in the queue.
    waiting: AtomicUsize,
    /// Records that found no room.
    dropped: AtomicU64,
}

/// Returns the ID of the calling thread.
fn thread_id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    if ID.get() == 0 {
        ID.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    }
    ID.get()
}

impl Recorder {
    /// Adds a record of this thread. Returns false if there is no room, or no recording.
    pub(super) fn add(&self, admission: Admission, step: Step) -> bool {
        let queue = self.queue.read();
        let Some(queue) = &*queue else { return false };
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let has_room = admission == Admission::Rest || waiting < MAX_FOR_BEGIN;
        let record = Record { thread: thread_id(), at: Instant::now(), step };
        let added = has_room && queue.try_send(record).is_ok();
        if !added {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        added
    }

    /// Opens a new queue, for a thread that takes the records out.
    pub(super) fn open(&self) -> Receiver<Record> {
        let (send, records) = sync_channel(QUEUE);
        self.waiting.store(0, Ordering::Relaxed);
        self.dropped.store(0, Ordering::Relaxed);
        *self.queue.write() = Some(send);
        records
    }

    /// Lets no further record into the queue.
    pub(super) fn close(&self) {
        *self.queue.write() = None;
    }

    /// Counts a record that was taken out.
    pub(super) fn taken(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of records of the recording that found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
