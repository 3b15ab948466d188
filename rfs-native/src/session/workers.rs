//! Threads for requests that may block, so that their caller need not wait.
//!
//! The threads start with the first requests, up to [`MAX_THREADS`]. They end when the mount is
//! dropped.
//!
//! # Concurrency
//! Any thread adds. One lock over the queue, which is not held during a request.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex};

/// Maximum number of threads.
const MAX_THREADS: usize = 8;

/// A request.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The threads.
#[derive(Default)]
pub(crate) struct Workers(Arc<Shared>);

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workers").field(&self.0.queue.lock().threads).finish()
    }
}

impl Workers {
    /// Runs a request on a thread. Runs it on this thread if the system has none.
    pub(crate) fn run(&self, job: Job) {
        if let Err(job) = self.offer(job) {
            job();
        }
    }

    /// Runs a request on a thread. Returns the request if the system has none.
    pub(crate) fn offer(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.0.queue.lock();
        let needs_thread = queue.jobs.len() >= queue.idle && queue.threads < MAX_THREADS;
        if needs_thread {
            let shared = Arc::clone(&self.0);
            match thread::Builder::new().name("rfs-started".into()).spawn(move || shared.run()) {
                Ok(_) => queue.threads += 1,
                Err(_) if queue.threads == 0 => return Err(job),
                Err(_) => {}
            }
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.0.work.notify_one();
        Ok(())
    }
}

impl Shared {
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if queue.stop => return None,
                None => {
                    queue.idle += 1;
                    self.work.wait(&mut queue);
                    queue.idle -= 1;
                }
            }
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            // The caller's part of a request may panic, and other requests need the thread.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                log::error!("a started request has panicked");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A worker may drop the mount itself, so this waits for no thread.
        self.0.queue.lock().stop = true;
        self.0.work.notify_all();
    }
}
