//! Ends the sessions of mounts that do not reconnect in time.
//!
//! # Concurrency
//! One thread for all exports. It sleeps until a mount disconnects, then until the first deadline.
//! Times are those of `run_clock`, because mounts cannot reconnect to a stopped server.

use std::{
    io,
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::{Condvar, Mutex};

use crate::coherence::run_clock;

#[derive(Debug, Default)]
struct State {
    left: bool,
    stop: bool,
}

/// Wakes the thread.
#[derive(Debug, Default)]
pub struct ReaperSignal {
    state: Mutex<State>,
    changed: Condvar,
}

impl ReaperSignal {
    /// Records that a mount disconnected.
    pub(crate) fn left(&self) {
        self.state.lock().left = true;
        self.changed.notify_one();
    }

    /// Sleeps until a mount disconnects, or until it is time to check `deadline`. Returns false
    /// when the server stops.
    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let look = deadline.map(run_clock::wake_for);
        let mut state = self.state.lock();
        while !state.stop && !state.left {
            match look {
                Some(look) if self.changed.wait_until(&mut state, look).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(&mut state),
            }
        }
        state.left = false;
        !state.stop
    }
}

/// Work of the thread.
pub(crate) trait DisconnectedMounts: Send + Sync + 'static {
    /// Ends the sessions whose deadline has passed. Returns the next time to check, if there are
    /// disconnected mounts.
    fn give_up(&self, now: Instant) -> Option<Instant>;
}

/// Handle of the thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(crate) struct SessionReaper {
    signal: Arc<ReaperSignal>,
    thread: Option<JoinHandle<()>>,
}

impl SessionReaper {
    /// Starts the thread. It does not keep `mounts` alive.
    pub(crate) fn start(
        signal: Arc<ReaperSignal>,
        mounts: Weak<impl DisconnectedMounts>,
    ) -> io::Result<SessionReaper> {
        let watched = Arc::clone(&signal);
        let watch = move || {
            let mut deadline = None;
            while watched.sleep(deadline) {
                let Some(mounts) = mounts.upgrade() else { return };
                deadline = mounts.give_up(run_clock::now());
            }
        };
        let thread = std::thread::Builder::new().name("rfs-reaper".into()).spawn(watch)?;
        Ok(SessionReaper { signal, thread: Some(thread) })
    }
}

impl Drop for SessionReaper {
    fn drop(&mut self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the session reaper thread panicked");
        }
    }
}
