//! The events that the main thread waits for.
//!
//! # Concurrency
//! The thread `signals` sends an event for each signal. Any thread reports a failure.

use std::{io, sync::mpsc, thread};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
    low_level::signal_name,
};

use super::error::{RunError, os};
use crate::cli::{self, Configuration};

/// An event that the main thread waits for.
pub(super) enum Event {
    Signal(i32),
    /// The kernel has ended the connection, or the session failed.
    Ended(io::Result<()>),
    /// The watchdog has ended.
    WatchdogEnded,
    /// A thread has failed. The mount ends.
    Failed(String),
    /// No session with the server can follow the lost one, for this reason.
    ServerLost(String),
}

/// The sender and the receiver of events.
pub(super) type Events = (mpsc::Sender<Event>, mpsc::Receiver<Event>);

/// Makes an event of each signal that unmounts, and of each failure of a thread. Other signals only
/// leave a message. If the options come from a file, SIGHUP has the file read again.
///
/// # Errors
/// The errors of the operating system.
pub(super) fn listen_for_signals(configuration: &Configuration) -> Result<Events, RunError> {
    let (send, receive) = mpsc::channel();
    let failed = send.clone();
    rdmabox::failure::watch(move |what| {
        log::error!("{what}: unmounting");
        // Fails only if the main thread has stopped listening because it ends.
        failed.send(Event::Failed(what.to_owned())).ok();
    });
    rdmabox::memory::survive().map_err(os("cannot prepare for lost memory"))?;
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]).map_err(os("cannot handle signals"))?;
    let to = send.clone();
    let mut configuration = configuration.has_file().then(|| configuration.clone());
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if let (SIGHUP, Some(configuration)) = (signal, &mut configuration) {
                    cli::reload(configuration);
                } else if [SIGUSR1, SIGUSR2].contains(&signal) {
                    log::info!("{} has no effect", signal_name(signal).unwrap_or("a signal"));
                } else if to.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
        .map_err(os("cannot start a thread"))?;
    Ok((send, receive))
}
