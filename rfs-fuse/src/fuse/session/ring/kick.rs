//! Has the kernel look at a queue again.
//!
//! A request that finds no entry free waits in its core's queue until an entry is given back: one that is registered meanwhile does not get
//! it. Where each entry has a request that is not answered yet, who waits for a lock, that could be the unlock. So after one more has been
//! registered somebody on that core asks the mount for something: that gets the new entry, and the answer to it fetches what waits. If somebody
//! else was faster, it waits with the others until that one is answered, or until there is another entry, and the next who asks.
//!
//! It asks by the path of the mount: a descriptor would keep that from being unmounted. Once something else is mounted there, or it is out of the tree and
//! still open, nobody asks, and what waits does so until another answer on its core.
//!
//! Who asks the mount that his own process serves can be left without an answer when that is killed, and cannot end then as long as the kernel waits
//! for one: until the device is closed, which each thread keeps open that has a descriptor of it. Those that ask have none.
//! (FUSE_NOTIFY_RETRIEVE would have the kernel ask, with nobody who waits; newer kernels refuse that but for regular files, and
//! directories can be locked as well.)

use std::{collections::VecDeque, io, path::PathBuf, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno,
    thread::{CpuSet, sched_setaffinity},
};

use crate::fuse::session::descriptors::close_all;

/// Has the calling thread run on one core.
pub(super) fn stay_on(core: usize) -> Result<(), Errno> {
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
    /// A thread waits for something to do. One is enough.
    idle: bool,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    mount_point: PathBuf,
    state: Mutex<State>,
    work: Condvar,
}

/// Threads that ask: one, and as many more as are waiting for an answer. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Kick(Arc<Shared>);

impl Kick {
    pub(super) fn new(mount_point: PathBuf) -> Kick {
        Kick(Arc::new(Shared { mount_point, state: Mutex::default(), work: Condvar::new() }))
    }

    /// Asks for something on the core of a queue. Waits for nothing.
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
    /// The next queue. `None` for a thread that is one too many.
    fn next(&self) -> Option<u16> {
        let mut state = self.state.lock();
        loop {
            match state.queues.pop_front() {
                Some(queue) => return Some(queue),
                None if state.stop || state.idle => return None,
                None => {
                    state.idle = true;
                    // Whoever has something to do says that this one is idle no longer.
                    self.work.wait(&mut state);
                }
            }
        }
    }

    fn run(&self) {
        if let Err(e) = close_all() {
            log::warn!("a thread keeps the mount from ending if this process is killed: {e}");
        }
        while let Some(queue) = self.next() {
            // Whom does it help if there is no such core, or no mount any more?
            if stay_on(queue.into()).is_ok() {
                let fresh = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
                statx(CWD, &self.mount_point, fresh, StatxFlags::SIZE).ok();
            }
        }
    }
}
