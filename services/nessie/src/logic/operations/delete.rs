//! DELETE: removes the value of a key.
//!
//! A DELETE reads the slots from the lowest rank to the highest. At most one entry is valid. If a
//! DELETE clears the slot of a valid entry, it is done: this is its only effect. If no slot has the
//! key, it reads all words again until two readings agree, because a MIGRATE may carry the key past
//! it.
//!
//! An entry that is not valid is never cleared, because it may have replaced the value already, and
//! become valid at any time. The DELETE waits for its PUT. If it waits in vain, it replaces the
//! entry by a tombstone, with the steps of a PUT. A valid tombstone means that the key has no
//! value, and its slot is cleared afterwards. A DELETE does the same for entries of lost nodes.

use super::put::{Leftover, Put, PutMachine};
use crate::logic::{
    context::Context,
    operations::scan::{Order, Scan, ScanStep, Seen},
    placement::Place,
    verb::{Answer, Failure, Step, Stored, Verb},
    word::Word,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Scan,
    Pause,
    /// The CAS of the slot with this rank.
    Clear {
        rank: usize,
        new: Word,
        removed: Stored,
    },
    SecondLook,
    Tombstone(Box<PutMachine>),
    /// The CAS that clears the slot of the tombstone.
    ClearTombstone {
        old: Word,
        new: Word,
        stored: Stored,
    },
    Done,
}

/// The state of a DELETE.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Delete {
    key: Box<[u8]>,
    place: Place,
    scan: Scan,
    phase: Phase,
    patience: u16,
}

impl Delete {
    pub(crate) fn new(cx: &Context<'_>, key: &[u8]) -> Delete {
        let place = cx.placement.place(key);
        let scan = Scan::new(Order::Up, &place);
        Delete { key: key.into(), scan, place, phase: Phase::Scan, patience: cx.patience }
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, mut answer: Answer) -> Step<Result<(), Failure>> {
        loop {
            let given = std::mem::replace(&mut answer, Answer::None);
            match std::mem::replace(&mut self.phase, Phase::Scan) {
                Phase::Scan => match self.scan.step(cx, &self.key, &self.place, given) {
                    Err(e) => return Step::Done(Err(e.into())),
                    Ok(ScanStep::Issue(verb)) => return Step::Issue(verb),
                    Ok(ScanStep::Slot(_)) => {}
                    Ok(ScanStep::Done) => match self.decide(cx) {
                        Some(step) => return step,
                        None => continue,
                    },
                },
                Phase::Pause => self.scan.restart(),
                Phase::Clear { rank, new, removed } => match given {
                    Answer::Swapped(found) if Some(found) == self.scan.seen[rank].word() || found == new => {
                        self.phase = Phase::Done;
                        return Step::Issue(Verb::Release(removed));
                    }
                    // Another client has changed the slot, or its node is lost.
                    _ => self.scan.restart(),
                },
                Phase::SecondLook => match given {
                    Answer::Words(words) if self.scan.is_stable(&words, None) => return Step::Done(Ok(())),
                    _ => self.scan.restart(),
                },
                Phase::Tombstone(put) => {
                    if let Some(step) = self.bury(cx, put, given) {
                        return step;
                    }
                }
                Phase::ClearTombstone { old, new, stored } => match given {
                    Answer::Swapped(found) if found == old || found == new => {
                        self.phase = Phase::Done;
                        return Step::Issue(Verb::Release(stored));
                    }
                    // Another client has replaced the tombstone.
                    _ => return Step::Done(Ok(())),
                },
                Phase::Done => return Step::Done(Ok(())),
            }
        }
    }

    /// Chooses the next step when all slots were read. `None` begins a tombstone.
    fn decide(&mut self, cx: &Context<'_>) -> Option<Step<Result<(), Failure>>> {
        let is_lost = self.scan.seen.iter().any(|seen| matches!(seen, Seen::LostEntry(..)));
        let is_unfinished = self.scan.seen.iter().any(|seen| seen.unfinished().is_some());
        if !is_lost && let Some(verb) = self.clear(cx) {
            return Some(Step::Issue(verb));
        }
        if is_unfinished && self.patience > 0 {
            self.patience -= 1;
            self.phase = Phase::Pause;
            return Some(Step::Issue(Verb::Pause));
        }
        if is_unfinished || is_lost {
            self.phase = Phase::Tombstone(Box::new(PutMachine::tombstone(cx, &self.key)));
            return None;
        }
        if !cx.rules.delete_verifies {
            return Some(Step::Done(Ok(())));
        }
        self.phase = Phase::SecondLook;
        Some(Step::Issue(self.scan.second_look(&self.place, None)))
    }

    /// Returns the CAS that clears the slot of a valid entry.
    fn clear(&mut self, cx: &Context<'_>) -> Option<Verb> {
        let (rank, found) = (0..).zip(&self.scan.seen).find_map(|(rank, seen)| match seen {
            Seen::Mine(found) if found.entry.is_valid() => Some((rank, found)),
            _ => None,
        })?;
        let (word, removed) = (found.word, found.stored());
        let new = word.clear(cx.fields(), found.at);
        self.phase = Phase::Clear { rank, new, removed };
        Some(Verb::Swap { slot: self.place.slots[rank], expected: word, new })
    }

    /// Makes a step of the PUT of a tombstone. `None` if the slots are to be read again.
    fn bury(
        &mut self,
        cx: &Context<'_>,
        mut put: Box<PutMachine>,
        answer: Answer,
    ) -> Option<Step<Result<(), Failure>>> {
        match put.step(cx, answer) {
            Step::Issue(verb) => {
                self.phase = Phase::Tombstone(put);
                Some(Step::Issue(verb))
            }
            Step::Done(Err(e)) => Some(Step::Done(Err(e))),
            // No slot had the key any more when it began.
            Step::Done(Ok(Put::Superseded)) => {
                self.scan.restart();
                None
            }
            Step::Done(Ok(Put::Stored)) => {
                let Some((slot, old, stored)) = put.reference() else { return Some(Step::Done(Ok(()))) };
                let new = old.clear(cx.fields(), stored.entry);
                self.phase = Phase::ClearTombstone { old, new, stored };
                Some(Step::Issue(Verb::Swap { slot, expected: old, new }))
            }
        }
    }

    /// Returns the remaining work if no further step follows. `is_issued` tells whether the last
    /// verb may have been executed.
    pub(crate) fn leftover(self, cx: &Context<'_>, is_issued: bool) -> Option<Leftover> {
        match self.phase {
            Phase::Tombstone(put) => put.leftover(cx, is_issued),
            _ => None,
        }
    }
}
