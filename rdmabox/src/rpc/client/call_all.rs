//! Several concurrent calls of one thread.
//!
//! They always go by message, because a fetching thread polls for one answer at a time. Half of
//! the slots stay free for other threads, since some of those slots may hold calls with deferred
//! replies.
//!
//! # Concurrency
//! Called from any thread. Locks as in the parent module.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Deadline, RpcClient, check_length};
use crate::{
    error::RequestError,
    rpc::message::{CALL_SLOTS, Header},
    runtime::Ticket,
};

impl RpcClient {
    /// Makes calls concurrently. `replies` has as many entries as `requests`.
    pub(crate) fn call_all(
        &self,
        requests: &[Vec<u8>],
        replies: &mut [Vec<u8>],
        timeout: Duration,
    ) -> Result<(), RequestError> {
        requests.iter().try_for_each(|request| check_length(request))?;
        let deadline = Deadline::after(timeout);
        let mut in_flight: VecDeque<(usize, Arc<Ticket>, &mut Vec<u8>)> = VecDeque::new();
        let mut outcome = Ok(());
        for (request, reply) in requests.iter().zip(replies) {
            // A thread with calls in flight waits for its own calls. Waiting for another thread's
            // slot could deadlock two such threads.
            let slot = loop {
                // Answered started calls return their slots.
                self.collect_parked(false);
                match self.try_spare_slot() {
                    Some(slot) => break Ok(slot),
                    None => match in_flight.pop_front() {
                        Some(first) => outcome = outcome.and(self.finish_call(first, deadline)),
                        None => break self.take_slot(deadline),
                    },
                }
            };
            match slot {
                Ok(slot) if outcome.is_ok() => {
                    self.stats.calls.inc();
                    let ticket = self.begin_call(slot, 0, Some(&mut *reply));
                    self.send_or_fail(Header::plain(slot), request);
                    in_flight.push_back((slot, ticket, reply));
                }
                Ok(slot) => {
                    self.give_slot(slot);
                    break;
                }
                Err(e) => {
                    outcome = outcome.and(Err(e));
                    break;
                }
            }
        }
        // Waits for every call, even after an error, because each slot has to be returned.
        for call in in_flight {
            outcome = outcome.and(self.finish_call(call, deadline));
        }
        outcome.inspect_err(|_| self.stats.errors.inc())
    }

    /// Waits for one of several calls.
    fn finish_call(
        &self,
        (slot, ticket, reply): (usize, Arc<Ticket>, &mut Vec<u8>),
        deadline: Deadline,
    ) -> Result<(), RequestError> {
        let result = self.wait_for(&ticket, deadline);
        if result.is_ok() {
            std::mem::swap(&mut self.slots[slot].lock().reply, reply);
        }
        self.give_slot(slot);
        result
    }

    /// Takes a slot if more than half are free.
    fn try_spare_slot(&self) -> Option<usize> {
        let mut free = self.free.lock();
        if free.len() > CALL_SLOTS / 2 && !self.is_dead() { free.pop() } else { None }
    }
}
