//! Requests over io_uring: Linux 6.14 and newer, if root has set
//! `/sys/module/fuse/parameters/enable_uring`.
//!
//! The kernel has a queue per core, and puts a request into the queue of its caller's core.
//! Threads bound to that core serve it, so no thread on another core wakes up. `/dev/fuse` stays
//! in use for FORGET and INTERRUPT, and for notifications.
//!
//! [`abi`] has the structures of rings, [`entry`] the memory shared with the kernel, and
//! [`answers`] the answers for it. [`worker`] has the threads, [`cores`] assigns queues to them,
//! and [`switch`] is the kernel's switch. Requests are those of `/dev/fuse`
//! ([`wire`](super::wire)).
//!
//! # Concurrency
//! Each ring belongs to one thread. Any thread answers a request through a `Slot`.

mod abi;
pub(super) mod answers;
mod cores;
pub(super) mod entry;
mod kick;
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

pub use self::switch::SwitchError;
use self::{
    kick::{Kick, bind_to_core},
    worker::{Mount, Worker},
};
use super::Filesystem;
use crate::fuse::{session::Trace, settings::Settings};

/// Minimum size of an entry's payload: the longest extended attribute with its name, and the
/// kernel's header of ACLs. The kernel checks the size of reads and writes, but not of these.
const MIN_PAYLOAD: usize = 128 * 1024;

/// Granularity of payload sizes: the largest page size of the kernel.
const PAGE: usize = 64 * 1024;

/// Runs on a ring's thread once the mount exists.
type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Threads with rings that wait for a mount.
#[derive(Debug)]
pub struct Ring {
    threads: Vec<mpsc::Sender<Job>>,
    ended: mpsc::Receiver<Infallible>,
}

/// Threads with rings that serve a mount.
#[derive(Debug)]
pub struct Serving {
    ended: mpsc::Receiver<Infallible>,
}

impl Ring {
    /// Returns true if the kernel offers io_uring and root has enabled it.
    pub fn is_offered() -> bool {
        switch::is_on()
    }

    /// Enables FUSE over io_uring in the kernel, for the whole machine.
    ///
    /// # Errors
    /// The kernel does not have it, or this process may not switch it on.
    pub fn switch_on() -> Result<(), SwitchError> {
        switch::set()
    }

    /// Starts `threads` threads on each online core, creates their rings, and allocates memory for
    /// requests. All steps that may fail come before the kernel learns of the rings.
    ///
    /// # Errors
    /// The kernel's errors, for instance if this process may not use io_uring, or not run on each
    /// core. [`io::ErrorKind::Unsupported`] if `max_write` is less than 128 KiB.
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
                // Dropped at the end of the thread, also after a panic.
                let _end: mpsc::Sender<Infallible> = end;
                // A thread that is not on the queue's core could not wake its requests (`kick`).
                let there = share.core.map_or(Ok(()), |core| bind_to_core(core).map_err(io::Error::from));
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

    /// Serves a mount whose kernel expects a ring. Calls `failed` when a thread can serve no
    /// longer.
    ///
    /// # Errors
    /// The kernel's errors if it refuses the rings. Then requests come over `/dev/fuse`.
    pub fn start<F: Filesystem>(
        self,
        filesystem: &Arc<F>,
        device: &Arc<OwnedFd>,
        (mount_point, trace): (PathBuf, &Arc<Trace>),
        failed: impl Fn(io::Error) + Clone + Send + 'static,
    ) -> io::Result<Serving> {
        let kick = Arc::new(Kick::new(mount_point));
        let (ready, outcomes) = mpsc::channel();
        for thread in self.threads {
            let (device, kick, trace) = (Arc::clone(device), Arc::clone(&kick), Arc::clone(trace));
            let mount = Mount { device, kick, trace };
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

/// Reports a panic of its thread, whose callers would wait for ever.
struct Alarm<'a, F: Fn(io::Error)>(&'a F);

impl<F: Fn(io::Error)> Drop for Alarm<'_, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0(io::Error::other("a thread that serves a ring has panicked"));
        }
    }
}

impl Serving {
    /// Waits up to `limit` until no thread calls the file system any more. The mount has ended.
    pub fn join(self, limit: Duration) {
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.recv_timeout(limit) {
            log::warn!("threads of a ring still wait for calls");
        }
    }
}
