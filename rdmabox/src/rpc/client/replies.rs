//! Replies from the host, and the failure of all calls.
//!
//! # Concurrency
//! Any thread. The thread that polls the completion queue dispatches replies, and holds the leader
//! lock of the queue. Each slot's lock is held briefly.

use std::sync::atomic::Ordering;

use super::{CQ_INDEX, Owner, RpcClient};
use crate::{
    error::RequestError,
    rpc::{
        fetch::Stage,
        message::{Kind, SEND_ID, rejection},
    },
    runtime::{Notice, Ticket},
    verbs::{WcStatus, WorkCompletion},
};

impl RpcClient {
    pub(super) fn dispatch(&self, wcs: &[WorkCompletion]) {
        for wc in wcs {
            if wc.status != WcStatus::Success {
                self.fail();
            } else if wc.wr_id != SEND_ID {
                self.on_reply(wc);
            }
        }
    }

    fn on_reply(&self, wc: &WorkCompletion) {
        let owner = self.messages.header_of(wc).and_then(|header| {
            let mut entry = self.slots[header.slot].lock();
            // Only a numbered call can be deferred.
            if header.kind == Kind::Deferred && (header.number == 0 || header.number != entry.number) {
                return None;
            }
            let in_memory = header.kind == Kind::InMemory;
            if header.kind == Kind::Notification || in_memory && self.fetch.is_none() {
                return None;
            }
            let owner = entry.owner.take_if(|owner| match owner {
                Owner::Caller(_) | Owner::Notified => true,
                Owner::Started | Owner::Pending(_) => !in_memory,
                Owner::Parked => false,
            })?;
            entry.deferred = header.kind == Kind::Deferred;
            entry.in_memory = in_memory;
            // The caller swaps this buffer with its own, so that buffers are reused.
            self.messages.take(wc, &mut entry.reply);
            let result = match header.kind {
                Kind::Unanswered => Err(RequestError::Unanswered),
                Kind::Rejected => Err(rejection(&entry.reply)),
                Kind::Plain | Kind::Deferred | Kind::InMemory | Kind::Notification => Ok(()),
            };
            Some((owner, header.slot, result))
        });
        let Some((owner, slot, result)) = owner else {
            log::warn!("the peer answered a call that is not in flight: closing the session");
            self.fail();
            return;
        };
        if let Err(e) = self.messages.post_recv(wc.wr_id as usize) {
            log::debug!("receive: {e}");
            self.fail();
        }
        match owner {
            Owner::Caller(ticket) => {
                self.stats.call_latency.record(ticket.started().elapsed());
                self.notify(&ticket, result);
            }
            Owner::Pending(call) => self.finish_pending(slot, &call, result),
            Owner::Started | Owner::Parked | Owner::Notified => {
                // No thread sleeps on the completion queue while this thread polls it, so no wake
                // is needed.
                self.finish_started(slot, result);
            }
        }
    }

    /// Reports the reply to a started call, from its slot or from memory. Returns true if a waiter
    /// was notified.
    pub(super) fn finish_started(&self, slot: usize, mut result: Result<(), RequestError>) -> bool {
        let (mut bytes, in_memory) = {
            let mut entry = self.slots[slot].lock();
            (std::mem::take(&mut entry.reply), entry.in_memory)
        };
        if in_memory && let Some(fetch) = &self.fetch {
            result = match fetch.take(slot, &mut bytes, &self.stats) {
                Ok(Stage::Answered) => Ok(()),
                Ok(Stage::Unanswered) => Err(RequestError::Unanswered),
                Ok(Stage::Rejected) => Err(rejection(&bytes)),
                _ => {
                    self.fail();
                    Err(RequestError::Disconnected)
                }
            };
        }
        self.started.report(result.map(|()| &bytes[..]));
        self.slots[slot].lock().reply = bytes;
        // Released before another started call can take the slot.
        let told = self.started.end(slot);
        self.give_slot(slot);
        told.iter().for_each(|waiter| self.notify(waiter, Ok(())));
        !told.is_empty()
    }

    /// Completes a ticket and wakes its owner. All owners are blocked threads.
    pub(super) fn notify(&self, owner: &Ticket, result: Result<(), RequestError>) {
        if let (Notice::Unpark(thread), _) = owner.complete_one(Some(CQ_INDEX), result) {
            self.stats.wakeups.inc();
            thread.unpark();
        }
    }

    /// Fails the session's calls, now and later.
    pub(crate) fn fail(&self) {
        {
            // A thread that looks for a slot either sees this flag or is already waiting and is
            // notified below.
            let _free = self.free.lock();
            self.dead.store(true, Ordering::Release);
        }
        self.messages.qp.to_error();
        if let Some(fetch) = &self.fetch {
            fetch.fail();
        }
        for (slot, entry) in self.slots.iter().enumerate() {
            let owner = entry.lock().owner.take();
            match owner {
                Some(Owner::Pending(call)) => {
                    self.finish_pending(slot, &call, Err(RequestError::Disconnected))
                }
                Some(Owner::Caller(ticket)) => self.notify(&ticket, Err(RequestError::Disconnected)),
                Some(Owner::Started | Owner::Parked | Owner::Notified) => {
                    self.started.report(Err(RequestError::Disconnected))
                }
                None => {}
            }
        }
        self.started.fail().iter().for_each(|waiter| self.notify(waiter, Err(RequestError::Disconnected)));
        self.freed.notify_all();
        self.fail_queued();
        self.stop_call_poller();
        if let Some(waiting) = self.waiting.get() {
            waiting.fail();
        }
        // The tickets of sleeping threads have been completed above.
        self.cq_waiters.wake();
    }
}
