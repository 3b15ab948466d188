//! The session threads, and whether one of them has taken a request that it has not begun with.
//!
//! A thread takes a request in the kernel, and begins with it soon after. In between it does not sleep. So a thread that sleeps outside of
//! a request has taken none, and a thread that has begun with one or ended one since a moment had taken none before that moment
//! that is not begun with.

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

/// One thread.
#[derive(Debug)]
struct Worker {
    tid: i32,
    /// Grows as a turn begins and as it ends: odd meanwhile.
    turns: AtomicU64,
    /// A turn has several requests, with all of which the thread has not begun as it begins.
    in_batches: bool,
}

/// All of a mount.
#[derive(Debug, Default)]
pub struct Threads(Mutex<Vec<Arc<Worker>>>);

thread_local! {
    static OWN: OnceCell<Arc<Worker>> = const { OnceCell::new() };
}

/// While this exists the calling thread is in a turn.
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
    /// The calling session thread begins with a request, or with several.
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

    /// Returns when session threads have begun with all that they have taken so far; false if that takes longer than `limit`.
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
        // The state is looked at between two looks at the turns.
        !in_turn && sleeps(self.tid) && self.turns.load(Ordering::SeqCst) == before
    }
}

/// Returns true if a thread of this process waits for a request, or is gone.
///
/// A thread that copies a request out of the kernel may block uninterruptibly (D).
fn sleeps(tid: i32) -> bool {
    match fs::read_to_string(format!("/proc/self/task/{tid}/stat")) {
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['R', 'D'])),
        Err(_) => true,
    }
}
