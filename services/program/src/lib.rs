//! Parts that the programs of services share: lines for the terminal, signals, and the log's
//! option.
//!
//! # Concurrency
//! The main thread of a program.

mod log_options;

use std::{
    io::{self, Write},
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    flag,
    iterator::Signals,
};

pub use rfs_status::logging::LogFormat;

pub use self::log_options::LogOptions;

/// Prints a line. A reader that is gone does not end the program.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// The signals that stop a program: SIGINT and SIGTERM.
///
/// Make it before the service starts: from then on, none of these signals ends the process, nor do
/// SIGHUP, SIGUSR1 and SIGUSR2. Their default effect would lose all that the service keeps.
#[derive(Debug)]
pub struct StopSignals {
    signals: Signals,
}

impl StopSignals {
    /// Takes the signals of this process.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn take() -> io::Result<StopSignals> {
        for signal in [SIGHUP, SIGUSR1, SIGUSR2] {
            flag::register(signal, Arc::<AtomicBool>::default())?;
        }
        Ok(StopSignals { signals: Signals::new([SIGINT, SIGTERM])? })
    }

    /// Waits until the program has to stop.
    pub fn wait(mut self) {
        self.signals.forever().next();
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn only_two_signals_stop_a_program() {
        let stop = StopSignals::take().unwrap();
        let send = |signal| kill_process(getpid(), signal).unwrap();
        // The default effect of each would end the test.
        [Signal::HUP, Signal::USR1, Signal::USR2].into_iter().for_each(send);
        let mut signals = stop.signals;
        assert_eq!(signals.pending().next(), None);
        send(Signal::TERM);
        StopSignals { signals }.wait();
    }
}
