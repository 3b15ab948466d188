//! The session threads of a mount, and whether they have begun the requests that they have taken.
//!
//! A thread *takes* a request when the kernel hands it over and *begins* it when it calls `begin`.
//! It does not sleep in between. So a thread that sleeps outside of a request holds none. If a
//! thread begins or ends a request after some moment, it has begun all requests that it had taken
//! before.
//!
//! # Concurrency
//! Session threads record turns with one atomic operation. The barrier's thread reads them. One
//! lock over the list of threads.

use std::{
    cell::OnceCell,
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use parking_lot::Mutex;

/// A session thread.
#[derive(Debug)]
struct Worker {
    tid: i32,
    /// Number of begins and ends of turns. Odd during a turn.
    turns: AtomicU64,
    /// True if a turn has several requests, which do not begin together.
    in_batches: bool,
}

/// The session threads of a mount.
#[derive(Debug, Default)]
pub struct Threads(Mutex<Vec<Arc<Worker>>>);

thread_local! {
    static OWN: OnceCell<Arc<Worker>> = const { OnceCell::new() };
}

/// A turn of the calling thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(());

impl Drop for Turn {
    fn drop(&mut self) {
        OWN.with(|own| {
            if let Some(worker) = own.get() {
                worker.turns.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

impl Threads {
    /// Begins a turn of the calling session thread, with one request or several.
    pub(in crate::fuse) fn begin(&self, in_batches: bool) -> Turn {
        OWN.with(|own| {
            let worker = own.get_or_init(|| {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                let worker = Arc::new(Worker { tid, turns: AtomicU64::new(0), in_batches });
                self.0.lock().push(Arc::clone(&worker));
                worker
            });
            worker.turns.fetch_add(1, Ordering::SeqCst);
        });
        Turn(())
    }

    /// Blocks until session threads have begun all requests that they have taken so far. Returns
    /// false if that takes longer than `limit`.
    pub(in crate::fuse) fn settle(&self, limit: Instant) -> bool {
        let workers: Vec<_> =
            self.0.lock().iter().map(|w| (Arc::clone(w), w.turns.load(Ordering::SeqCst))).collect();
        workers.into_iter().all(|(worker, before)| {
            loop {
                if worker.has_begun(before) {
                    return true;
                }
                if Instant::now() >= limit {
                    return false;
                }
                thread::yield_now();
            }
        })
    }
}

impl Worker {
    fn has_begun(&self, before: u64) -> bool {
        let in_turn = before % 2 == 1;
        if self.turns.load(Ordering::SeqCst) != before || in_turn && !self.in_batches {
            return true;
        }
        // The turns did not change while the thread's state was read.
        !in_turn && sleeps(self.tid) && self.turns.load(Ordering::SeqCst) == before
    }
}

/// Returns true if a thread of this process waits for a request, or has ended.
///
/// State D is no sleep here: a thread that copies a request out of the kernel may block
/// uninterruptibly.
fn sleeps(tid: i32) -> bool {
    match fs::read_to_string(format!("/proc/self/task/{tid}/stat")) {
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['R', 'D'])),
        Err(_) => true,
    }
}
