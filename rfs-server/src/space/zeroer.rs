//! The background thread that zeroes released space.
//!
//! # Concurrency
//! One thread for each export.

use std::{io, sync::Arc, thread};

use super::account::{Space, Zeroing};

/// The background thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub struct Zeroer {
    space: Arc<Space>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Zeroer {
    /// Starts the thread, unless the mode is [`Zeroing::Inline`].
    pub fn start(space: &Arc<Space>) -> io::Result<Zeroer> {
        let thread = match space.mode {
            Zeroing::Inline => None,
            Zeroing::Background => {
                let space = Arc::clone(space);
                Some(
                    thread::Builder::new()
                        .name("rfs-zero".into())
                        .spawn(move || space.zero_until_stopped())?,
                )
            }
        };
        Ok(Zeroer { space: Arc::clone(space), thread })
    }
}

impl Drop for Zeroer {
    fn drop(&mut self) {
        self.space.account.lock().stop = true;
        self.space.dirt.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the zeroing thread panicked");
        }
    }
}
