//! MIGRATE: moves the entry of a slot to another slot of its key.
//!
//! A MIGRATE copies the entry to this node's data table, refers the destination to the copy, and
//! clears the source. The copy becomes valid when the source is clear. If another client changed
//! the source first, the MIGRATE clears the destination again. An entry that is not valid does not
//! move: its PUT is not done, or a MIGRATE that may still be undone has made it.

use crate::logic::{
    context::Context,
    entry::Entry,
    placement::Slot,
    verb::{Answer, Step, Stored, Verb},
    word::{EntryRef, Word},
};

/// The source and the destination of a MIGRATE, as they were read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Move {
    pub(crate) source: Slot,
    pub(crate) source_word: Word,
    pub(crate) source_entry: EntryRef,
    pub(crate) entry: Entry,
    pub(crate) destination: Slot,
    pub(crate) destination_word: Word,
    /// Filter of the entry's key.
    pub(crate) filter: u16,
}

/// Result of a MIGRATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Migrated {
    /// The source is clear, and has this word.
    Moved(Word),
    /// Another client was faster. Nothing changed.
    Failed,
    DataFull,
}

/// Steps of a MIGRATE. The names are those of the verbs whose answers are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Begin,
    Store,
    Refer,
    ClearSource,
    Validate,
    Release(Migrated),
    Revert,
}

/// The known state of the CAS that clears the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClearState {
    NotIssued,
    Unknown,
    Done,
}

/// A copy whose MIGRATE could not end in time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnfinishedMove {
    pub(crate) clear: ClearState,
    pub(crate) source: Slot,
    pub(crate) source_word: Word,
    pub(crate) cleared: Word,
    pub(crate) destination: Slot,
    pub(crate) copy: Stored,
    pub(crate) copy_word: Word,
}

/// The state of a MIGRATE.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Migrate {
    order: Move,
    copy: Option<Stored>,
    phase: Phase,
}

impl Migrate {
    pub(crate) fn new(order: Move) -> Migrate {
        Migrate { order, copy: None, phase: Phase::Begin }
    }

    fn copy(&self) -> Stored {
        self.copy.expect("the copy is stored")
    }

    fn copy_word(&self, cx: &Context<'_>) -> Word {
        self.order.destination_word.replace(cx.fields(), self.copy().entry, self.order.filter)
    }

    /// Returns the cleared word of the source slot. The name of the copy tells this clear from the
    /// clear of a DELETE or a PUT.
    fn cleared(&self, cx: &Context<'_>) -> Word {
        self.order.source_word.clear(cx.fields(), self.copy().entry)
    }

    fn release(&mut self, entry: Stored, outcome: Migrated) -> Step<Migrated> {
        self.phase = Phase::Release(outcome);
        Step::Issue(Verb::Release(entry))
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, answer: Answer) -> Step<Migrated> {
        match self.phase {
            Phase::Begin if cx.rules.migrate_needs_valid && !self.order.entry.is_valid() => {
                Step::Done(Migrated::Failed)
            }
            Phase::Begin => {
                self.phase = Phase::Store;
                Step::Issue(Verb::Store(self.order.entry.clone()))
            }
            Phase::Store => {
                let Answer::Stored(copy) = answer else { return Step::Done(Migrated::DataFull) };
                self.copy = Some(copy);
                self.phase = Phase::Refer;
                let (slot, expected) = (self.order.destination, self.order.destination_word);
                Step::Issue(Verb::Swap { slot, expected, new: self.copy_word(cx) })
            }
            Phase::Refer => match answer {
                Answer::Swapped(old) if old == self.order.destination_word || old == self.copy_word(cx) => {
                    self.phase = Phase::ClearSource;
                    let (slot, expected) = (self.order.source, self.order.source_word);
                    Step::Issue(Verb::Swap { slot, expected, new: self.cleared(cx) })
                }
                _ => self.release(self.copy(), Migrated::Failed),
            },
            Phase::ClearSource => match answer {
                Answer::Swapped(old) if old == self.order.source_word || old == self.cleared(cx) => {
                    self.phase = Phase::Validate;
                    Step::Issue(Verb::Validate(self.copy()))
                }
                _ if !cx.rules.migrate_reverts => Step::Done(Migrated::Failed),
                _ => {
                    self.phase = Phase::Revert;
                    let expected = self.copy_word(cx);
                    let new = expected.clear(cx.fields(), self.copy().entry);
                    Step::Issue(Verb::Swap { slot: self.order.destination, expected, new })
                }
            },
            Phase::Validate => {
                let removed = Stored { entry: self.order.source_entry, life: self.order.entry.life() };
                let cleared = self.cleared(cx);
                self.release(removed, Migrated::Moved(cleared))
            }
            // Another client that has cleared the destination releases the copy, too: once more is
            // no fault.
            Phase::Revert => self.release(self.copy(), Migrated::Failed),
            Phase::Release(outcome) => Step::Done(outcome),
        }
    }

    /// Returns the remaining work if no further step follows. `is_issued` tells whether the last
    /// verb may have been executed.
    pub(crate) fn unfinished(&self, cx: &Context<'_>, is_issued: bool) -> Option<UnfinishedMove> {
        let clear = match self.phase {
            Phase::Refer | Phase::Revert => ClearState::NotIssued,
            Phase::ClearSource if is_issued => ClearState::Unknown,
            Phase::ClearSource => ClearState::NotIssued,
            // A store to own memory does not fail.
            Phase::Validate if is_issued => return None,
            Phase::Validate => ClearState::Done,
            Phase::Begin | Phase::Store | Phase::Release(_) => return None,
        };
        Some(UnfinishedMove {
            clear,
            source: self.order.source,
            source_word: self.order.source_word,
            cleared: self.cleared(cx),
            destination: self.order.destination,
            copy: self.copy(),
            copy_word: self.copy_word(cx),
        })
    }
}
