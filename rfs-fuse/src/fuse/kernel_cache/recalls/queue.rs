//! The queue of jobs, and the state that the threads of a mount share.
//!
//! # Concurrency
//! Any thread queues a job. One lock over the queue, which no thread holds while it notifies the
//! kernel.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rfs_client::Client;
use rfs_proto::Recall;

use super::job::Job;
use crate::fuse::kernel::{KernelLink, Part};

/// Maximum number of workers. A change of this mount may block each of them.
const WORKERS: usize = 128;

/// Time after which something is dropped a second time. Names expire again if their inode's owner
/// has changed. A thread may have received a lookup's reply before the change, and continue after
/// the names have expired. It then revalidates the name with the old owner. An inode that only a
/// previous process has named is dropped again if the kernel did not know it. A thread may have a
/// reply of that process, and wait for another one before it reads it to the end.
const SECOND_DROP_DELAY: Duration = Duration::from_secs(1);

/// Names or attributes that are dropped a second time.
pub(super) enum SecondDrop {
    /// The names of an inode expire.
    NamesOf(u64),
    /// Names in a directory expire.
    NamesIn(u64, Vec<Arc<[u8]>>),
    /// A part of an inode.
    Inode(u64, Part),
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) jobs: VecDeque<Arc<Job>>,
    /// Workers, and how many of them wait for a job.
    pub(super) workers: Vec<JoinHandle<()>>,
    pub(super) idle: usize,
    pub(super) stop: bool,
    /// The second drops, with their times.
    pub(super) second_drops: VecDeque<(Instant, SecondDrop)>,
}

pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    pub(super) kernel: KernelLink,
    pub(super) queue: Mutex<Queue>,
    pub(super) work: Condvar,
    pub(super) stopping: AtomicBool,
    /// When this process began to serve the mount.
    pub(super) began: Instant,
    /// Number of objects that the kernel has although the server takes them for dropped.
    pub(super) late: Arc<AtomicUsize>,
}

impl Shared {
    /// Queues the drop of an unlinked inode's names. No thread waits for it.
    pub(super) fn unlinked(self: &Arc<Self>, ino: u64) {
        if self.client.caching.known_names(ino).next().is_some() {
            self.start(Job::new(&self.client, &Recall::Unlinked { ino }));
        }
    }

    /// Queues a job without waiting for it.
    pub(super) fn start(self: &Arc<Self>, job: Job) {
        self.queue.lock().jobs.push_back(Arc::new(job));
        self.start_worker();
    }

    /// Wakes a worker, or starts one, if a job is queued.
    pub(super) fn start_worker(self: &Arc<Self>) {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() {
            return;
        }
        if queue.idle > 0 {
            self.work.notify_one();
        } else if queue.workers.len() < WORKERS && !queue.stop {
            let shared = Arc::clone(self);
            match thread::Builder::new().name("dropping".into()).spawn(move || shared.work()) {
                Ok(worker) => queue.workers.push(worker),
                Err(e) => log::error!("cannot start a thread to drop what was recalled: {e}"),
            }
        }
    }

    /// Has a worker drop something again after [`SECOND_DROP_DELAY`].
    pub(super) fn drop_again(&self, what: SecondDrop) {
        self.queue.lock().second_drops.push_back((Instant::now() + SECOND_DROP_DELAY, what));
    }
}
