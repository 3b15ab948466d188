//! The thread `rfs-drain`, which moves data away from stores that drain.
//!
//! The thread takes the files of a store in groups. It tells all sessions that have a file open
//! that its data will move, waits for their acknowledgements, and moves the data piece by piece.
//! After each piece it waits for the acknowledgements again, so clients do not drown in recalls. A
//! store that does not answer, or a pool without space, lets it wait and try again.
//!
//! # Concurrency
//! One thread for a pool. Commands set the `Drain` of a store. The thread reads it before each
//! step.

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};

use super::store_thread::StoreThread;
use crate::{
    coherence::recall_queue::Need,
    dispatch::{Dispatcher, Moved, Placement},
    server::stores::{member::PoolStore, pool_stores::PoolStores},
};

/// Interval at which the thread looks for stores that drain.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Pause before another attempt, when space is missing or a store does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Interval at which acknowledgements are looked for.
const ACKNOWLEDGED: Duration = Duration::from_micros(500);
/// Files whose sessions are told at once.
const GROUP: usize = 32;

/// Starts the thread.
pub(in crate::server) fn start_drainer(
    stores: &Arc<PoolStores>,
    dispatcher: &Arc<Dispatcher>,
) -> io::Result<StoreThread> {
    let (stores, dispatcher) = (Arc::clone(stores), Arc::clone(dispatcher));
    StoreThread::start("rfs-drain", "drains stores", move |stopped| {
        let mut pause = DRAIN_CHECK_INTERVAL;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = DRAIN_CHECK_INTERVAL;
            for store in stores.members().iter().filter(|store| store.drain.is_on()) {
                let work = Work { dispatcher: &dispatcher, store, stopped };
                if work.run().is_break() {
                    pause = RETRY;
                }
            }
        }
    })
}

/// One pass over the files of a store. A break ends it early.
struct Work<'a> {
    dispatcher: &'a Dispatcher,
    store: &'a PoolStore,
    stopped: &'a Receiver<()>,
}

impl Work<'_> {
    fn placement(&self) -> Placement<'_> {
        self.dispatcher.placement()
    }

    /// Returns true until the drain or the server ends.
    fn goes_on(&self) -> bool {
        self.store.drain.is_on() && self.stopped.try_recv() == Err(TryRecvError::Empty)
    }

    fn run(&self) -> ControlFlow<()> {
        let inodes = self.placement().inodes_in(self.store.number());
        if inodes.is_empty() {
            self.placement().recall_from_silent_sessions(self.store.number());
        }
        for group in inodes.chunks(GROUP) {
            let needs = group.iter().flat_map(|&ino| self.placement().begin_move(ino)).collect();
            let outcome = self.wait(needs);
            let outcome = match outcome {
                ControlFlow::Continue(()) => group.iter().try_for_each(|&ino| self.move_file(ino)),
                stop => stop,
            };
            group.iter().for_each(|&ino| self.placement().end_move(ino));
            outcome?;
        }
        ControlFlow::Continue(())
    }

    fn move_file(&self, ino: u64) -> ControlFlow<()> {
        let (number, mut buffer) = (self.store.number(), Vec::new());
        loop {
            if !self.goes_on() {
                return ControlFlow::Break(());
            }
            match self.placement().move_piece(ino, number, &mut buffer) {
                Moved::Bytes(bytes, needs) => {
                    self.store.drain.moved(bytes);
                    self.wait(needs)?;
                }
                Moved::Done => return ControlFlow::Continue(()),
                Moved::NotClean => {}
                Moved::Full => return self.pause("no other store has space".into()),
                Moved::Unreachable(store) => return self.pause(format!("store {store} does not answer")),
            }
        }
    }

    fn pause(&self, reason: String) -> ControlFlow<()> {
        self.store.drain.waits(reason);
        ControlFlow::Break(())
    }

    /// Waits until sessions have acknowledged recalls. A session that does not loses them by the
    /// recall timeout.
    fn wait(&self, mut needs: Vec<Need>) -> ControlFlow<()> {
        while !self.placement().are_acknowledged(&mut needs) {
            if !self.goes_on() {
                return ControlFlow::Break(());
            }
            std::thread::sleep(ACKNOWLEDGED);
        }
        ControlFlow::Continue(())
    }
}
