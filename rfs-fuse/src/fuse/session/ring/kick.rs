//! Makes the kernel hand queued requests to a new entry.
//!
//! The kernel hands a queued request only to an entry that is given back, not to a newly
//! registered one. If all entries of a queue hold blocked lock requests, a queued unlock could
//! wait for ever. So after a registration, a thread on the queue's core sends a request to the
//! mount. That request takes the new entry, and its answer fetches the queued ones. If another
//! request takes the entry first, its answer does.
//!
//! The thread uses the path of the mount, because a descriptor would keep the mount busy. On a
//! detached or covered mount queued requests wait for the next answer on their core. The threads
//! have no descriptor of the device, so they cannot keep a killed process from ending
//! (`descriptors`).
//!
//! # Concurrency
//! One thread, and one more for each that waits for an answer. One lock over the queue.

use std::{collections::VecDeque, io, path::PathBuf, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno,
    thread::{CpuSet, sched_setaffinity},
};

use crate::fuse::descriptors::close_all;

/// Binds the calling thread to a core.
pub(super) fn bind_to_core(core: usize) -> Result<(), Errno> {
    if core >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores)
}

#[derive(Debug, Default)]
struct State {
    queues: VecDeque<u16>,
    /// True if a thread waits for work. One such thread suffices.
    idle: bool,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    mount_point: PathBuf,
    state: Mutex<State>,
    work: Condvar,
}

/// The threads of a mount. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Kick(Arc<Shared>);

impl Kick {
    pub(super) fn new(mount_point: PathBuf) -> Kick {
        Kick(Arc::new(Shared { mount_point, state: Mutex::default(), work: Condvar::new() }))
    }

    /// Sends a request from the core of a queue. Does not block.
    pub(super) fn kick(&self, queue: u16) -> io::Result<()> {
        let idle = {
            let mut state = self.0.state.lock();
            state.queues.push_back(queue);
            std::mem::take(&mut state.idle)
        };
        if idle {
            self.0.work.notify_one();
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("kick".into()).spawn(move || shared.run()).map(drop)
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        self.0.state.lock().stop = true;
        self.0.work.notify_all();
    }
}

impl Shared {
    /// Waits for the next queue. Returns `None` if another thread is idle already, or at the end.
    fn next(&self) -> Option<u16> {
        let mut state = self.state.lock();
        loop {
            match state.queues.pop_front() {
                Some(queue) => return Some(queue),
                None if state.stop || state.idle => return None,
                None => {
                    state.idle = true;
                    // `kick` has reset `idle` when it wakes this thread.
                    self.work.wait(&mut state);
                }
            }
        }
    }

    fn run(&self) {
        if let Err(e) = close_all() {
            log::warn!(
                "a thread cannot close its descriptors, and may keep the mount alive if this process is killed: {e}"
            );
        }
        while let Some(queue) = self.next() {
            // Without the core or the mount, no request waits there.
            if bind_to_core(queue.into()).is_ok() {
                let fresh = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
                statx(CWD, &self.mount_point, fresh, StatxFlags::SIZE).ok();
            }
        }
    }
}
