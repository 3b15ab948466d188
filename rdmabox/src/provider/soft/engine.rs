//! The device's own thread: moves the bytes of queue pairs whose processes do not ([`Progress::Engine`]).
//!
//! It sleeps while nothing arrives, not without having looked for a moment where that pays, and ends with the device.
//!
//! [`Progress::Engine`]: crate::verbs::Progress::Engine

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{poll_set::PollSet, spin::Spin};
use crate::{failure, verbs::VerbsError};

#[derive(Debug)]
pub(crate) struct Engine {
    set: Arc<PollSet>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Looks for work for `look` at most before it sleeps.
    pub(crate) fn start(look: Duration) -> Result<Engine, VerbsError> {
        let set = Arc::new(PollSet::new()?);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("rdmabox-engine".into())
            .spawn({
                let (set, stop) = (Arc::clone(&set), Arc::clone(&stop));
                move || {
                    if let Err(e) = run(&set, &stop, look) {
                        set.fail_all();
                        failure::report(&format!("the thread that moves data stopped: {e}"));
                    }
                }
            })
            .map_err(|e| VerbsError::os("cannot start the engine thread", e))?;
        Ok(Engine { set, stop, thread: Some(thread) })
    }

    pub(crate) fn set(&self) -> &Arc<PollSet> {
        &self.set
    }
}

fn run(set: &PollSet, stop: &AtomicBool, look: Duration) -> Result<(), VerbsError> {
    let mut spin = Spin::new(look);
    // When the last work was done, and when the last look began.
    let mut worked = Instant::now();
    let mut looked = worked;
    // What comes after a pause is work, which may take longer than the pause.
    let mut idle = Duration::ZERO;
    while !stop.load(Ordering::Acquire) {
        if !spin.limit().is_zero() {
            if set.wait_and(Some(Duration::ZERO), || idle = worked.elapsed())? {
                spin.found(idle);
                worked = Instant::now();
                looked = worked;
                continue;
            }
            if idle < spin.limit() {
                std::thread::yield_now();
                let before = mem::replace(&mut looked, Instant::now());
                spin.yielded(looked - before);
                let moved = set.progress_of_last();
                let idle = mem::replace(&mut looked, Instant::now()) - worked;
                if moved {
                    spin.found(idle);
                    worked = looked;
                }
                continue;
            }
        }
        set.wait_and(None, || idle = worked.elapsed())?;
        spin.slept(idle);
        worked = Instant::now();
        looked = worked;
    }
    Ok(())
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.set.wake();
        if let Some(thread) = self.thread.take() {
            // The engine itself may hold the last reference to a queue pair and with it to the device.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
