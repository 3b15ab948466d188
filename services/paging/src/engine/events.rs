//! Delivers events to the program, away from the fault thread.
//!
//! The handler may touch paged memory, so the fault thread must not run it.
//!
//! # Concurrency
//! [`Events::report`] never blocks. One thread delivers, and ends with the last sender. The lock of
//! the count is a leaf.

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::{error::PagerEvent, options::EventHandler};

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    send: mpsc::Sender<PagerEvent>,
    pending: Arc<Pending>,
}

/// Events that the handler has not seen yet.
#[derive(Debug, Default)]
struct Pending {
    count: Mutex<usize>,
    none: Condvar,
}

impl Events {
    /// Starts the delivering thread.
    pub(crate) fn start(handler: Option<EventHandler>) -> io::Result<Events> {
        let (send, receive) = mpsc::channel::<PagerEvent>();
        let pending = Arc::<Pending>::default();
        let delivered = Arc::clone(&pending);
        thread::Builder::new().name("rfs-paging-events".into()).spawn(move || {
            for event in receive {
                match &handler {
                    Some(handler) => handler(&event),
                    None => log::error!("{event}"),
                }
                *delivered.count.lock() -= 1;
                delivered.none.notify_all();
            }
        })?;
        Ok(Events { send, pending })
    }

    /// Hands an event to the delivering thread.
    pub(crate) fn report(&self, event: PagerEvent) {
        *self.pending.count.lock() += 1;
        // The thread ends early only if the handler panicked.
        if self.send.send(event).is_err() {
            *self.pending.count.lock() = 0;
        }
    }

    /// Waits until the handler has seen all events, for `timeout` at most.
    pub(crate) fn flush(&self, timeout: Duration) {
        let mut count = self.pending.count.lock();
        self.pending.none.wait_while_for(&mut count, |count| *count > 0, timeout);
    }
}
