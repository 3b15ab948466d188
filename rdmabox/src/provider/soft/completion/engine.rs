//! The device's thread, which moves the bytes of queue pairs with [`Progress::Engine`].
//!
//! The thread polls for a limited time after each piece of work, then sleeps in epoll. It ends
//! with the device.
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

use super::{
    poll_set::{Member, PollSet},
    spin::Spin,
};
use crate::{failure, verbs::VerbsError};

#[derive(Debug)]
pub(crate) struct Engine<M: Member> {
    set: Arc<PollSet<M>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Member> Engine<M> {
    /// Starts the thread. It polls for at most `max_spin` before it sleeps.
    pub(crate) fn start(max_spin: Duration) -> Result<Engine<M>, VerbsError> {
        let set = Arc::new(PollSet::new()?);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("rdmabox-engine".into())
            .spawn({
                let (set, stop) = (Arc::clone(&set), Arc::clone(&stop));
                move || {
                    if let Err(e) = run(&set, &stop, max_spin) {
                        set.fail_all();
                        failure::report(&format!("the thread that moves data stopped: {e}"));
                    }
                }
            })
            .map_err(|e| VerbsError::os("cannot start the engine thread", e))?;
        Ok(Engine { set, stop, thread: Some(thread) })
    }

    pub(crate) fn set(&self) -> &Arc<PollSet<M>> {
        &self.set
    }
}

fn run<M: Member>(set: &PollSet<M>, stop: &AtomicBool, max_spin: Duration) -> Result<(), VerbsError> {
    let mut spin = Spin::new(max_spin);
    // Time of the last work, and time of the last poll.
    let mut worked = Instant::now();
    let mut polled = worked;
    // Idle time before the last event, without the time to handle that event, which may be longer.
    let mut idle = Duration::ZERO;
    while !stop.load(Ordering::Acquire) {
        if !spin.limit().is_zero() {
            if set.wait_and(Some(Duration::ZERO), || idle = worked.elapsed())? {
                spin.found(idle);
                worked = Instant::now();
                polled = worked;
                continue;
            }
            if idle < spin.limit() {
                std::thread::yield_now();
                let before = mem::replace(&mut polled, Instant::now());
                spin.yielded(polled - before);
                let moved = set.progress_last_ready();
                let idle = mem::replace(&mut polled, Instant::now()) - worked;
                if moved {
                    spin.found(idle);
                    worked = polled;
                }
                continue;
            }
        }
        set.wait_and(None, || idle = worked.elapsed())?;
        spin.slept(idle);
        worked = Instant::now();
        polled = worked;
    }
    Ok(())
}

impl<M: Member> Drop for Engine<M> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.set.wake();
        if let Some(thread) = self.thread.take() {
            // The engine thread may hold the last reference to a queue pair, and through it to the
            // device.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
