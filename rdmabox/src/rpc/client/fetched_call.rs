//! Calls by fetching: the caller reads the answer from memory, or from the message that it asks for
//! if the answer takes long.
//!
//! # Concurrency
//! Any thread. The slot belongs to the call, and its lock is held briefly.

use std::sync::Arc;

use super::{CallOutcome, Deadline, Owner, RpcClient};
use crate::{
    error::RequestError,
    rpc::{
        fetch::{FetchClient, Stage},
        message::{Header, Kind, rejection},
    },
    runtime::Ticket,
};

impl RpcClient {
    /// Makes a call by fetching. If the answer takes long, notifies the host and waits for a
    /// message.
    pub(super) fn call_by_fetch(
        &self,
        fetch: &FetchClient,
        slot: usize,
        request: &[u8],
        reply: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<CallOutcome, RequestError> {
        let ticket = self.begin_call(slot, 0, None);
        if self.is_dead() {
            // The slot was filled too late to be failed with the others.
            self.fail();
        }
        let stage = fetch.call(slot, request, reply, &self.stats, || ticket.is_done());
        let answered = match stage {
            Ok(Stage::Answered) => Ok(()),
            Ok(Stage::Unanswered) => Err(RequestError::Unanswered),
            Ok(Stage::Rejected) => Err(rejection(reply)),
            Ok(Stage::Notify { number }) => {
                self.stats.calls_rung.inc();
                self.lend(slot, reply);
                self.send_or_fail(Header { slot, kind: Kind::Notification, number }, &[]);
                return self.take_message(fetch, slot, &ticket, reply, deadline);
            }
            Ok(Stage::Ended) => return self.take_message(fetch, slot, &ticket, reply, deadline),
            Ok(Stage::Malformed | Stage::Parked { .. }) => {
                log::warn!("the peer wrote a malformed answer: closing the session");
                self.fail();
                Err(RequestError::Disconnected)
            }
            Err(e) => {
                self.fail();
                Err(if matches!(e, RequestError::Timeout(_)) { e } else { RequestError::Disconnected })
            }
        };
        let owner = self.slots[slot].lock().owner.take();
        if let Some(Owner::Caller(owner)) = owner {
            self.stats.calls_fetched.inc();
            self.stats.call_latency.record(owner.started().elapsed());
            self.notify(&owner, Ok(()));
        }
        // The failing session may have completed the ticket first.
        let settled = self.wait_for(&ticket, deadline);
        answered.and(settled).map(|()| CallOutcome::Reply)
    }

    /// Waits for the message that answers a call by fetching.
    fn take_message(
        &self,
        fetch: &FetchClient,
        slot: usize,
        ticket: &Arc<Ticket>,
        reply: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<CallOutcome, RequestError> {
        self.wait_for(ticket, deadline)?;
        let in_memory = {
            let mut entry = self.slots[slot].lock();
            std::mem::swap(&mut entry.reply, reply);
            entry.in_memory
        };
        if !in_memory {
            return Ok(CallOutcome::Reply);
        }
        match fetch.take(slot, reply, &self.stats) {
            Ok(Stage::Answered) => {
                self.stats.calls_fetched.inc();
                Ok(CallOutcome::Reply)
            }
            Ok(Stage::Unanswered) => Err(RequestError::Unanswered),
            Ok(Stage::Rejected) => Err(rejection(reply)),
            _ => {
                self.fail();
                Err(RequestError::Disconnected)
            }
        }
    }

    /// Lends the caller's buffer to a slot whose call a message is going to answer. So the first
    /// answer by message in a slot needs no new buffer. If the message has come, the slot has the
    /// reply.
    fn lend(&self, slot: usize, reply: &mut Vec<u8>) {
        let mut entry = self.slots[slot].lock();
        if entry.owner.is_some() {
            std::mem::swap(&mut entry.reply, reply);
        }
    }
}
