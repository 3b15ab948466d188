//! Several calls of one thread at once.
//!
//! They go as messages, whether or not calls are made by fetching: one who fetches looks after one answer at a time. Half of the slots stay
//! for others, of which some may hold calls that are answered late.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::{CALL_SLOTS, Header, RpcClient, check_length};
use crate::{runtime::Ticket, session::RequestError};

impl RpcClient {
    /// Makes calls side by side. `replies` has as many places as there are requests.
    pub(crate) fn call_all(&self, requests: &[Vec<u8>], replies: &mut [Vec<u8>]) -> Result<(), RequestError> {
        requests.iter().try_for_each(|request| check_length(request))?;
        let deadline = Instant::now() + self.timeout;
        let mut under_way: VecDeque<(usize, Arc<Ticket>, &mut Vec<u8>)> = VecDeque::new();
        let mut outcome = Ok(());
        for (request, reply) in requests.iter().zip(replies) {
            // Who has calls under way waits for those, and not for a place that others have who wait, too.
            let slot = loop {
                // What was started before and is answered gives its place back.
                self.gather(false);
                match self.spare_slot() {
                    Some(slot) => break Ok(slot),
                    None => match under_way.pop_front() {
                        Some(first) => outcome = outcome.and(self.end_beside(first, deadline)),
                        None => break self.take_slot(deadline),
                    },
                }
            };
            match slot {
                Ok(slot) if outcome.is_ok() => {
                    self.stats.calls.inc();
                    let ticket = self.begin_in(slot, 0);
                    self.send_or_fail(Header::plain(slot), request);
                    under_way.push_back((slot, ticket, reply));
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
        // Each of them, whatever becomes of the others: their slots are to be given back.
        for call in under_way {
            outcome = outcome.and(self.end_beside(call, deadline));
        }
        outcome.inspect_err(|_| self.stats.errors.inc())
    }

    /// Waits for one of several calls.
    fn end_beside(
        &self,
        (slot, ticket, reply): (usize, Arc<Ticket>, &mut Vec<u8>),
        deadline: Instant,
    ) -> Result<(), RequestError> {
        let result = self.attend(&ticket, deadline);
        if result.is_ok() {
            std::mem::swap(&mut self.slots[slot].lock().reply, reply);
        }
        self.give_slot(slot);
        result
    }

    /// A slot that others can do without.
    fn spare_slot(&self) -> Option<usize> {
        let mut free = self.free.lock();
        if free.len() > CALL_SLOTS / 2 && !self.is_dead() { free.pop() } else { None }
    }
}
