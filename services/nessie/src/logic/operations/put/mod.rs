//! PUT: stores a value.
//!
//! A PUT stores its entry in this node's data table. It refers a slot to the entry: the slot that
//! has the key, or an empty slot. Then it clears the slots of lower rank that have the key. Two
//! equal readings of all slots prove that the key is nowhere else, and the entry becomes valid. So
//! at most one valid entry of a key is referred to, and it has the current value.
//!
//! A PUT never clears its own slot without an entry of the key at a higher rank. So an entry that
//! it has replaced leaves no gap in which the key seems absent.
//!
//! A PUT reads its own slot after those of lower rank. So an entry that it clears was there while
//! its own was above. In the other order another PUT may replace the own entry. A MIGRATE may then
//! carry that valid entry down, to a slot that the first PUT clears.

mod repair;
mod room;

pub(crate) use repair::{Leftover, Repair};
pub(super) use room::Room;

use smallvec::SmallVec;

use crate::logic::{
    context::Context,
    entry::Entry,
    operations::scan::{Order, Scan, ScanStep, Seen},
    placement::{Place, Slot},
    verb::{Answer, Failure, Step, Stored, Verb},
    word::Word,
};

/// A reference to an own entry that is in a slot, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Inserted {
    rank: usize,
    word: Word,
    stored: Stored,
}

/// Result of a PUT that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Put {
    Stored,
    /// Another client replaced the entry before it was valid. Only repairs and tombstones end so.
    Superseded,
}

type Outcome = Result<Put, Failure>;

/// Steps of a PUT. Most names are those of the verbs whose answers are awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Begin,
    Store,
    Scan,
    Pause,
    Insert {
        inserted: Inserted,
        replaced: Option<Stored>,
    },
    Clear {
        rank: usize,
        new: Word,
        removed: Option<Stored>,
    },
    SecondLook,
    Validate,
    Room(Box<Room>),
    /// Releases the removed entries.
    Finish(Outcome),
}

/// The state of a PUT.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PutMachine {
    entry: Entry,
    place: Place,
    scan: Scan,
    phase: Phase,
    /// An own entry to which no slot refers yet.
    spare: Option<Stored>,
    inserted: Option<Inserted>,
    /// Entries to which this operation removed the reference.
    removed: SmallVec<[Stored; 2]>,
    patience: u16,
    is_repair: bool,
}

impl PutMachine {
    pub(crate) fn new(cx: &Context<'_>, key: &[u8], value: &[u8]) -> PutMachine {
        PutMachine::with(cx, Entry::new(key, value), cx.placement.place(key), None)
    }

    /// Replaces the entry of a key by a tombstone. Ends with [`Put::Superseded`] if there is none.
    pub(crate) fn tombstone(cx: &Context<'_>, key: &[u8]) -> PutMachine {
        let mut put = PutMachine::with(cx, Entry::tombstone(key), cx.placement.place(key), None);
        // The DELETE has waited already.
        put.patience = 0;
        put
    }

    /// Returns the reference to the stored entry.
    pub(crate) fn reference(&self) -> Option<(Slot, Word, Stored)> {
        let own = self.inserted?;
        Some((self.place.slots[own.rank], own.word, own.stored))
    }

    fn with(cx: &Context<'_>, entry: Entry, place: Place, inserted: Option<Inserted>) -> PutMachine {
        PutMachine {
            entry,
            scan: Scan::new(if cx.rules.put_scans_up { Order::Up } else { Order::Down }, &place),
            place,
            phase: if inserted.is_some() { Phase::Scan } else { Phase::Begin },
            spare: None,
            is_repair: inserted.is_some(),
            inserted,
            removed: SmallVec::new(),
            patience: cx.patience,
        }
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, answer: Answer) -> Step<Outcome> {
        match self.advance(cx, answer) {
            Ok(verb) => Step::Issue(verb),
            Err(outcome) => self.finish(outcome),
        }
    }

    /// Releases one entry after the other, then ends.
    fn finish(&mut self, outcome: Outcome) -> Step<Outcome> {
        self.removed.extend(self.spare.take());
        self.phase = Phase::Finish(outcome.clone());
        match self.removed.pop() {
            Some(entry) => Step::Issue(Verb::Release(entry)),
            None => Step::Done(outcome),
        }
    }

    /// Returns the next verb, or the outcome.
    fn advance(&mut self, cx: &Context<'_>, answer: Answer) -> Result<Verb, Outcome> {
        match std::mem::replace(&mut self.phase, Phase::Scan) {
            Phase::Begin => Ok(self.store()),
            Phase::Store => match answer {
                Answer::Stored(stored) => {
                    self.spare = Some(stored);
                    self.rescan(cx)
                }
                // An entry that is inserted stays until it is valid, or replaced.
                _ if self.inserted.is_some() => Ok(self.pause()),
                _ => Err(Err(Failure::DataFull)),
            },
            Phase::Scan => self.look(cx, answer),
            Phase::Pause => self.rescan(cx),
            Phase::Insert { inserted, replaced } => self.inserted(cx, answer, inserted, replaced),
            Phase::Clear { rank, new, removed } => match answer {
                Answer::Swapped(old) if Some(old) == self.scan.seen[rank].word() || old == new => {
                    self.scan.seen[rank] = Seen::Empty(new);
                    self.removed.extend(removed);
                    Ok(self.clear_lower(cx))
                }
                _ => self.rescan(cx),
            },
            Phase::SecondLook => match answer {
                Answer::Words(words) if self.scan.is_stable(&words, None) => Ok(self.validate()),
                _ => self.rescan(cx),
            },
            Phase::Validate => Err(Ok(Put::Stored)),
            Phase::Room(mut room) => match room.step(cx, answer) {
                Step::Issue(verb) => {
                    self.phase = Phase::Room(room);
                    Ok(verb)
                }
                Step::Done(Ok(())) => self.rescan(cx),
                Step::Done(Err(e)) => Err(Err(e)),
            },
            Phase::Finish(outcome) => Err(outcome),
        }
    }

