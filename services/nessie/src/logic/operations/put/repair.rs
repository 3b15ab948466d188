//! Finishes or undoes a PUT that could not end in time.
//!
//! A PUT that fails after its first CAS may leave an entry that is not valid, at which readers of
//! the key wait. [`Leftover`] holds the state that such a PUT leaves. [`Repair`] goes on with the
//! PUT: it makes the entry valid, unless another client has replaced it. The outcome stays unknown.

use smallvec::SmallVec;

use super::{Inserted, Phase, PutMachine};
use crate::logic::{
    context::Context,
    entry::Entry,
    operations::migrate::{ClearState, UnfinishedMove},
    placement::Place,
    verb::{Answer, Step, Stored, Verb},
};

/// The state that an operation leaves that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leftover {
    entry: Entry,
    place: Place,
    inserted: SmallVec<[Inserted; 2]>,
    unfinished: Option<UnfinishedMove>,
    removed: SmallVec<[Stored; 2]>,
}

impl Leftover {
    /// Returns the remaining work of a MIGRATE by itself.
    pub(crate) fn of_move(unfinished: UnfinishedMove, entry: Entry, place: Place) -> Leftover {
        let (inserted, removed) = (SmallVec::new(), SmallVec::new());
        Leftover { entry, place, inserted, unfinished: Some(unfinished), removed }
    }
}

impl PutMachine {
    /// Returns the remaining work if no further step follows. `is_issued` tells whether the last
    /// verb may have been executed.
    pub(crate) fn leftover(self, cx: &Context<'_>, is_issued: bool) -> Option<Leftover> {
        let mut removed = self.removed;
        let mut inserted: SmallVec<[Inserted; 2]> = SmallVec::new();
        let mut unfinished = None;
        let mut is_done = false;
        match &self.phase {
            Phase::Insert { inserted: own, .. } if is_issued => inserted.push(*own),
            Phase::Insert { .. } => removed.extend(self.spare),
            Phase::Room(room) => {
                unfinished = room.unfinished(cx, is_issued);
                removed.extend(self.spare);
            }
            Phase::Finish(_) => is_done = true,
            // A store to own memory does not fail. A repair would clear the copy that a MIGRATE
            // makes of the valid entry, and then the MIGRATE clears the entry.
            Phase::Validate if is_issued => is_done = true,
            _ => removed.extend(self.spare),
        }
        inserted.extend(self.inserted.filter(|_| !is_done));
        if inserted.is_empty() && unfinished.is_none() && removed.is_empty() {
            return None;
        }
        Some(Leftover { entry: self.entry, place: self.place, inserted, unfinished, removed })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RepairPhase {
    Begin,
    /// A CAS that changes nothing. Behind it no earlier CAS of this node takes effect on the slot.
    PutFence,
    Put(Box<PutMachine>),
    /// The CAS that reads the source of a move, behind every earlier CAS of this node.
    Fence,
    Revert,
    Validate,
    Release,
}

/// The state of a repair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Repair {
    left: Leftover,
    phase: RepairPhase,
}

impl Repair {
    pub(crate) fn new(left: Leftover) -> Repair {
        Repair { left, phase: RepairPhase::Begin }
    }

    /// Returns the remaining work of a repair that is given up. Its other steps can be repeated.
    pub(crate) fn leftover(self, cx: &Context<'_>, is_issued: bool) -> Leftover {
        let mut left = self.left;
        if is_issued && matches!(self.phase, RepairPhase::Validate) {
            left.unfinished = None;
        }
        if let RepairPhase::Put(put) = self.phase {
            // It may have replaced the entry by a fresh one.
            left.inserted.remove(0);
            if let Some(inner) = put.leftover(cx, is_issued) {
                left.inserted.insert_many(0, inner.inserted);
                left.removed.extend(inner.removed);
            }
        }
        left
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, mut answer: Answer) -> Step<()> {
        loop {
            let given = std::mem::replace(&mut answer, Answer::None);
            match std::mem::replace(&mut self.phase, RepairPhase::Begin) {
                RepairPhase::Begin | RepairPhase::Release => match self.next(cx) {
                    Some(verb) => return Step::Issue(verb),
                    None => return Step::Done(()),
                },
                RepairPhase::PutFence => {
                    let own = self.left.inserted[0];
                    let (entry, place) = (self.left.entry.clone(), self.left.place.clone());
                    self.phase = RepairPhase::Put(Box::new(PutMachine::with(cx, entry, place, Some(own))));
                }
                RepairPhase::Put(mut put) => {
                    if let Step::Issue(verb) = put.step(cx, given) {
                        self.phase = RepairPhase::Put(put);
                        return Step::Issue(verb);
                    }
                    self.left.inserted.remove(0);
                }
                RepairPhase::Fence => {
                    let left = self.left.unfinished.as_ref().expect("a move is left");
                    match given {
                        Answer::Swapped(old) if old == left.cleared => return self.validate(),
                        Answer::Swapped(old) if old != left.source_word => {
                            // It is unknown whether the clear took effect. The copy stays, not
                            // valid: the key has no answer until a PUT or DELETE replaces the copy.
                            self.left.unfinished = None;
                        }
                        _ => return Step::Issue(self.revert(cx)),
                    }
                }
                RepairPhase::Revert => {
                    let left = self.left.unfinished.take().expect("a move is left");
                    self.phase = RepairPhase::Release;
                    return Step::Issue(Verb::Release(left.copy));
                }
                RepairPhase::Validate => self.left.unfinished = None,
            }
        }
    }

    fn next(&mut self, cx: &Context<'_>) -> Option<Verb> {
        if let Some(own) = self.left.inserted.first() {
            self.phase = RepairPhase::PutFence;
            let slot = self.left.place.slots[own.rank];
            return Some(Verb::Swap { slot, expected: own.word, new: own.word });
        }
        if let Some(left) = &self.left.unfinished {
            return Some(match left.clear {
                ClearState::NotIssued => self.revert(cx),
                ClearState::Done => {
                    let Step::Issue(verb) = self.validate() else { unreachable!("a verb") };
                    verb
                }
                ClearState::Unknown => {
                    self.phase = RepairPhase::Fence;
                    Verb::Swap { slot: left.source, expected: left.cleared, new: left.cleared }
                }
            });
        }
        let removed = self.left.removed.pop()?;
        self.phase = RepairPhase::Release;
        Some(Verb::Release(removed))
    }

    fn revert(&mut self, cx: &Context<'_>) -> Verb {
        let left = self.left.unfinished.as_ref().expect("a move is left");
        self.phase = RepairPhase::Revert;
        let new = left.copy_word.clear(cx.fields(), left.copy.entry);
        Verb::Swap { slot: left.destination, expected: left.copy_word, new }
    }

    fn validate(&mut self) -> Step<()> {
        self.phase = RepairPhase::Validate;
        Step::Issue(Verb::Validate(self.left.unfinished.as_ref().expect("a move is left").copy))
    }
}
