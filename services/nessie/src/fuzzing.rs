//! Entry points for fuzzing: everything that reads bytes of a peer, a file or a program.

use std::sync::Arc;

use rdmabox::Address;

use crate::{
    logic::{
        context::{Context, Rules},
        entry::{self, Entry},
        operations::{adopt::Adopt, delete::Delete, get::Get, put::PutMachine},
        placement::Hashed,
        verb::{Answer, PerSlot, Step, Stored, Verb},
        word::{EntryRef, Fields, Word},
    },
    node::{Command, JoinRequest, Members, NodeOptions, Roster, read_control_block},
};

const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"value";

fn options() -> NodeOptions {
    NodeOptions::new(0, Members::parse("0 127.0.0.1:1\n1 127.0.0.1:2").expect("a list"))
}

/// Decodes the input as a word, a data entry, a control block, a list of nodes, and a command. Also
/// decodes it as the messages of a node that joins.
pub fn decoders(bytes: &[u8]) {
    if let Some(word) = bytes.first_chunk::<8>() {
        for tables in [1, 3, 64, 1 << 15] {
            let _ = Word::from_bits(u64::from_le_bytes(*word)).content(Fields::new(tables, 15));
        }
    }
    if let Ok(entry) = Entry::decode(bytes.into()) {
        let _ = (entry.key(), entry.value(), entry.life(), entry.body(), entry.is_valid());
    }
    let _ = read_control_block(bytes, &options());
    let _ = Members::parse(&String::from_utf8_lossy(bytes));
    if let Some(command) = Command::decode(bytes) {
        assert_eq!(command.encode(), bytes);
    }
    // An address may be written in several ways.
    if let Some(request) = JoinRequest::decode(bytes) {
        assert_eq!(JoinRequest::decode(&request.encode()), Some(request));
    }
    if let Some(roster) = Roster::decode(bytes) {
        assert_eq!(Roster::decode(&roster.encode()).as_ref(), Some(&roster));
        let _ = roster.options().and_then(|options| options.check());
    }
}

fn stored_entry() -> Vec<u8> {
    let mut bytes = entry::head(1, false).to_le_bytes().to_vec();
    bytes.extend_from_slice(Entry::new(KEY, VALUE).body());
    bytes.resize(entry::stride(KEY.len(), VALUE.len()) - 8, 0);
    bytes.extend_from_slice(&entry::tail(true).to_le_bytes());
    bytes
}

fn node(number: u16) -> Address {
    options().members.address(number).expect("in the list").clone()
}

/// Returns valid inputs of [`decoders`].
pub fn decoders_seeds() -> Vec<Vec<u8>> {
    let word = Word::UNUSED.replace(Fields::new(3, 15), EntryRef { table: 2, offset: 7 }, 5);
    vec![
        word.bits().to_le_bytes().to_vec(),
        stored_entry(),
        b"# nodes\n0 10.0.0.7:7460\n1 unix:/run/nessie.sock\n".to_vec(),
        Command::Put(KEY.to_vec(), VALUE.to_vec()).encode(),
        Command::Get(KEY.to_vec()).encode(),
        Command::Status.encode(),
        Command::Adopt(KEY.to_vec(), 1).encode(),
        JoinRequest::Claim { incarnation: 7 }.encode(),
        JoinRequest::Announce { number: 2, incarnation: 7, address: node(1) }.encode(),
        Roster::new(2, &options(), vec![(0, node(0)), (1, node(1))]).encode(),
    ]
}

/// Memory of nodes that answer with any bytes.
struct Hostile<'a>(&'a [u8]);

impl Hostile<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<Word> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(Word::from_bits(u64::from_le_bytes(*word)))
    }

    /// Answers a verb. `None` ends the operation.
    fn answer(&mut self, verb: &Verb) -> Option<Answer> {
        Some(match verb {
            Verb::ReadSlots(slots) => {
                let mut words = PerSlot::new();
                for _ in slots {
                    words.push(if self.byte()? == 0 { None } else { Some(self.word()?) });
                }
                Answer::Words(words)
            }
            Verb::Swap { expected, .. } => match self.byte()? {
                0 => Answer::Lost,
                1..=127 => Answer::Swapped(*expected),
                _ => Answer::Swapped(self.word()?),
            },
            Verb::ReadEntry { .. } => match self.byte()? {
                0 => Answer::Lost,
                1..=127 => Answer::Entry(Entry::decode(Arc::from(stored_entry())).ok()?),
                _ => Answer::Entry(Entry::decode(self.0.get(..48)?.into()).ok()?),
            },
            Verb::Store(_) if self.byte()? == 0 => Answer::DataFull,
            Verb::Store(_) => Answer::Stored(Stored { entry: EntryRef { table: 0, offset: 1 }, life: 1 }),
            Verb::Validate(_) | Verb::Release(_) | Verb::Pause => {
                self.byte()?;
                Answer::None
            }
        })
    }
}

fn drive<T>(bytes: &[u8], cx: &Context<'_>, mut step: impl FnMut(&Context<'_>, Answer) -> Step<T>) {
    let mut memory = Hostile(bytes);
    let mut answer = Answer::None;
    while let Step::Issue(verb) = step(cx, answer) {
        let Some(next) = memory.answer(&verb) else { return };
        answer = next;
    }
}

/// Runs a GET, a PUT, a DELETE and an ADOPT on memory that answers with the input.
pub fn operations(bytes: &[u8]) {
    let placement = Hashed::new(&[0, 1], 8, 3, Fields::new(2, 3));
    let cx = Context { placement: &placement, max_depth: 3, patience: 1, rules: Rules::SAFE };
    let mut get = Get::new(&cx, KEY);
    drive(bytes, &cx, |cx, answer| get.step(cx, answer));
    let mut put = PutMachine::new(&cx, KEY, VALUE);
    drive(bytes, &cx, |cx, answer| put.step(cx, answer));
    let _ = put.leftover(&cx, true);
    let mut delete = Delete::new(&cx, KEY);
    drive(bytes, &cx, |cx, answer| delete.step(cx, answer));
    let _ = delete.leftover(&cx, true);
    let mut adopt = Adopt::new(&cx, KEY, 1);
    drive(bytes, &cx, |cx, answer| adopt.step(cx, answer));
    let _ = adopt.leftover(&cx, true);
}

/// Returns answers of empty slots, and of slots with an entry of the key.
pub fn operations_seeds() -> Vec<Vec<u8>> {
    let placement = Hashed::new(&[0, 1], 8, 3, Fields::new(2, 3));
    let filter = crate::logic::placement::Placement::place(&placement, KEY).filter;
    let word = Word::UNUSED.replace(Fields::new(2, 3), EntryRef { table: 1, offset: 3 }, filter);
    let full = [&[1][..], &word.bits().to_le_bytes(), &[1]].concat();
    let other = [&[1][..], &(word.bits() ^ 1 << 50).to_le_bytes()].concat();
    vec![[1, 0, 0, 0, 0, 0, 0, 0, 0].repeat(12), full.repeat(12), other.repeat(20)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_run() {
        decoders_seeds().iter().for_each(|seed| decoders(seed));
        operations_seeds().iter().for_each(|seed| operations(seed));
    }

    proptest! {
        #[test]
        fn operations_survive_any_memory(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            operations(&bytes);
        }

        #[test]
        fn decoders_survive_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decoders(&bytes);
        }
    }
}
