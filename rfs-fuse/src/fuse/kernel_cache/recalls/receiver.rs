//! The thread that receives recalls: it queues jobs, and waits for them before it acknowledges.
//!
//! # Concurrency
//! One thread. It holds the lock over the changes in flight while it looks at its jobs, and takes
//! the lock of the queue under it to start a worker.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rfs_client::{ChangesInFlight, RecallHandler};
use rfs_proto::Recall;

use super::{job::Job, queue::Shared};

/// Time to wait for a drop while no change of this mount ends. Changes may occupy all session
/// threads, and the drop may need one.
const GRACE: Duration = Duration::from_millis(50);
/// Time limit for the confirmation that locks are held.
const CONFIRMATION: Duration = Duration::from_secs(2);
/// Time limit for dropping pages that a write of another mount makes stale. Nothing known blocks
/// the drop that long: two mounts do not wait for each other there.
const WRITTEN: Duration = Duration::from_secs(5);

/// The thread that receives recalls.
pub(super) struct Receiver(pub(super) Arc<Shared>);

impl RecallHandler for Receiver {
    fn drop_all(&self, recalls: &[Recall]) {
        let job = |recall: &Recall| Arc::new(Job::new(&self.0.client, recall));
        // The kernel has no layouts. Names of unlinked inodes are dropped once no reply can bring
        // them back (`Shared::unlinked`).
        let apart = |recall: &&Recall| matches!(recall, Recall::Layout { .. } | Recall::Unlinked { .. });
        let kept = recalls.iter().filter(|recall| !apart(recall));
        let mut jobs: Vec<Arc<Job>> = kept.map(job).collect();
        // A drop that blocks must not block those that cannot: these go first.
        jobs.sort_by_key(|job| job.takes_locks());
        if jobs.is_empty() {
            return;
        }
        self.0.queue.lock().jobs.extend(jobs.iter().cloned());
        let (mut ended, mut since) = (None, Instant::now());
        let began = since;
        let patient = jobs.iter().any(|job| job.confirms_locks() || job.is_of_a_write());
        let at_most = |under_way: &ChangesInFlight| (under_way.count() > 0 || patient).then_some(GRACE);
        self.0.client.caching.changes().wait_until(at_most, |under_way| {
            self.0.start_worker();
            if ended.replace(under_way.ended()) != Some(under_way.ended()) {
                since = Instant::now();
            }
            let none_ends = under_way.count() > 0 && since.elapsed() >= GRACE;
            let over = |job: &Arc<Job>| {
                job.is_dropped()
                    || !job.is_of_a_write()
                        && (!job.drops_pages() || began.elapsed() >= GRACE)
                        && job.locks.iter().any(|ino| under_way.changes(*ino))
            };
            // A confirmation waits for session threads, which may wait for other mounts.
            let enough = |job: &Arc<Job>| match (job.confirms_locks(), job.is_of_a_write()) {
                (true, _) => began.elapsed() >= CONFIRMATION,
                (_, true) => began.elapsed() >= WRITTEN,
                _ => none_ends,
            };
            self.0.stopping.load(Ordering::Relaxed) || jobs.iter().all(|job| over(job) || enough(job))
        });
        jobs.iter().for_each(|job| job.mark_acknowledged(&self.0.late));
    }

    fn return_names(&self, dir: u64) {
        // Without FUSE_EXPIRE_ONLY, dropping a name would unmount file systems mounted on it.
        if self.0.kernel.expires_names() {
            let recall = Recall::Names { ino: dir };
            self.0.start(Job { returns_names: true, ..Job::new(&self.0.client, &recall) });
        }
    }
}
