//! The replies to what a mount asked for once, so that a repetition is answered as the first one was. Pure.
//!
//! A mount numbers its requests in slots, one under way in each. What a slot was answered last is kept; the next number says
//! that the reply arrived. So the table is as long as the mount has requests at a time, and needs no clock.
//!
//! Where a log is kept, it has slot, number and reply beside what was changed; what it has of each slot is here as well, for when it
//! is written anew.
//!
//! Threading: none; a lock of the session protects it.

use rfs_proto::SLOTS;

/// What a number leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn<R> {
    /// It is new: carry the request out, and say what came of it.
    First,
    /// It was carried out before, with this reply.
    Again(R),
}

/// An old number, one that is being carried out, or a slot that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfTurn;

#[derive(Clone, Debug)]
struct Slot<R> {
    /// The last one; 0 for none.
    sequence: u64,
    /// `None` while it is carried out.
    reply: Option<R>,
    /// What the log has of the slot last: a number and the bytes of a reply.
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
    /// A request came under this number.
    pub fn begin(&mut self, slot: u32, sequence: u64) -> Result<Turn<R>, OutOfTurn> {
        if slot >= SLOTS {
            return Err(OutOfTurn);
        }
        let slot = self.at(slot);
        if sequence == slot.sequence && sequence > 0 {
            return slot.reply.clone().map(Turn::Again).ok_or(OutOfTurn);
        }
        if sequence < slot.sequence || sequence == 0 {
            return Err(OutOfTurn);
        }
        (slot.sequence, slot.reply) = (sequence, None);
        Ok(Turn::First)
    }

    /// What came of a request that was the [first](Turn::First).
    pub fn end(&mut self, slot: u32, sequence: u64, reply: R) {
        let slot = self.0.get_mut(slot as usize).filter(|slot| slot.sequence == sequence);
        if let Some(slot) = slot {
            slot.reply = Some(reply);
        }
    }

    /// How many slots there are to be that there are not yet, for this one to be used.
    pub fn lacks(&self, slot: u32) -> u64 {
        match slot < SLOTS {
            true => (u64::from(slot) + 1).saturating_sub(self.0.len() as u64),
            // It is refused, and takes none.
            false => 0,
        }
    }

    /// A slot, which need not have been used.
    fn at(&mut self, slot: u32) -> &mut Slot<R> {
        let at = slot as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Slot::default);
        }
        &mut self.0[at]
    }

    /// The log has this of a request that is being carried out.
    pub fn logged(&mut self, slot: u32, sequence: u64, reply: &[u8]) {
        if let Some(slot) = self.0.get_mut(slot as usize) {
            slot.logged.0 = sequence;
            slot.logged.1.clear();
            slot.logged.1.extend_from_slice(reply);
        }
    }

    /// All that the log has: slots, numbers and replies.
    pub fn all_logged(&self) -> impl Iterator<Item = (u32, u64, &[u8])> {
        let logged = (0..).zip(&self.0).map(|(at, slot)| (at, slot.logged.0, &slot.logged.1[..]));
        logged.filter(|(_, sequence, _)| *sequence > 0)
    }

    /// The last request of a slot was answered so, in the time of the server before.
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
        assert_eq!(replies.begin(SLOTS, 1), Err(OutOfTurn));
        assert_eq!(replies.begin(3, 0), Err(OutOfTurn));
        assert_eq!(replies.begin(3, 7), Ok(Turn::First));
        assert_eq!(replies.begin(3, 7), Err(OutOfTurn), "it is being carried out");
        assert_eq!(replies.begin(3, 9), Ok(Turn::First), "8 never came");
        // Late: nobody asks for it any more.
        replies.end(3, 7, 'a');
        assert_eq!(replies.begin(3, 9), Err(OutOfTurn));
        replies.end(3, 9, 'b');
        assert_eq!(replies.begin(3, 9), Ok(Turn::Again('b')));
        assert_eq!(replies.begin(3, 8), Err(OutOfTurn));
        assert_eq!(replies.begin(2, 1), Ok(Turn::First), "slots are apart");
    }

    proptest! {
        /// A client that never knows whether its requests or their replies arrive: each takes effect at most once, and whoever hears
        /// of it hears what it led to.
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
                    Err(OutOfTurn) => return Err(TestCaseError::fail("refused")),
                };
                prop_assert_eq!(effects.get(&(slot, sequence)), Some(&reply));
                if loss == 2 {
                    sequences[slot as usize] += 1;
                }
            }
        }
    }
}
