//! The host's side of late replies: what is owed to a session, and what is under way.
//!
//! A late reply takes one of [`LATE_SLOTS`] slots, which comes back with the client's word that it has taken the reply; until
//! then others wait in memory. So a client that does not look holds up nobody but itself.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

use super::{CALL_SLOTS, Header, Kind, LATE_SLOTS, MAX_WAITING, Messages};

/// Replies that a client lets its host owe, or keep because their turn has not come: those to calls that wait, and those to
/// calls that keep their slots.
const MAX_OWED: usize = MAX_WAITING + CALL_SLOTS;

#[derive(Debug)]
struct Unsent {
    number: u32,
    kind: Kind,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// What carries them, from when the client joins it.
    messages: Option<Arc<Messages>>,
    /// The client has joined it.
    connected: bool,
    /// The slots that are under way.
    busy: [bool; LATE_SLOTS],
    unsent: VecDeque<Unsent>,
    /// Replies that the service has promised and not given.
    owed: usize,
    over: bool,
}

/// The late replies of a session at its host.
#[derive(Debug, Default)]
pub(crate) struct LateReplies {
    state: Mutex<State>,
}

impl LateReplies {
    /// One more reply is owed.
    pub(super) fn owe(&self) {
        self.state.lock().owed += 1;
    }

    /// One is given, or given up.
    pub(super) fn paid(&self) {
        self.state.lock().owed -= 1;
    }

    /// # Errors
    /// More is owed, or kept, than a client that keeps to the protocol lets it come to.
    pub(super) fn check(&self) -> Result<(), String> {
        let state = self.state.lock();
        match state.owed + state.unsent.len() > MAX_OWED {
            false => Ok(()),
            true => Err(format!("more than {MAX_OWED} of its calls wait for their replies")),
        }
    }

    /// What carries the replies; it is not connected yet.
    pub(super) fn set_messages(&self, messages: Arc<Messages>) {
        let mut state = self.state.lock();
        if !state.over {
            state.messages = Some(messages);
        }
    }

    /// What carries the replies is connected.
    ///
    /// # Errors
    /// It is broken already; the session should end.
    pub(crate) fn begin(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        state.connected = true;
        state.send_unsent()
    }

    /// Sends a reply, now or when there is a slot.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub(super) fn send(&self, number: u32, kind: Kind, bytes: &[u8]) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.over || state.post(number, kind, bytes)? {
            return Ok(());
        }
        state.unsent.push_back(Unsent { number, kind, bytes: bytes.to_vec() });
        Ok(())
    }

    /// The client has taken the reply in `slot`.
    ///
    /// # Errors
    /// There was none, or as [`begin`](Self::begin).
    pub(super) fn taken(&self, slot: usize) -> Result<(), String> {
        let mut state = self.state.lock();
        match state.busy.get_mut(slot) {
            Some(busy) if *busy => *busy = false,
            _ => return Err("a receipt of a late reply that was not sent".into()),
        }
        state.send_unsent()
    }

    /// The session has ended: what is not sent goes nowhere.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.over = true;
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

    /// True if it found a slot.
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
    fn a_client_that_keeps_to_the_protocol_may_have_every_slot_wait_as_well() {
        let late = LateReplies::default();
        (0..MAX_WAITING + CALL_SLOTS).for_each(|_| late.owe());
        assert_eq!(late.check(), Ok(()));
        late.owe();
        assert!(late.check().is_err());
        late.paid();
        assert_eq!(late.check(), Ok(()));
    }

    #[test]
    fn replies_that_the_client_does_not_take_do_not_pile_up() {
        let late = LateReplies::default();
        for number in 1.. {
            late.owe();
            if late.check().is_err() {
                assert_eq!(number as usize, MAX_OWED + 1);
                break;
            }
            // There is no slot for it: the client has not even joined.
            late.paid();
            late.send(number, Kind::Plain, b"granted").unwrap();
        }
    }
}
