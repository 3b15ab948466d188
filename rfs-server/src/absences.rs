//! Ends the sessions of mounts that do not reconnect in time.
//!
//! # Concurrency
//! One thread for all exports. It sleeps until a mount disconnects, then until the first deadline.
//! Times are those of `awake`, because mounts cannot reconnect to a stopped server.

use std::{
    io,
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::{Condvar, Mutex};

use crate::awake;

#[derive(Debug, Default)]
struct State {
    left: bool,
    stop: bool,
}

/// Wakes the thread.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

impl Bell {
    /// Records that a mount disconnected.
    pub(crate) fn left(&self) {
        self.state.lock().left = true;
        self.changed.notify_one();
    }

    /// Sleeps until a mount disconnects, or until it is time to check `deadline`. Returns false
    /// when the server stops.
    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let look = deadline.map(awake::wake_for);
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
pub(crate) trait Absent: Send + Sync + 'static {
    /// Ends the sessions whose deadline has passed. Returns the next time to check, if there are
    /// disconnected mounts.
    fn give_up(&self, now: Instant) -> Option<Instant>;
}

/// Handle of the thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(crate) struct Absences {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Absences {
    /// Starts the thread. It does not keep `absent` alive.
    pub(crate) fn start(bell: Arc<Bell>, absent: Weak<impl Absent>) -> io::Result<Absences> {
        let rung = Arc::clone(&bell);
        let watch = move || {
            let mut deadline = None;
            while rung.sleep(deadline) {
                let Some(absent) = absent.upgrade() else { return };
                deadline = absent.give_up(awake::now());
            }
        };
        let thread = std::thread::Builder::new().name("rfs-absences".into()).spawn(watch)?;
        Ok(Absences { bell, thread: Some(thread) })
    }
}

impl Drop for Absences {
    fn drop(&mut self) {
        self.bell.state.lock().stop = true;
        self.bell.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the session reaper thread panicked");
        }
    }
}
