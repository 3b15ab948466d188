//! ADOPT: moves the value of a key from the table of a node that leaves to this node's.
//!
//! It reads the slots of the key, and the entry that lies in that table. A MIGRATE then moves the
//! entry to an empty slot of the key. If the key has no empty slot, migrations of other keys free
//! one first, as for a PUT. Another client may be faster: then the slots are read again.

use crate::logic::{
    context::Context,
    entry::Entry,
    operations::{
        migrate::{Migrate, Migrated, Move},
        put::{Leftover, Room},
    },
    placement::{Place, Slot},
    verb::{Answer, Failure, PerSlot, Step, Verb},
    word::{Content, EntryRef, Word},
};

/// Result of an ADOPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Adopted {
    Moved,
    /// No slot of the key refers to a valid entry of it in that table.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Begin,
    Slots,
    Entry {
        source: Slot,
        source_word: Word,
        source_entry: EntryRef,
        destination: (Slot, Word),
    },
    Pause,
    /// No slot of the key is empty.
    Room(Box<Room>),
    Move(Box<(Migrate, Entry)>),
}

/// The state of an ADOPT.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Adopt {
    key: Box<[u8]>,
    place: Place,
    from: u16,
    phase: Phase,
}

impl Adopt {
    pub(crate) fn new(cx: &Context<'_>, key: &[u8], from: u16) -> Adopt {
        Adopt { key: key.into(), place: cx.placement.place(key), from, phase: Phase::Begin }
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, answer: Answer) -> Step<Result<Adopted, Failure>> {
        match (&mut self.phase, answer) {
            (Phase::Begin | Phase::Pause, _) => {
                self.phase = Phase::Slots;
                Step::Issue(Verb::ReadSlots(self.place.slots.clone()))
            }
            (Phase::Slots, Answer::Words(words)) => match self.choose(cx, &words) {
                Ok(None) => Step::Done(Ok(Adopted::Nothing)),
                Ok(Some(step)) => step,
                Err(failure) => Step::Done(Err(failure)),
            },
            (Phase::Room(room), answer) => match room.step(cx, answer) {
                Step::Issue(verb) => Step::Issue(verb),
                Step::Done(Err(failure)) => Step::Done(Err(failure)),
                Step::Done(Ok(())) => {
                    self.phase = Phase::Slots;
                    Step::Issue(Verb::ReadSlots(self.place.slots.clone()))
                }
            },
            (&mut Phase::Entry { source, source_word, source_entry, destination }, Answer::Entry(entry)) => {
                if entry.key() != &*self.key {
                    return Step::Done(Ok(Adopted::Nothing));
                }
                if !entry.is_valid() {
                    // Its PUT or MIGRATE is under way.
                    self.phase = Phase::Pause;
                    return Step::Issue(Verb::Pause);
                }
                let migrate = Migrate::new(Move {
                    source,
                    source_word,
                    source_entry,
                    entry: entry.clone(),
                    destination: destination.0,
                    destination_word: destination.1,
                    filter: self.place.filter,
                });
                self.phase = Phase::Move(Box::new((migrate, entry)));
                self.step(cx, Answer::None)
            }
            (Phase::Move(moving), answer) => match moving.0.step(cx, answer) {
                Step::Issue(verb) => Step::Issue(verb),
                Step::Done(Migrated::Moved(_)) => Step::Done(Ok(Adopted::Moved)),
                Step::Done(Migrated::DataFull) => Step::Done(Err(Failure::DataFull)),
                Step::Done(Migrated::Failed) => {
                    self.phase = Phase::Pause;
                    Step::Issue(Verb::Pause)
                }
            },
            // The node that leaves is gone.
            (Phase::Slots | Phase::Entry { .. }, _) => Step::Done(Ok(Adopted::Nothing)),
        }
    }

    /// Returns the next step, or `None` if no word names that table.
    fn choose(
        &mut self,
        cx: &Context<'_>,
        words: &PerSlot<Option<Word>>,
    ) -> Result<Option<Step<Result<Adopted, Failure>>>, Failure> {
        let (mut source, mut destination) = (None, None);
        for (slot, word) in self.place.slots.iter().zip(words) {
            let Some(word) = word else { continue };
            match word.content(cx.fields())? {
                Content::Empty => destination = destination.or(Some((*slot, *word))),
                Content::Entry { entry, filter }
                    if entry.table == self.from && filter == self.place.filter =>
                {
                    source = source.or(Some((*slot, *word, entry)));
                }
                Content::Entry { .. } => {}
            }
        }
        let Some((source, source_word, source_entry)) = source else { return Ok(None) };
        let Some(destination) = destination else {
            self.phase = Phase::Room(Box::new(Room::new(cx, &self.place, words.iter().copied())));
            return Ok(Some(self.step(cx, Answer::None)));
        };
        self.phase = Phase::Entry { source, source_word, source_entry, destination };
        let verb = Verb::ReadEntry { slot: source, word: source_word, entry: source_entry };
        Ok(Some(Step::Issue(verb)))
    }

    /// Returns the remaining work if no further step follows.
    pub(crate) fn leftover(self, cx: &Context<'_>, is_issued: bool) -> Option<Leftover> {
        let (unfinished, entry) = match self.phase {
            Phase::Move(moving) => (moving.0.unfinished(cx, is_issued)?, moving.1),
            // The migration of another key. Its repair does not need the entry.
            Phase::Room(room) => (room.unfinished(cx, is_issued)?, Entry::tombstone(&self.key)),
            _ => return None,
        };
        Some(Leftover::of_move(unfinished, entry, self.place))
    }
}
