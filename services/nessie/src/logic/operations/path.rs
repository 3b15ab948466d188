//! Finds a path of migrations that frees a slot.
//!
//! The search begins at the occupied slots of a key. It reads the key of each entry, and the other
//! slots of that key, breadth first. It ends at an empty slot, or at the limits of depth and
//! number. The path is a list of moves; the one beside the empty slot comes first.

use crate::logic::{
    context::Context,
    entry::Entry,
    operations::migrate::Move,
    placement::{Place, Slot},
    verb::{Answer, Failure, PerSlot, Step, Verb},
    word::{Content, EntryRef, Word},
};

/// Most slots that a search looks at. With three ways it reaches 90 % of full.
const MAX_NODES: usize = 256;

/// An occupied slot that the search has reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Occupied {
    slot: Slot,
    word: Word,
    at: EntryRef,
    /// The slot whose entry could move here; `None` for the slots of the key.
    parent: Option<usize>,
    depth: u8,
    entry: Option<(Entry, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wait {
    Nothing,
    Entry,
    Words(PerSlot<Slot>),
}

/// The state of a search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathSearch {
    nodes: Vec<Occupied>,
    /// The node that is expanded.
    at: usize,
    wait: Wait,
}

impl PathSearch {
    /// Begins at the slots of a key, with their words.
    pub(crate) fn new(
        cx: &Context<'_>,
        place: &Place,
        words: impl Iterator<Item = Option<Word>>,
    ) -> PathSearch {
        let mut search = PathSearch { nodes: Vec::new(), at: 0, wait: Wait::Nothing };
        for (slot, word) in place.slots.iter().zip(words) {
            if let Some(word) = word {
                search.push(cx, *slot, word, None, 1);
            }
        }
        search
    }

    fn push(&mut self, cx: &Context<'_>, slot: Slot, word: Word, parent: Option<usize>, depth: u8) {
        let is_known = self.nodes.iter().any(|node| node.slot == slot);
        if let Ok(Content::Entry { entry, .. }) = word.content(cx.fields())
            && !is_known
            && self.nodes.len() < MAX_NODES
        {
            self.nodes.push(Occupied { slot, word, at: entry, parent, depth, entry: None });
        }
    }

    fn skip(&mut self) {
        self.at += 1;
        self.wait = Wait::Nothing;
    }

    /// Makes one step. An empty list of moves means that there is no path.
    pub(crate) fn step(&mut self, cx: &Context<'_>, mut answer: Answer) -> Step<Result<Vec<Move>, Failure>> {
        loop {
            let given = std::mem::replace(&mut answer, Answer::None);
            match std::mem::replace(&mut self.wait, Wait::Nothing) {
                Wait::Nothing => {
                    let Some(node) = self.nodes.get(self.at) else { return Step::Done(Ok(Vec::new())) };
                    let verb = Verb::ReadEntry { slot: node.slot, word: node.word, entry: node.at };
                    self.wait = Wait::Entry;
                    return Step::Issue(verb);
                }
                Wait::Entry => {
                    let Answer::Entry(entry) = given else {
                        // The node of the data table is lost.
                        self.skip();
                        continue;
                    };
                    if cx.rules.migrate_needs_valid && !entry.is_valid() {
                        self.skip();
                        continue;
                    }
                    let place = cx.placement.place(entry.key());
                    let node = &mut self.nodes[self.at];
                    // The slot may hold another entry by now.
                    if !place.slots.contains(&node.slot) {
                        self.skip();
                        continue;
                    }
                    let own = node.slot;
                    node.entry = Some((entry, place.filter));
                    let others: PerSlot<Slot> = place.slots.into_iter().filter(|slot| *slot != own).collect();
                    self.wait = Wait::Words(others.clone());
                    return Step::Issue(Verb::ReadSlots(others));
                }
                Wait::Words(slots) => {
                    let Answer::Words(words) = given else { unreachable!("the answer to a READ of words") };
                    match self.expand(cx, &slots, &words) {
                        Err(e) => return Step::Done(Err(e)),
                        Ok(Some(path)) => return Step::Done(Ok(path)),
                        Ok(None) => self.skip(),
                    }
                }
            }
        }
    }

    /// Returns the path if one of the slots is empty. Otherwise the slots join the search.
    fn expand(
        &mut self,
        cx: &Context<'_>,
        slots: &[Slot],
        words: &[Option<Word>],
    ) -> Result<Option<Vec<Move>>, Failure> {
        for (slot, word) in slots.iter().zip(words) {
            if let Some(word) = word
                && word.content(cx.fields())? == Content::Empty
            {
                return Ok(Some(self.path(*slot, *word)));
            }
        }
        let depth = self.nodes[self.at].depth + 1;
        if depth <= cx.max_depth {
            for (slot, word) in slots.iter().zip(words) {
                if let Some(word) = word {
                    self.push(cx, *slot, *word, Some(self.at), depth);
                }
            }
        }
        Ok(None)
    }

    fn path(&self, empty: Slot, empty_word: Word) -> Vec<Move> {
        let (mut destination, mut destination_word) = (empty, empty_word);
        let mut moves = Vec::new();
        let mut next = Some(self.at);
        while let Some(node) = next.map(|at| &self.nodes[at]) {
            let (entry, filter) = node.entry.clone().expect("the search has read it");
            moves.push(Move {
                source: node.slot,
                source_word: node.word,
                source_entry: node.at,
                entry,
                destination,
                // That of a slot that is not clear yet is set when it is.
                destination_word,
                filter,
            });
            (destination, destination_word) = (node.slot, node.word);
            next = node.parent;
        }
        moves
    }
}
