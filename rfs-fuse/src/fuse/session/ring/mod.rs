//! Over io_uring (Linux 6.14 and newer, where root has set `/sys/module/fuse/parameters/enable_uring`).
//!
//! The kernel has a queue for each core, and puts a request into that of the core of whoever makes it. Threads that stay there serve
//! it, so that nobody has to be woken on another core. `/dev/fuse` is there besides: what nobody waits for (FORGET), and notifications, go
//! that way, and INTERRUPT, which fuser declines.
//!
//! [`abi`]: structures; [`decode`]: requests into calls; [`slot`]: answers; [`entry`]: memory shared with the kernel; [`worker`]: the
//! threads; [`cores`]: which of them serves which queues; [`switch`]: the kernel's switch.

pub(super) mod abi;
mod cores;
mod decode;
mod entry;
mod kick;
mod slot;
mod switch;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    convert::Infallible,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

pub(super) use self::slot::{List, Slot};
use self::{
    kick::{Kick, stay_on},
    worker::{Mount, Worker},
};
pub use self::{slot::Beside, switch::SwitchError};
use super::Filesystem;
use crate::fuse::Settings;

/// The least that an entry has to hold: the longest value of an extended attribute, its name, and what the kernel puts in front of ACLs. It does not look
/// whether those fit, as it does with what is read and written.
const MIN_PAYLOAD: usize = 128 * 1024;

/// The kernel rounds up to it, and no page is larger.
const PAGE: usize = 64 * 1024;

/// What a thread does once there is a mount.
type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Threads that have their rings and wait for a mount.
#[derive(Debug)]
pub struct Ring {
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
        switch::is_on()
    }

    /// Has the kernel offer it, for this machine and from now on.
    ///
    /// # Errors
    /// The kernel does not have it, or this process may not switch it on.
    pub fn switch_on() -> Result<(), SwitchError> {
        switch::set()
    }

    /// Starts threads, so many on each core that the system uses, has the kernel make their rings, and takes memory for requests: all that can fail
    /// without the kernel hearing of it.
    ///
    /// # Errors
    /// The kernel's: this process may have no io_uring, for instance, or not each core. [`io::ErrorKind::Unsupported`] where the largest
    /// write is to be below 128 KiB.
    pub fn prepare(threads: usize, settings: &Settings) -> io::Result<Ring> {
        if (settings.max_write as usize) < MIN_PAYLOAD {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it takes --max-write 128K or more"));
        }
        let payload_len = settings.max_payload().next_multiple_of(PAGE);
        let shares = cores::shares(&cores::Cores::of_system()?, threads);
        let (end, ended) = mpsc::channel();
        let (ready, outcomes) = mpsc::channel();
        let mut waiting = Vec::with_capacity(shares.len());
        for (number, share) in shares.into_iter().enumerate() {
            let (send, jobs) = mpsc::channel::<Job>();
            let (end, ready) = (end.clone(), ready.clone());
            thread::Builder::new().name(format!("ring-{number}")).spawn(move || {
                // Dropped at the end, whatever becomes of this.
                let _end: mpsc::Sender<Infallible> = end;
                // Whoever cannot be on a core cannot see to it either that nobody there waits for ever (`kick`).
                let there = share.core.map_or(Ok(()), |core| stay_on(core).map_err(io::Error::from));
                let made = there.and_then(|()| Worker::new(&share.queues, payload_len));
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
        Ok(Ring { threads: waiting, ended })
    }

    /// Serves a mount whose kernel waits for a ring. `failed` hears of a thread that can serve no longer.
    ///
    /// # Errors
    /// The kernel's, when it takes no ring after all: then it goes on over `/dev/fuse`.
    pub fn start<F: Filesystem>(
        self,
        filesystem: &Arc<F>,
        device: &Arc<OwnedFd>,
        mount_point: PathBuf,
        failed: impl Fn(io::Error) + Clone + Send + 'static,
    ) -> io::Result<Serving> {
        let kick = Arc::new(Kick::new(mount_point));
        let (ready, outcomes) = mpsc::channel();
        for thread in self.threads {
            let mount = Mount { device: Arc::clone(device), kick: Arc::clone(&kick) };
            let (filesystem, ready, failed) = (Arc::clone(filesystem), ready.clone(), failed.clone());
            let job: Job = Box::new(move |worker| {
                let _alarm = Alarm(&failed);
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

/// Says so when its thread panics: nobody answers then who waits there.
struct Alarm<'a, F: Fn(io::Error)>(&'a F);

impl<F: Fn(io::Error)> Drop for Alarm<'_, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0(io::Error::other("a thread that serves a ring has panicked"));
        }
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
