//! Over io_uring (Linux 6.14 and newer, where root has set `/sys/module/fuse/parameters/enable_uring`).
//!
//! The kernel has a queue for each core, and puts a request into that of the core of whoever makes it. Threads that stay there serve
//! it, so that nobody has to be woken on another core. `/dev/fuse` is there besides: what nobody waits for (FORGET), and notifications, go
//! that way.
//!
//! [`abi`]: structures; [`decode`]: requests into calls; [`slot`]: answers; [`entry`]: memory shared with the kernel; [`worker`]: the
//! threads; [`cores`]: which of them serves which queues.

pub(super) mod abi;
mod cores;
mod decode;
mod entry;
mod kick;
mod slot;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    convert::Infallible,
    io,
    os::fd::BorrowedFd,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use rustix::thread::{CpuSet, sched_setaffinity};

pub(super) use self::slot::{List, Slot};
use self::{
    cores::Share,
    kick::Kick,
    worker::{Mount, Worker},
};
use super::Filesystem;

/// What root sets to have it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The least that the kernel wants an entry to hold.
const MIN_PAYLOAD: usize = 8192;

/// What a thread does once there is a mount.
type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Threads that have their rings and wait for a mount.
#[derive(Debug)]
pub struct Ring {
    shares: Vec<Share>,
    threads: Vec<mpsc::Sender<Job>>,
    ended: mpsc::Receiver<Infallible>,
}

/// A ring that serves.
#[derive(Debug)]
pub struct Serving {
    ended: mpsc::Receiver<Infallible>,
}

impl Ring {
    /// True if the kernel has it and root has switched it on.
    pub fn is_offered() -> bool {
        std::fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y")
    }

    /// Starts threads, so many on each core that the system uses, and has the kernel make their rings.
    ///
    /// # Errors
    /// The kernel's: this process may have no io_uring, for instance.
    pub fn prepare(threads: usize) -> io::Result<Ring> {
        let shares = cores::shares(&cores::Cores::of_system()?, threads);
        let (end, ended) = mpsc::channel();
        let (ready, outcomes) = mpsc::channel();
        let mut waiting = Vec::with_capacity(shares.len());
        for (number, share) in shares.iter().enumerate() {
            let (send, jobs) = mpsc::channel::<Job>();
            let (end, ready, core) = (end.clone(), ready.clone(), share.core);
            thread::Builder::new().name(format!("ring-{number}")).spawn(move || {
                // Dropped at the end, whatever becomes of this.
                let _end: mpsc::Sender<Infallible> = end;
                if let Some(core) = core {
                    stay_on(core);
                }
                let made = Worker::new();
                let (mut worker, outcome) = match made {
                    Ok(worker) => (Some(worker), Ok(())),
                    Err(e) => (None, Err(e)),
                };
                ready.send(outcome).ok();
                drop(ready);
                if let (Some(worker), Ok(job)) = (&mut worker, jobs.recv()) {
                    job(worker);
                }
            })?;
            waiting.push(send);
        }
        drop(ready);
        outcomes.into_iter().collect::<io::Result<()>>()?;
        Ok(Ring { shares, threads: waiting, ended })
    }

    /// Serves a mount whose kernel waits for a ring. `payload_len`: the most that is read or written at once. `failed` hears of a thread
    /// that can serve no longer.
    ///
    /// # Errors
    /// The kernel's: then it goes on over `/dev/fuse`.
    pub fn start<F: Filesystem>(
        self,
        filesystem: &Arc<F>,
        device: BorrowedFd<'_>,
        payload_len: usize,
        mount_point: PathBuf,
        failed: impl Fn(io::Error) + Clone + Send + 'static,
    ) -> io::Result<Serving> {
        let kick = Arc::new(Kick::new(mount_point));
        let (ready, outcomes) = mpsc::channel();
        for (share, thread) in self.shares.into_iter().zip(self.threads) {
            let mount = Mount {
                device: device.try_clone_to_owned()?,
                payload_len: payload_len.max(MIN_PAYLOAD),
                queues: share.queues,
                kick: Arc::clone(&kick),
            };
            let (filesystem, ready, failed) = (Arc::clone(filesystem), ready.clone(), failed.clone());
            let job: Job = Box::new(move |worker| {
                let registered = worker.register(&mount);
                let serves = registered.is_ok();
                ready.send(registered).ok();
                drop(ready);
                if serves && let Err(e) = worker.run(&mount, &*filesystem) {
                    failed(e);
                }
            });
            thread.send(job).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        drop(ready);
        outcomes.into_iter().collect::<io::Result<()>>()?;
        Ok(Serving { ended: self.ended })
    }
}

impl Serving {
    /// Waits until no thread calls the file system any more, so long at most. The mount is gone.
    pub fn join(self, limit: Duration) {
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.recv_timeout(limit) {
            log::warn!("threads that serve a ring still wait for something");
        }
    }
}

/// Has the calling thread run on one core. Where that is refused it runs where it can.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    if let Err(e) = sched_setaffinity(None, &cores) {
        log::debug!("a thread of a ring cannot stay on core {core}: {e}");
    }
}
