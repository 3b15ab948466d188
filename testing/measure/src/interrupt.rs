//! Interruption: SIGINT, SIGTERM and SIGHUP set a flag that every wait checks.
//!
//! The handlers only store the signal number. They do not end the process: guards clean up while
//! the error propagates to `main`.
//!
//! # Concurrency
//! The flag is atomic and shared by all clones. Any thread may set it or check it. No locks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{Error, Result};

/// Interval at which a wait checks the flag and its condition.
const TICK: Duration = Duration::from_millis(10);

/// A shared flag. It holds the number of the latest signal, or zero.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Returns a flag that no signal sets.
    pub fn unset() -> Self {
        Self::default()
    }

    /// Returns a flag and installs handlers for SIGINT, SIGTERM and SIGHUP that set it. The signals
    /// no longer end the process.
    pub fn on_signals() -> Result<Self> {
        let flag = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let value = usize::try_from(signal).unwrap_or(1);
            signal_hook::flag::register_usize(signal, Arc::clone(&flag.0), value)
                .map_err(Error::io("signal handler"))?;
        }
        Ok(flag)
    }

    /// Sets the flag as if `signal` had arrived.
    pub fn set(&self, signal: i32) {
        self.0.store(usize::try_from(signal).unwrap_or(1), Ordering::Relaxed);
    }

    /// Returns `Err(Interrupted)` if a signal has arrived.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::Interrupted(i32::try_from(signal).unwrap_or(SIGINT))),
        }
    }

    /// Polls `done` until it returns a value. Returns `Ok(None)` after `limit`, and an error if a
    /// signal arrives.
    pub fn wait<T>(&self, limit: Duration, mut done: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(value) = done()? {
                return Ok(Some(value));
            }
            self.check()?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_the_value() {
        let mut left = 3;
        let got = Interrupt::unset().wait(Duration::from_secs(60), || {
            left -= 1;
            Ok((left == 0).then_some("done"))
        });
        assert_eq!(got.unwrap(), Some("done"));
    }

    #[test]
    fn wait_ends_at_the_deadline() {
        let got = Interrupt::unset().wait(Duration::ZERO, || Ok(None::<()>));
        assert_eq!(got.unwrap(), None);
    }

    #[test]
    fn a_signal_ends_the_wait_with_the_shell_s_exit_code() {
        let flag = Interrupt::unset();
        flag.set(SIGTERM);
        let err = flag.wait(Duration::from_secs(60), || Ok(None::<()>)).unwrap_err();
        assert_eq!(err.exit_code(), 143);
    }
}
