//! Background work of an export with a memory object: compacts the log, and ends the quarantine for
//! sessions of previous servers at their deadline.
//!
//! # Concurrency
//! One thread per export. It sleeps until the log has grown or the deadline has come. Dropping
//! `LogCompactor` stops and joins the thread.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{dispatch::Dispatcher, memory_object::previous_clients::PreviousClients};

/// Pause after a failed compaction.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval between checks whether clients of previous servers hold memory.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Handle of the thread.
#[derive(Debug)]
pub(crate) struct LogCompactor {
    dispatcher: Arc<Dispatcher>,
    thread: Option<JoinHandle<()>>,
}

impl LogCompactor {
    /// Starts the thread. The quarantine for sessions that do not reconnect ends at `deadline`, or
    /// as soon afterwards as no client of a previous server (`previous_clients`) is left. Kills
    /// these clients then if `kill` is set.
    pub(crate) fn start(
        dispatcher: &Arc<Dispatcher>,
        deadline: Instant,
        previous_clients: Arc<PreviousClients>,
        kill: bool,
    ) -> io::Result<LogCompactor> {
        let watched = Arc::clone(dispatcher);
        let deadline = watched.previous_mounts().has_abandoned().then_some(deadline);
        let over = move || previous_clients.ends(kill);
        let thread = std::thread::Builder::new()
            .name("rfs-compactor".into())
            .spawn(move || work(&watched, deadline, &over))?;
        Ok(LogCompactor { dispatcher: Arc::clone(dispatcher), thread: Some(thread) })
    }
}

fn work(dispatcher: &Dispatcher, mut before: Option<Instant>, over: &dyn Fn() -> bool) {
    let mut pause = None;
    while dispatcher.log_upkeep().await_upkeep(pause.or(before), pause.is_none()) {
        if before.take_if(|deadline| *deadline <= Instant::now()).is_some() {
            match over() {
                true => dispatcher.log_upkeep().before_is_over(),
                false => before = Some(Instant::now() + CLIENT_CHECK_INTERVAL),
            }
        }
        pause = None;
        // Repeats if a change that the log had no room for came meanwhile.
        while pause.is_none() && dispatcher.log_upkeep().has_long_log() {
            if let Err(e) = dispatcher.log_upkeep().write_log_anew() {
                log::error!("log rewrite failed: {e}");
                pause = Some(Instant::now() + PAUSE);
            }
        }
    }
}

impl Drop for LogCompactor {
    fn drop(&mut self) {
        self.dispatcher.log_upkeep().end_upkeep();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the log compaction thread panicked");
        }
    }
}