    fn store(&mut self) -> Verb {
        self.phase = Phase::Store;
        Verb::Store(self.entry.clone())
    }

    fn pause(&mut self) -> Verb {
        self.phase = Phase::Pause;
        Verb::Pause
    }

    fn validate(&mut self) -> Verb {
        self.phase = Phase::Validate;
        Verb::Validate(self.inserted.expect("an entry is inserted").stored)
    }

    fn rescan(&mut self, cx: &Context<'_>) -> Result<Verb, Outcome> {
        self.scan.restart();
        self.look(cx, Answer::None)
    }

    /// Reads all slots, then decides.
    fn look(&mut self, cx: &Context<'_>, mut answer: Answer) -> Result<Verb, Outcome> {
        loop {
            let given = std::mem::replace(&mut answer, Answer::None);
            match self.scan.step(cx, self.entry.key(), &self.place, given) {
                Err(e) => return Err(Err(e.into())),
                Ok(ScanStep::Issue(verb)) => return Ok(verb),
                Ok(ScanStep::Slot(_)) => {}
                Ok(ScanStep::Done) => return self.decide(cx),
            }
        }
    }

    fn decide(&mut self, cx: &Context<'_>) -> Result<Verb, Outcome> {
        self.inserted = self.inserted.filter(|own| self.scan.seen[own.rank].word() == Some(own.word));
        let is_match = |seen: &Seen| matches!(seen, Seen::Mine(_) | Seen::LostEntry(..));
        let top = self.scan.seen.iter().position(is_match);
        match (self.inserted, top) {
            (None, _) if self.is_repair => Err(Ok(Put::Superseded)),
            (Some(own), Some(top)) if own.rank == top || !cx.rules.put_moves_up => Ok(self.clear_lower(cx)),
            (_, Some(top)) if self.patience > 0 && self.scan.seen[top].unfinished().is_some() => {
                self.patience -= 1;
                Ok(self.pause())
            }
            (_, Some(rank)) => Ok(self.insert(cx, rank)),
            (_, None) if self.entry.is_tombstone() => Err(Ok(Put::Superseded)),
            (_, None) => match self.scan.seen.iter().position(|seen| matches!(seen, Seen::Empty(_))) {
                Some(rank) => Ok(self.insert(cx, rank)),
                None => self.make_room(cx),
            },
        }
    }

    fn insert(&mut self, cx: &Context<'_>, rank: usize) -> Verb {
        let Some(stored) = self.spare else { return self.store() };
        let seen = &self.scan.seen[rank];
        let expected = seen.word().expect("the slot was read");
        let replaced = if let Seen::Mine(found) = seen { Some(found.stored()) } else { None };
        let word = expected.replace(cx.fields(), stored.entry, self.place.filter);
        self.phase = Phase::Insert { inserted: Inserted { rank, word, stored }, replaced };
        Verb::Swap { slot: self.place.slots[rank], expected, new: word }
    }

    fn inserted(
        &mut self,
        cx: &Context<'_>,
        answer: Answer,
        inserted: Inserted,
        replaced: Option<Stored>,
    ) -> Result<Verb, Outcome> {
        match answer {
            Answer::Swapped(old)
                if Some(old) == self.scan.seen[inserted.rank].word() || old == inserted.word =>
            {
                self.spare = None;
                self.inserted = Some(inserted);
                self.removed.extend(replaced);
                self.scan.seen[inserted.rank] = Seen::Other(inserted.word);
                Ok(self.clear_lower(cx))
            }
            Answer::Swapped(_) => self.rescan(cx),
            // The slot is lost, and may refer to the entry.
            _ => {
                self.removed.extend(self.spare.take());
                self.rescan(cx)
            }
        }
    }

    /// Clears the next slot of lower rank that has the key, or looks a second time.
    fn clear_lower(&mut self, cx: &Context<'_>) -> Verb {
        let own = self.inserted.expect("an entry is inserted").rank;
        let is_match = |rank: &usize| matches!(self.scan.seen[*rank], Seen::Mine(_) | Seen::LostEntry(..));
        if let Some(rank) = (own + 1..self.scan.seen.len()).find(is_match) {
            return self.clear(cx, rank);
        }
        if !cx.rules.put_verifies {
            return self.validate();
        }
        self.phase = Phase::SecondLook;
        self.scan.second_look(&self.place, None)
    }

    fn clear(&mut self, cx: &Context<'_>, rank: usize) -> Verb {
        let (word, named, removed) = match &self.scan.seen[rank] {
            Seen::Mine(found) => (found.word, found.at, Some(found.stored())),
            Seen::LostEntry(word, at) => (*word, *at, None),
            seen => unreachable!("no entry of the key: {seen:?}"),
        };
        let new = word.clear(cx.fields(), named);
        self.phase = Phase::Clear { rank, new, removed };
        Verb::Swap { slot: self.place.slots[rank], expected: word, new }
    }

    fn make_room(&mut self, cx: &Context<'_>) -> Result<Verb, Outcome> {
        if self.scan.seen.iter().all(|seen| *seen == Seen::LostSlot) {
            return Err(Err(Failure::NoSlot));
        }
        let mut room = Room::new(cx, &self.place, self.scan.seen.iter().map(Seen::word));
        match room.step(cx, Answer::None) {
            Step::Issue(verb) => {
                self.phase = Phase::Room(Box::new(room));
                Ok(verb)
            }
            Step::Done(_) => Err(Err(Failure::IndexFull)),
        }
    }
}
