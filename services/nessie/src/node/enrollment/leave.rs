//! A joined node that leaves: the other nodes take over its values.
//!
//! # Concurrency
//! Runs on the caller's thread. Operations of other threads go on, but store nothing here.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rdmabox::Cancel;

use crate::{
    error::{NessieError, failed},
    logic::{
        entry::Entry,
        operations::adopt::{Adopt, Adopted},
    },
    node::{driver::Aborted, service::Command, stats::Counters, store::Store},
};

/// Longest time in which no value could be moved.
const STUCK: Duration = Duration::from_secs(30);

impl Store {
    /// Moves the values of this joined node to other nodes, then resigns. Blocks until all values
    /// are moved.
    ///
    /// # Errors
    /// As for [`Node::leave`](crate::Node::leave).
    pub(in crate::node) fn leave(&self) -> Result<(), NessieError> {
        if self.options.is_listed() {
            return Err(NessieError::Listed { node: self.options.id });
        }
        self.is_leaving.store(true, Ordering::SeqCst);
        let (mut moved_at, mut left_before) = (Instant::now(), usize::MAX);
        let mut empty_since: Option<Instant> = None;
        loop {
            self.membership.check()?;
            self.driver.sweep(self.options.slots())?;
            let used = self.driver.table.used();
            // An operation that began before may still store a value.
            if used.is_empty() && self.driver.pending() == 0 {
                if empty_since.get_or_insert_with(Instant::now).elapsed() > self.options.limit() {
                    break;
                }
            } else {
                empty_since = None;
            }
            let outcome = used.iter().try_for_each(|(offset, _)| self.hand_over(*offset));
            if used.len() < left_before {
                (moved_at, left_before) = (Instant::now(), used.len());
            }
            if moved_at.elapsed() > STUCK {
                let left = used.len();
                return Err(outcome.err().unwrap_or(NessieError::Stays { left }));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        log::info!("node {} leaves: all its values are moved", self.options.id);
        self.membership.resign();
        let begun = Instant::now();
        // The others learn of it sooner than from the silence of this node.
        while !self.membership.is_resigned() && begun.elapsed() < self.options.lease {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Asks other nodes, the next one first, to move the entry at an offset to their tables.
    fn hand_over(&self, offset: u32) -> Result<(), NessieError> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, self.options.stride()).collect();
        if !self.driver.table.read(offset, Arc::get_mut(&mut bytes).expect("not shared yet")) {
            return Ok(());
        }
        // An entry that was released meanwhile decodes as well, and then no slot names it.
        let entry = Entry::decode(bytes)?;
        let command = Command::Adopt(entry.key().to_vec(), self.options.id).encode();
        let peers = &self.driver.peers;
        let first = offset as usize % peers.len();
        let mut outcome = Err(NessieError::Stays { left: 1 });
        for peer in peers[first..].iter().chain(&peers[..first]) {
            let Some(link) = peer.link().filter(|_| peer.node != self.options.id && !peer.is_lost()) else {
                continue;
            };
            let (mut reply, cancel) = (Vec::new(), Cancel::new());
            let called = link.session.call_waiting(&command, &mut reply, &cancel);
            outcome = called.map_err(|e| failed(peer.node, &e));
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Moves the value of a key from the table of another node to that of this node.
    pub(in crate::node) fn adopt(&self, key: &[u8], from: u16) -> Result<Adopted, NessieError> {
        if from == self.options.id || self.is_leaving.load(Ordering::SeqCst) {
            return Err(NessieError::Leaving { node: self.options.id });
        }
        let mut machine = Adopt::new(&self.driver.context(), key, from);
        let mut run = self.driver.run();
        match self.driver.drive(&mut run, |cx, answer| machine.step(cx, answer)) {
            Ok(outcome) => {
                self.driver.table.end_hold(&run.held);
                let adopted = outcome?;
                Counters::add(&self.counters.adopted);
                Ok(adopted)
            }
            Err(Aborted { error, is_issued }) => {
                let left = machine.leftover(&self.driver.context(), is_issued);
                self.driver.keep(left, run, is_issued);
                Err(error)
            }
        }
    }
}
