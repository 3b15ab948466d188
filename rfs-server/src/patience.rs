//! Who takes too long to say that it keeps something no longer: its session ends, and those who wait for it go on.
//!
//! Threading: one thread for all exports. It sleeps until something is recalled, and then until the first session runs out of
//! patience; where all acknowledge in time it wakes up once in the length of that.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::dispatch::Dispatcher;

#[derive(Debug, Default)]
struct State {
    recalled: bool,
    stop: bool,
}

/// What wakes the thread.
#[derive(Debug, Default)]
pub struct Alarm {
    state: Mutex<State>,
    changed: Condvar,
}

impl Alarm {
    /// Something has been recalled.
    pub(crate) fn recalled(&self) {
        let mut state = self.state.lock();
        if !state.recalled {
            state.recalled = true;
            self.changed.notify_one();
        }
    }

    /// Sleeps until `deadline`, or without one until something is recalled. False if the end has come.
    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        match deadline {
            Some(deadline) => {
                while !state.stop && !self.changed.wait_until(&mut state, deadline).timed_out() {}
            }
            None => {
                while !state.stop && !state.recalled {
                    self.changed.wait(&mut state);
                }
            }
        }
        state.recalled = false;
        !state.stop
    }
}

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Patience {
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

impl Patience {
    /// Starts it: of the sessions of these dispatchers, which share `alarm`, it ends those that take longer than `patience`.
    pub(crate) fn start(
        alarm: Arc<Alarm>,
        dispatchers: Vec<Arc<Dispatcher>>,
        patience: Duration,
        end: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Patience> {
        let watched = Arc::clone(&alarm);
        let watch = move || {
            while watched.sleep(dispatchers.iter().filter_map(|d| d.deadline(patience)).min()) {
                let now = Instant::now();
                let overdue = dispatchers.iter().flat_map(|dispatcher| dispatcher.give_up(patience, now));
                overdue.for_each(&end);
            }
        };
        let thread = std::thread::Builder::new().name("rfs-patience".into()).spawn(watch)?;
        Ok(Patience { alarm, thread: Some(thread) })
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.alarm.state.lock().stop = true;
        self.alarm.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that ends sessions had panicked");
        }
    }
}
