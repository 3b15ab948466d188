//! Delivers events to the program, away from the fault thread.
//!
//! The handler may touch paged memory, so the fault thread must not run it. The logger of the
//! program may wait for a thread that faults, so lines for the log go the same way.
//!
//! # Concurrency
//! [`Events::report`] and [`Events::log`] never block. One thread delivers, and ends with the last
//! sender. The lock of the count is a leaf.

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::{error::PagerEvent, options::EventHandler};

/// A message to the delivering thread.
#[derive(Debug)]
enum Message {
    Event(PagerEvent),
    /// A line for the log.
    Line(String),
}

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    send: mpsc::Sender<Message>,
    pending: Arc<Pending>,
}

/// Messages that are not delivered yet.
#[derive(Debug, Default)]
struct Pending {
    count: Mutex<usize>,
    none: Condvar,
}

impl Events {
    /// Starts the delivering thread.
    pub(crate) fn start(handler: Option<EventHandler>) -> io::Result<Events> {
        let (send, receive) = mpsc::channel::<Message>();
        let pending = Arc::<Pending>::default();
        let delivered = Arc::clone(&pending);
        thread::Builder::new().name("rfs-paging-events".into()).spawn(move || {
            for message in receive {
                match (message, &handler) {
                    (Message::Event(event), Some(handler)) => handler(&event),
                    (Message::Event(event), None) => log::error!("{event}"),
                    (Message::Line(line), _) => log::error!("{line}"),
                }
                *delivered.count.lock() -= 1;
                delivered.none.notify_all();
            }
        })?;
        Ok(Events { send, pending })
    }

    /// Hands an event to the delivering thread.
    pub(crate) fn report(&self, event: PagerEvent) {
        self.send(Message::Event(event));
    }

    /// Hands a line for the log to the delivering thread.
    pub(crate) fn log(&self, line: String) {
        self.send(Message::Line(line));
    }

    fn send(&self, message: Message) {
        *self.pending.count.lock() += 1;
        // The thread ends early only if the handler panicked.
        if self.send.send(message).is_err() {
            *self.pending.count.lock() = 0;
        }
    }

    /// Waits until the handler has seen all events, for `timeout` at most.
    pub(crate) fn flush(&self, timeout: Duration) {
        let mut count = self.pending.count.lock();
        self.pending.none.wait_while_for(&mut count, |count| *count > 0, timeout);
    }
}
