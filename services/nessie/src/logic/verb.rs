//! The remote operations that a state machine asks for, and their answers.
//!
//! A machine returns one [`Verb`] at a time. A driver executes it on sessions, or in a simulation,
//! and passes the [`Answer`] to the machine's next step. No I/O, no locks, no clock.

use smallvec::SmallVec;

use super::{
    entry::Entry,
    error::DecodeError,
    placement::Slot,
    word::{EntryRef, Word},
};

/// Largest number of slots that a key can be in.
pub(crate) const MAX_WAYS: usize = 4;

/// A value for each slot of a key.
pub(crate) type PerSlot<T> = SmallVec<[T; MAX_WAYS]>;

/// A data entry of this node that an operation has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) entry: EntryRef,
    pub(crate) life: u64,
}

/// An operation on memory that a machine asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    /// READ of index words, in any order.
    ReadSlots(PerSlot<Slot>),
    /// CAS of an index word.
    Swap { slot: Slot, expected: Word, new: Word },
    /// READ of a data entry to which `word` in `slot` refers, from a cache if possible.
    ReadEntry { slot: Slot, word: Word, entry: EntryRef },
    /// Takes an unused entry of this node's data table, and writes key and value. It is not valid.
    Store(Entry),
    /// Sets the valid flag of an entry of this node.
    Validate(Stored),
    /// Tells the owner that no slot refers to an entry: a CAS of its head word.
    Release(Stored),
    /// Gives other clients time.
    Pause,
}

/// The answer to a verb.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// The machine begins, or there is nothing to say.
    None,
    /// One word for each slot; `None` if the node of the slot is lost.
    Words(PerSlot<Option<Word>>),
    /// The word that the slot held. The swap took place if it is the expected word, or the new one.
    Swapped(Word),
    Entry(Entry),
    /// The node of the entry, or of the swapped slot, is lost.
    Lost,
    Stored(Stored),
    /// No entry of this node is unused.
    DataFull,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    Issue(Verb),
    Done(T),
}

/// An operation that ends without the outcome that it was begun for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Failure {
    /// All slots of the key are in use, and no path of migrations frees one.
    IndexFull,
    /// All slots of the key are on lost nodes.
    NoSlot,
    /// This node's data table has no unused entry.
    DataFull,
    /// Another program has written the bytes.
    Decode(DecodeError),
}

impl From<DecodeError> for Failure {
    fn from(e: DecodeError) -> Failure {
        Failure::Decode(e)
    }
}
