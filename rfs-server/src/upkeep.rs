//! What a kept file system needs now and then, on a thread of its own: its log is written anew when it has grown long, and what sessions of
//! the servers before could reach is let go when their time is over.
//!
//! Threading: the thread sleeps until the log has grown or the time has come. Dropping it stops the thread and joins it.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{dispatch::Dispatcher, durable::Former};

/// How long it waits to try again what failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at whether somebody holds on to what the server before had lent.
const LOOK: Duration = Duration::from_millis(20);

/// The thread.
#[derive(Debug)]
pub(crate) struct Upkeep {
    dispatcher: Arc<Dispatcher>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts it. Sessions of before that do not come back are over at `deadline`, if there are any, or as soon afterwards as none of
    /// them is left (`former`, which are killed then if `kill` says so).
    pub(crate) fn start(
        dispatcher: &Arc<Dispatcher>,
        deadline: Instant,
        former: Arc<Former>,
        kill: bool,
    ) -> io::Result<Upkeep> {
        let watched = Arc::clone(dispatcher);
        let deadline = watched.waits_for_strangers().then_some(deadline);
        let over = move || former.ends(kill);
        let thread = std::thread::Builder::new()
            .name("rfs-upkeep".into())
            .spawn(move || work(&watched, deadline, &over))?;
        Ok(Upkeep { dispatcher: Arc::clone(dispatcher), thread: Some(thread) })
    }
}

fn work(dispatcher: &Dispatcher, mut before: Option<Instant>, over: &dyn Fn() -> bool) {
    let mut pause = None;
    while dispatcher.await_upkeep(pause.or(before), pause.is_none()) {
        if before.take_if(|deadline| *deadline <= Instant::now()).is_some() {
            match over() {
                true => dispatcher.before_is_over(),
                false => before = Some(Instant::now() + LOOK),
            }
        }
        pause = None;
        // Again if something has been changed meanwhile that there was no room for.
        while pause.is_none() && dispatcher.has_long_log() {
            if let Err(e) = dispatcher.write_log_anew() {
                log::error!("the log cannot be written anew: {e}");
                pause = Some(Instant::now() + PAUSE);
            }
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.dispatcher.end_upkeep();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that writes the log anew had panicked");
        }
    }
}
