//! DELETE: removes the value of a key.
//!
//! A DELETE reads the slots from the lowest rank to the highest, and clears each that has an entry
//! of the key. At most one of them is valid, so after a valid one it is done. Otherwise it reads all
//! words again until two readings agree, because a MIGRATE may carry the key past it.

use crate::logic::{
    context::Context,
    operations::scan::{Order, Scan, ScanStep, Seen},
    placement::Place,
    verb::{Answer, Failure, Step, Stored, Verb},
    word::{EntryRef, Word},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Scan,
    /// The CAS of the slot with this rank.
    Clear {
        rank: usize,
        new: Word,
        removed: Option<Stored>,
        was_valid: bool,
    },
    Release {
        was_valid: bool,
    },
    SecondLook,
}

/// The state of a DELETE.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Delete {
    key: Box<[u8]>,
    place: Place,
    scan: Scan,
    phase: Phase,
}

impl Delete {
    pub(crate) fn new(cx: &Context<'_>, key: &[u8]) -> Delete {
        let place = cx.placement.place(key);
        Delete { key: key.into(), scan: Scan::new(Order::Up, &place), place, phase: Phase::Scan }
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, mut answer: Answer) -> Step<Result<(), Failure>> {
        loop {
            let given = std::mem::replace(&mut answer, Answer::None);
            match self.phase {
                Phase::Scan => match self.scan.step(cx, &self.key, &self.place, given) {
                    Err(e) => return Step::Done(Err(e.into())),
                    Ok(ScanStep::Issue(verb)) => return Step::Issue(verb),
                    Ok(ScanStep::Slot(rank)) => {
                        if let Some(verb) = self.clear(cx, rank) {
                            return Step::Issue(verb);
                        }
                    }
                    Ok(ScanStep::Done) if cx.rules.delete_verifies => {
                        self.phase = Phase::SecondLook;
                        return Step::Issue(self.scan.second_look(&self.place, None));
                    }
                    Ok(ScanStep::Done) => return Step::Done(Ok(())),
                },
                Phase::Clear { rank, new, removed, was_valid } => {
                    let old = self.scan.seen[rank].word();
                    self.phase = Phase::Scan;
                    match given {
                        Answer::Swapped(found) if Some(found) == old || found == new => {
                            self.scan.seen[rank] = Seen::Empty(new);
                            if let Some(removed) = removed {
                                self.phase = Phase::Release { was_valid };
                                return Step::Issue(Verb::Release(removed));
                            }
                        }
                        // Another client has changed the slot, or its node is lost.
                        _ => self.scan.repeat(),
                    }
                }
                Phase::Release { was_valid: true } => return Step::Done(Ok(())),
                Phase::Release { was_valid: false } => self.phase = Phase::Scan,
                Phase::SecondLook => {
                    let Answer::Words(words) = given else { unreachable!("the answer to a READ of words") };
                    if self.scan.is_stable(&words, None) {
                        return Step::Done(Ok(()));
                    }
                    self.scan.restart();
                    self.phase = Phase::Scan;
                }
            }
        }
    }

    /// Returns the CAS that clears the slot, if it has an entry of the key.
    fn clear(&mut self, cx: &Context<'_>, rank: usize) -> Option<Verb> {
        let (word, named, removed, was_valid): (Word, EntryRef, _, _) = match &self.scan.seen[rank] {
            Seen::Mine(found) => (found.word, found.at, Some(found.stored()), found.entry.is_valid()),
            // The owner is lost, and with it the entry.
            Seen::LostEntry(word, at) => (*word, *at, None, false),
            _ => return None,
        };
        let new = word.clear(cx.fields(), named);
        self.phase = Phase::Clear { rank, new, removed, was_valid };
        Some(Verb::Swap { slot: self.place.slots[rank], expected: word, new })
    }
}
