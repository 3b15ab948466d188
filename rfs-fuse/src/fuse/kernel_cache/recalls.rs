//! Has the kernel drop names, attributes and pages that the server recalls.
//!
//! Dropping a name waits for its directory's lock, which the kernel holds over changes there.
//! Dropping a page waits for its lock, which the kernel holds over a read. Such a request may wait
//! at the server for another mount, and that mount for this one. To prevent a deadlock, workers do
//! the dropping. The receiving thread acknowledges a recall early if a change of this mount
//! concerns the same inode, or if no change ends for `GRACE`. The worker then finishes late, after
//! the change.
//!
//! # Concurrency
//! One receiving thread (`Receiver`) and up to `WORKERS` workers. One lock over the queue, which no
//! thread holds while it notifies the kernel.

mod job;
mod queue;
mod receiver;
mod worker;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::{Condvar, Mutex};
use rdmabox::Cancel;
use rfs_client::Client;
use rfs_proto::Recall;

use self::{job::Job, queue::Shared, receiver::Receiver};
use crate::fuse::{background::Background, kernel::KernelLink};

/// The threads of a mount. Dropping this ends them.
pub(in crate::fuse) struct Recalls {
    shared: Arc<Shared>,
    cancel: Cancel,
    receiver: Background,
}

impl std::fmt::Debug for Recalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recalls")
    }
}

impl Recalls {
    /// Starts to receive recalls.
    pub(in crate::fuse) fn obey(client: Arc<Client>, kernel: KernelLink) -> io::Result<Recalls> {
        client.recalls.announce().map_err(io::Error::other)?;
        let (link, late) = (kernel.clone(), Arc::<AtomicUsize>::default());
        let names_are_late = Arc::clone(&late);
        client.recalls.drop_names_by(move || {
            if let Err(e) = link.drop_names() {
                names_are_late.fetch_add(1, Ordering::Relaxed);
                log::warn!("this kernel cannot drop all names, so that some may be stale: {e}");
            }
        });
        let shared = Arc::new(Shared {
            client,
            kernel,
            queue: Mutex::default(),
            work: Condvar::new(),
            stopping: AtomicBool::new(false),
            began: Instant::now(),
            late,
        });
        let dropping = Arc::downgrade(&shared);
        shared.client.recalls.drop_unlinked_by(move |ino| {
            if let Some(shared) = dropping.upgrade() {
                shared.unlinked(ino);
            }
        });
        let (cancel, receiver) = (Cancel::new(), Background::new("recalls"));
        let (handler, until) = (Receiver(Arc::clone(&shared)), cancel.clone());
        receiver.start(move || {
            if let Err(e) = handler.0.client.recalls.obey(&handler, &until)
                && handler.0.client.is_connected()
            {
                log::error!("cannot receive recalls, so that nothing is cached any more: {e}");
            }
        })?;
        Ok(Recalls { shared, cancel, receiver })
    }

    /// Returns true if the kernel may have names that another mount has changed. A change of this
    /// mount may delay their drop, or the kernel may be too old to drop all names.
    pub(in crate::fuse) fn are_late(&self) -> bool {
        self.shared.late.load(Ordering::Acquire) > 0
    }

    /// Has a worker drop a name in a removed directory. The kernel is about to learn that the name
    /// is absent. It would cache that, and keep the directory with it.
    pub(in crate::fuse) fn drop_name_later(&self, parent: u64, name: &[u8]) {
        let recall = Recall::Name { parent, name: name.to_vec() };
        self.shared.start(Job::new(&self.shared.client, &recall));
    }

    /// Has a worker make the kernel look a name up at its next use, after a rename. A file system
    /// that is mounted there stays mounted, unless the kernel is too old to expire a name.
    pub(in crate::fuse) fn revalidate_name_later(&self, parent: u64, name: &[u8]) {
        let recall = Recall::Name { parent, name: name.to_vec() };
        self.shared.start(Job { expires: true, ..Job::new(&self.shared.client, &recall) });
    }
}

impl Drop for Recalls {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.client.caching.changes().look_again();
        self.receiver.join();
        let workers = {
            let mut queue = self.shared.queue.lock();
            queue.stop = true;
            std::mem::take(&mut queue.workers)
        };
        self.shared.work.notify_all();
        for worker in workers {
            if worker.join().is_err() {
                log::error!("a thread for recalls has panicked");
            }
        }
    }
}
