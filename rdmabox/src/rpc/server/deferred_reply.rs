//! The host's side of deferred replies: which are owed to a session, and which are in flight.
//!
//! A deferred reply takes one of [`DEFERRED_SLOTS`] slots. The slot is free again when the client
//! acknowledges the reply; further replies wait in memory until then. A client that does not poll
//! therefore delays only itself.
//!
//! # Concurrency
//! Called from any thread. `state` is held during sends.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

use crate::rpc::message::{CALL_SLOTS, DEFERRED_SLOTS, Header, Kind, MAX_WAITING, Messages};

/// Limit of the replies that a host owes a client or holds unsent: those to waiting calls, and
/// those to calls that keep their slots.
const MAX_OWED: usize = MAX_WAITING + CALL_SLOTS;

#[derive(Debug)]
struct Unsent {
    number: u32,
    kind: Kind,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// The queue pair that carries the replies, set when the client connects it.
    messages: Option<Arc<Messages>>,
    /// The queue pair is connected.
    connected: bool,
    /// Slots in flight.
    busy: [bool; DEFERRED_SLOTS],
    unsent: VecDeque<Unsent>,
    /// Number of replies that the service has deferred and not given.
    owed: usize,
    closed: bool,
}

/// The deferred replies of a session at its host.
#[derive(Debug, Default)]
pub(crate) struct DeferredReplies {
    state: Mutex<State>,
}

impl DeferredReplies {
    /// Counts a reply that the service has deferred.
    pub(crate) fn add_owed(&self) {
        self.state.lock().owed += 1;
    }

    /// Counts a deferred reply that was given or given up.
    pub(crate) fn settle_owed(&self) {
        self.state.lock().owed -= 1;
    }

    /// Checks the number of owed and unsent replies.
    ///
    /// # Errors
    /// It exceeds the limit that a correct client keeps.
    pub(crate) fn check_limit(&self) -> Result<(), String> {
        let state = self.state.lock();
        match state.owed + state.unsent.len() > MAX_OWED {
            false => Ok(()),
            true => Err(format!("more than {MAX_OWED} deferred replies")),
        }
    }

    /// Sets the queue pair that carries the replies. It is not connected yet.
    pub(crate) fn set_messages(&self, messages: Arc<Messages>) {
        let mut state = self.state.lock();
        if !state.closed {
            state.messages = Some(messages);
        }
    }

    /// Starts sending: the queue pair is connected.
    ///
    /// # Errors
    /// The queue pair is broken; the session should end.
    pub(crate) fn begin(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        state.connected = true;
        state.send_unsent()
    }

    /// Sends a reply, or keeps it until a slot is free.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub(crate) fn send(&self, number: u32, kind: Kind, bytes: &[u8]) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.closed || state.post(number, kind, bytes)? {
            return Ok(());
        }
        state.unsent.push_back(Unsent { number, kind, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Frees a slot whose reply the client has acknowledged.
    ///
    /// # Errors
    /// No reply is in flight in that slot, or see [`begin`](Self::begin).
    pub(crate) fn acknowledge(&self, slot: usize) -> Result<(), String> {
        let mut state = self.state.lock();
        match state.busy.get_mut(slot) {
            Some(busy) if *busy => *busy = false,
            _ => return Err("acknowledgement of a deferred reply that was not sent".into()),
        }
        state.send_unsent()
    }

    /// Discards unsent replies at the end of the session.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.unsent.clear();
        state.messages = None;
    }
}

impl State {
    fn send_unsent(&mut self) -> Result<(), String> {
        while let Some(reply) = self.unsent.pop_front() {
            if !self.post(reply.number, reply.kind, &reply.bytes)? {
                self.unsent.push_front(reply);
                break;
            }
        }
        Ok(())
    }

    /// Sends a reply if a slot is free. Returns false otherwise.
    fn post(&mut self, number: u32, kind: Kind, bytes: &[u8]) -> Result<bool, String> {
        let slot = self.busy.iter().position(|busy| !busy);
        let (Some(messages), Some(slot), true) = (&self.messages, slot, self.connected) else {
            return Ok(false);
        };
        self.busy[slot] = true;
        messages.send(Header { slot, kind, number }, bytes).map_err(|e| e.to_string())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correct_client_may_have_every_slot_wait_as_well() {
        let deferred = DeferredReplies::default();
        (0..MAX_WAITING + CALL_SLOTS).for_each(|_| deferred.add_owed());
        assert_eq!(deferred.check_limit(), Ok(()));
        deferred.add_owed();
        assert!(deferred.check_limit().is_err());
        deferred.settle_owed();
        assert_eq!(deferred.check_limit(), Ok(()));
    }

    #[test]
    fn unacknowledged_replies_are_bounded() {
        let deferred = DeferredReplies::default();
        for number in 1.. {
            deferred.add_owed();
            if deferred.check_limit().is_err() {
                assert_eq!(number as usize, MAX_OWED + 1);
                break;
            }
            // The reply finds no slot: the client has not connected the queue pair.
            deferred.settle_owed();
            deferred.send(number, Kind::Plain, b"granted").unwrap();
        }
    }
}
