//! Reply cache of a mount's exactly-once requests. No I/O, no locks, no clock.
//!
//! A mount numbers its requests in slots, with one request in flight per slot. The last reply of a
//! slot is kept for repetitions; the next number confirms that the reply arrived. So the cache has
//! one entry per concurrent request and needs no expiry. With a log, each slot also keeps a copy of
//! its logged reply, for the next compaction.
//!
//! # Concurrency
//! None; a lock of the session protects the value.

use rfs_proto::SLOTS;

/// Result of a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn<R> {
    /// The request is new: execute it, then call [`Replies::end`].
    First,
    /// The request was executed before, with this reply.
    Again(R),
}

/// Why a request must not be executed, and has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The number is old, or the slot does not exist.
    OutOfTurn,
    /// The request is in execution.
    InExecution,
}

#[derive(Clone, Debug)]
struct Slot<R> {
    /// Last sequence number; 0 if the slot is unused.
    sequence: u64,
    /// `None` while the request is in execution.
    reply: Option<R>,
    /// Sequence number and encoded reply that the log has for the slot.
    logged: (u64, Vec<u8>),
}

impl<R> Default for Slot<R> {
    fn default() -> Slot<R> {
        Slot { sequence: 0, reply: None, logged: (0, Vec::new()) }
    }
}

/// The slots of one mount.
#[derive(Clone, Debug)]
pub struct Replies<R>(Vec<Slot<R>>);

impl<R> Default for Replies<R> {
    fn default() -> Replies<R> {
        Replies(Vec::new())
    }
}

impl<R: Clone> Replies<R> {
    /// Starts a request.
    ///
    /// # Errors
    /// The request must not be executed, and has no reply.
    pub fn begin(&mut self, slot: u32, sequence: u64) -> Result<Turn<R>, Refusal> {
        if slot >= SLOTS {
            return Err(Refusal::OutOfTurn);
        }
        let slot = self.at(slot);
        if sequence == slot.sequence && sequence > 0 {
            return slot.reply.clone().map(Turn::Again).ok_or(Refusal::InExecution);
        }
        if sequence < slot.sequence || sequence == 0 {
            return Err(Refusal::OutOfTurn);
        }
        (slot.sequence, slot.reply) = (sequence, None);
        Ok(Turn::First)
    }

    /// Stores the reply of a request that was [first](Turn::First).
    pub fn end(&mut self, slot: u32, sequence: u64, reply: R) {
        let slot = self.0.get_mut(slot as usize).filter(|slot| slot.sequence == sequence);
        if let Some(slot) = slot {
            slot.reply = Some(reply);
        }
    }

    /// Returns how many slots must be added to use this slot.
    pub fn lacks(&self, slot: u32) -> u64 {
        match slot < SLOTS {
            true => (u64::from(slot) + 1).saturating_sub(self.0.len() as u64),
            // The slot is refused, and none is added.
            false => 0,
        }
    }

    /// Returns a slot; adds slots up to it.
    fn at(&mut self, slot: u32) -> &mut Slot<R> {
        let at = slot as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Slot::default);
        }
        &mut self.0[at]
    }

    /// Records that the log has this reply of a request in execution.
    pub fn logged(&mut self, slot: u32, sequence: u64, reply: &[u8]) {
        if let Some(slot) = self.0.get_mut(slot as usize) {
            slot.logged.0 = sequence;
            slot.logged.1.clear();
            slot.logged.1.extend_from_slice(reply);
        }
    }

    /// Returns everything that the log has: slot, sequence number and reply.
    pub fn all_logged(&self) -> impl Iterator<Item = (u32, u64, &[u8])> {
        let logged = (0..).zip(&self.0).map(|(at, slot)| (at, slot.logged.0, &slot.logged.1[..]));
        logged.filter(|(_, sequence, _)| *sequence > 0)
    }

    /// Restores the last request of a slot from the log.
    pub fn restore(&mut self, slot: u32, sequence: u64, reply: R, logged: Vec<u8>) {
        *self.at(slot) = Slot { sequence, reply: Some(reply), logged: (sequence, logged) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn out_of_turn() {
        let mut replies = Replies::default();
        assert_eq!(replies.begin(SLOTS, 1), Err(Refusal::OutOfTurn));
        assert_eq!(replies.begin(3, 0), Err(Refusal::OutOfTurn));
        assert_eq!(replies.begin(3, 7), Ok(Turn::First));
        assert_eq!(replies.begin(3, 7), Err(Refusal::InExecution));
        assert_eq!(replies.begin(3, 9), Ok(Turn::First), "8 never came");
        // A late reply; the client does not ask for it any more.
        replies.end(3, 7, 'a');
        assert_eq!(replies.begin(3, 9), Err(Refusal::InExecution));
        replies.end(3, 9, 'b');
        assert_eq!(replies.begin(3, 9), Ok(Turn::Again('b')));
        assert_eq!(replies.begin(3, 8), Err(Refusal::OutOfTurn));
        assert_eq!(replies.begin(2, 1), Ok(Turn::First), "slots are apart");
    }

    proptest! {
        /// The client cannot tell whether a request or its reply was lost. Each request takes
        /// effect at most once, and its reply describes that effect.
        #[test]
        fn each_takes_effect_once(losses in prop::collection::vec((0u32..4, 0u8..3), 0..400)) {
            let mut replies = Replies::default();
            let mut effects: HashMap<(u32, u64), u64> = HashMap::new();
            let mut count = 0;
            let mut sequences = [1u64; 4];
            for (slot, loss) in losses {
                let sequence = sequences[slot as usize];
                // 0: the request is lost; 1: the reply is; 2: neither.
                if loss == 0 {
                    continue;
                }
                let reply = match replies.begin(slot, sequence) {
                    Ok(Turn::First) => {
                        count += 1;
                        prop_assert_eq!(effects.insert((slot, sequence), count), None, "twice");
                        replies.end(slot, sequence, count);
                        count
                    }
                    Ok(Turn::Again(reply)) => reply,
                    Err(refusal) => return Err(TestCaseError::fail(format!("{refusal:?}"))),
                };
                prop_assert_eq!(effects.get(&(slot, sequence)), Some(&reply));
                if loss == 2 {
                    sequences[slot as usize] += 1;
                }
            }
        }
    }
}
