//! The memory of all nodes in a simulation, and the parts of verbs.
//!
//! Words of 64 bits are read and written as a whole, and nothing larger is. So a READ of a data
//! entry consists of as many parts as the entry has words, and other clients act in between.

use crate::logic::{
    entry::{self, Entry},
    placement::{Place, Placement, Slot},
    verb::{Answer, PerSlot, Stored, Verb},
    word::{EntryRef, Fields, Word},
};

/// Words of a data entry in simulations: a key of one byte and a value of two words.
const MAX_KEY: usize = 1;
const MAX_VALUE: usize = 16;

pub(super) fn entry_words() -> usize {
    entry::stride(MAX_KEY, MAX_VALUE) / 8
}

/// Makes the bytes of a value from its number, so that torn values are noticed.
pub(super) fn value_of(number: u64) -> [u8; MAX_VALUE] {
    let mut value = [0; MAX_VALUE];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..].copy_from_slice(&number.to_le_bytes());
    value
}

pub(super) fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
    assert_eq!(value, value_of(number), "a torn value");
    number
}

/// Slots and filters of keys 0, 1, ..., chosen by a test.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Table {
    pub(super) places: Vec<Place>,
    pub(super) fields: Fields,
}

impl Placement for Table {
    fn place(&self, key: &[u8]) -> Place {
        self.places[usize::from(key[0])].clone()
    }

    fn fields(&self) -> Fields {
        self.fields
    }
}

/// The memory of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    index: Vec<Word>,
    /// Words of the data entries; entry N begins at `(N - 1) * entry_words()`.
    data: Vec<u64>,
    is_lost: bool,
}

/// The memory of all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    nodes: Vec<Node>,
}

impl World {
    pub(super) fn new(nodes: usize, slots: usize, entries: usize) -> World {
        let data = vec![0; entries * entry_words()];
        World { nodes: vec![Node { index: vec![Word::UNUSED; slots], data, is_lost: false }; nodes] }
    }

    pub(super) fn lose(&mut self, node: u16) {
        self.nodes[usize::from(node)].is_lost = true;
    }

    pub(super) fn is_lost(&self, node: u16) -> bool {
        self.nodes[usize::from(node)].is_lost
    }

    /// Returns the words of slots whose nodes are not lost.
    pub(super) fn words(&self, slots: &[Slot]) -> Vec<Word> {
        slots.iter().map(|slot| self.nodes[usize::from(slot.node)].index[slot.number as usize]).collect()
    }

    fn data(&mut self, entry: EntryRef, word: usize) -> &mut u64 {
        &mut self.nodes[usize::from(entry.table)].data[(entry.offset as usize - 1) * entry_words() + word]
    }

    pub(super) fn head(&self, node: u16, offset: u32) -> u64 {
        self.nodes[usize::from(node)].data[(offset as usize - 1) * entry_words()]
    }
}

/// A verb that is under way: its parts take effect one by one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnderWay {
    verb: Verb,
    /// The bytes that were read.
    words: PerSlot<Option<Word>>,
    data: Vec<u64>,
    /// The order in which the slots of a list are read.
    order: PerSlot<usize>,
    /// The entry that a `Store` writes.
    target: Option<Stored>,
}

impl UnderWay {
    /// Creates a verb of which no part has taken effect. `target` is the entry for a `Store`.
    /// `order` permutes the slots of a list.
    pub(super) fn new(verb: Verb, target: Option<Stored>, order: impl FnOnce(&mut [usize])) -> UnderWay {
        let count = if let Verb::ReadSlots(slots) = &verb { slots.len() } else { 0 };
        let mut ranks: PerSlot<usize> = (0..count).collect();
        order(&mut ranks);
        UnderWay { verb, words: PerSlot::from_elem(None, count), data: Vec::new(), order: ranks, target }
    }

    /// Returns true if the verb reads a data entry.
    pub(super) fn is_entry(&self) -> bool {
        matches!(self.verb, Verb::ReadEntry { .. })
    }

    /// Executes all parts that remain.
    pub(super) fn finish(mut self, world: &mut World) -> Answer {
        loop {
            if let Some(answer) = self.advance(world) {
                return answer;
            }
        }
    }

    /// Executes the next part. Returns the answer behind the last part.
    pub(super) fn advance(&mut self, world: &mut World) -> Option<Answer> {
        match &self.verb {
            Verb::ReadSlots(slots) => {
                if let Some(at) = self.order.pop() {
                    let Slot { node, number } = slots[at];
                    let node = &world.nodes[usize::from(node)];
                    self.words[at] = (!node.is_lost).then(|| node.index[number as usize]);
                }
                self.order.is_empty().then(|| Answer::Words(std::mem::take(&mut self.words)))
            }
            Verb::Swap { slot, expected, new } => {
                let node = &mut world.nodes[usize::from(slot.node)];
                if node.is_lost {
                    return Some(Answer::Lost);
                }
                let word = &mut node.index[slot.number as usize];
                let old = *word;
                if old == *expected {
                    *word = *new;
                }
                Some(Answer::Swapped(old))
            }
            Verb::ReadEntry { entry, .. } => {
                if world.is_lost(entry.table) {
                    return Some(Answer::Lost);
                }
                let next = *world.data(*entry, self.data.len());
                self.data.push(next);
                if self.data.len() < entry_words() {
                    return None;
                }
                let bytes: Vec<u8> = self.data.iter().flat_map(|word| word.to_le_bytes()).collect();
                Some(Answer::Entry(Entry::decode(bytes.into()).expect("a whole entry")))
            }
            Verb::Store(entry) => {
                let Some(target) = self.target else { return Some(Answer::DataFull) };
                let mut bytes = entry.body().to_vec();
                bytes.resize((entry_words() - 2) * 8, 0);
                let mut words = vec![entry::head(target.life, false), entry::tail(false)];
                words.extend(
                    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))),
                );
                let part = self.data.len();
                let place = [0, entry_words() - 1].into_iter().chain(1..).nth(part).expect("a part");
                *world.data(target.entry, place) = words[part];
                self.data.push(0);
                (self.data.len() == entry_words()).then_some(Answer::Stored(target))
            }
            Verb::Validate(stored) => {
                *world.data(stored.entry, entry_words() - 1) = entry::tail(true);
                Some(Answer::None)
            }
            Verb::Release(stored) => {
                if !world.is_lost(stored.entry.table) {
                    let head = world.data(stored.entry, 0);
                    if *head == entry::head(stored.life, false) {
                        *head = entry::head(stored.life, true);
                    }
                }
                Some(Answer::None)
            }
            Verb::Pause => Some(Answer::None),
        }
    }
}
