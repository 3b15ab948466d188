//! Reads the slots of a key one by one, and the entries that may be the key's.
//!
//! A [`Scan`] is the common part of all operations. After each slot it returns to its operation,
//! which may end, change the slot, or go on. [`Seen`] is the result for a slot.

use crate::logic::{
    context::Context,
    entry::Entry,
    error::DecodeError,
    placement::Place,
    verb::{Answer, PerSlot, Stored, Verb},
    word::{Content, EntryRef, Word},
};

/// An entry of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Match {
    pub(crate) word: Word,
    pub(crate) at: EntryRef,
    pub(crate) entry: Entry,
}

impl Match {
    pub(crate) fn stored(&self) -> Stored {
        Stored { entry: self.at, life: self.entry.life() }
    }
}

/// State of a slot when the scan read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
    Unread,
    Empty(Word),
    /// An entry of another key.
    Other(Word),
    Mine(Match),
    /// The filter matches, and the node of the data table is lost: it may have been the key's.
    LostEntry(Word, EntryRef),
    /// The node of the slot is lost.
    LostSlot,
}

impl Seen {
    /// Returns the word, unless the slot has none.
    pub(crate) fn word(&self) -> Option<Word> {
        match self {
            Seen::Empty(word) | Seen::Other(word) | Seen::LostEntry(word, _) => Some(*word),
            Seen::Mine(found) => Some(found.word),
            Seen::Unread | Seen::LostSlot => None,
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Seen::LostEntry(..) | Seen::LostSlot)
    }

    /// Returns the entry if it is the key's and not valid.
    pub(crate) fn unfinished(&self) -> Option<&Match> {
        match self {
            Seen::Mine(found) if !found.entry.is_valid() => Some(found),
            _ => None,
        }
    }
}

/// Order in which a scan reads the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// From the highest rank to the lowest: GET.
    Down,
    /// From the lowest rank to the highest: PUT and DELETE.
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wait {
    /// The scan issues the READ of the next slot.
    Nothing,
    Word,
    Entry(Word, EntryRef),
}

/// The result of a step of a scan, for its operation.
#[derive(Debug)]
pub(crate) enum ScanStep {
    Issue(Verb),
    /// The slot with this rank was read.
    Slot(usize),
    Done,
}

/// A pass over the slots of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scan {
    order: Order,
    /// Number of slots that were read.
    done: usize,
    wait: Wait,
    pub(crate) seen: PerSlot<Seen>,
}

impl Scan {
    pub(crate) fn new(order: Order, place: &Place) -> Scan {
        Scan { order, done: 0, wait: Wait::Nothing, seen: place.slots.iter().map(|_| Seen::Unread).collect() }
    }

    /// Starts again from the first slot.
    pub(crate) fn restart(&mut self) {
        self.done = 0;
        self.wait = Wait::Nothing;
        self.seen.iter_mut().for_each(|seen| *seen = Seen::Unread);
    }

    fn rank(&self) -> usize {
        match self.order {
            Order::Down => self.done,
            Order::Up => self.seen.len() - 1 - self.done,
        }
    }

    fn finish(&mut self, seen: Seen) -> Result<ScanStep, DecodeError> {
        let rank = self.rank();
        self.seen[rank] = seen;
        self.done += 1;
        self.wait = Wait::Nothing;
        Ok(ScanStep::Slot(rank))
    }

    /// Makes one step. `answer` is that of the verb that the scan issued, and anything otherwise.
    ///
    /// # Errors
    /// The errors of [`Word::content`].
    pub(crate) fn step(
        &mut self,
        cx: &Context<'_>,
        key: &[u8],
        place: &Place,
        answer: Answer,
    ) -> Result<ScanStep, DecodeError> {
        match (self.wait, answer) {
            (Wait::Nothing, _) if self.done == self.seen.len() => Ok(ScanStep::Done),
            (Wait::Nothing, _) => {
                self.wait = Wait::Word;
                Ok(ScanStep::Issue(Verb::ReadSlots([place.slots[self.rank()]].into_iter().collect())))
            }
            (Wait::Word, Answer::Words(words)) => match words[0] {
                None => self.finish(Seen::LostSlot),
                Some(word) => match word.content(cx.fields())? {
                    Content::Empty => self.finish(Seen::Empty(word)),
                    Content::Entry { filter, .. } if filter != place.filter => self.finish(Seen::Other(word)),
                    Content::Entry { entry, .. } => {
                        self.wait = Wait::Entry(word, entry);
                        Ok(ScanStep::Issue(Verb::ReadEntry { slot: place.slots[self.rank()], word, entry }))
                    }
                },
            },
            (Wait::Entry(word, at), Answer::Entry(entry)) if entry.key() == key => {
                self.finish(Seen::Mine(Match { word, at, entry }))
            }
            (Wait::Entry(word, _), Answer::Entry(_)) => self.finish(Seen::Other(word)),
            (Wait::Entry(word, at), Answer::Lost) => self.finish(Seen::LostEntry(word, at)),
            (wait, answer) => unreachable!("{wait:?} got {answer:?}"),
        }
    }

    /// Returns the READ of all slots that have a word, the lowest rank first. The slot `without`
    /// is left out.
    pub(crate) fn second_look(&self, place: &Place, without: Option<usize>) -> Verb {
        let ranks = (0..self.seen.len()).rev().filter(|rank| Some(*rank) != without);
        let slots = ranks.filter(|rank| self.seen[*rank].word().is_some()).map(|rank| place.slots[rank]);
        Verb::ReadSlots(slots.collect())
    }

    /// Returns true if the words of [`Self::second_look`] are those of the scan.
    pub(crate) fn is_stable(&self, words: &[Option<Word>], without: Option<usize>) -> bool {
        let ranks = (0..self.seen.len()).rev().filter(|rank| Some(*rank) != without);
        let seen = ranks.filter_map(|rank| self.seen[rank].word());
        seen.map(Some).eq(words.iter().copied())
    }
}
