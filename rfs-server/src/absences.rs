//! Ends the sessions of mounts that do not come back.
//!
//! Threading: one thread for all exports. It sleeps until a mount has left, and then, looking at the time now and then, until the first one has
//! been waited for long enough. Times are those of `awake`: nobody can come back to a server that stands still.

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

/// What wakes the thread.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

impl Bell {
    /// A mount has left.
    pub(crate) fn left(&self) {
        self.state.lock().left = true;
        self.changed.notify_one();
    }

    /// Sleeps until a mount has left, or until it is time to look for `deadline`. False if the end has come.
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

/// What the thread does.
pub(crate) trait Absent: Send + Sync + 'static {
    /// Ends the sessions of those who have been waited for long enough. When to look again, if anybody is waited for.
    fn give_up(&self, now: Instant) -> Option<Instant>;
}

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Absences {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Absences {
    /// Starts it. It does not keep `absent` alive.
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
            log::error!("the thread that gives mounts up had panicked");
        }
    }
}
