//! What lies where in a session's memory for calls by fetching, and what the words there mean. Pure.
//!
//! Each call slot has two records, one for requests and one for answers. A record is a head, so many bytes, and a tail,
//! which begins at the next multiple of eight. The head holds the number of the call in its slot, and the tail is a check of
//! the head and the bytes. Nothing promises that what is written or read in one piece is so from its beginning to its end: a card, a
//! socket and `memcpy` copy in the order that suits them. A record of which any part is still missing has no tail that goes with
//! the rest, whatever lay there before. In front of a slot's answer a word says whether the host is looking at the session's requests, so that a READ of
//! an answer brings that along. Behind the request of the first slot a client that has mapped the memory says on which core it makes its calls.

use crate::rpc::{CALL_SLOTS, MAX_CALL};

/// Bytes of a head, of a tail and of the word in front of an answer.
pub(super) const WORD: usize = 8;
/// Bytes from the beginning of one slot's place to the next. Whole cache lines, and not whole pages: the first lines of all
/// places would compete for the same few places of a cache.
const PLACE: usize = (3 * WORD + MAX_CALL).next_multiple_of(64);
const _: () = assert!(!PLACE.is_multiple_of(4096));
/// Bytes of a session's memory for calls by fetching.
pub(super) const MEMORY: usize = 2 * CALL_SLOTS * PLACE;
/// Where a client on the same host says on which core it has made its last call: the core's number and one. 0 is none.
pub(super) const CORE: usize = request(0) + record(MAX_CALL);
const _: () = assert!(CORE + WORD <= PLACE);

/// The word in front of an answer while the host does not look at the session's requests: it has to be rung. That of a new
/// session.
pub(super) const ASLEEP: u64 = 0;
/// The same while it does.
pub(super) const AWAKE: u64 = 1;

/// Where the request of a slot begins.
pub(super) const fn request(slot: usize) -> usize {
    slot * PLACE
}

/// Where the word in front of a slot's answer is. The answer begins behind it.
pub(super) const fn rest(slot: usize) -> usize {
    (CALL_SLOTS + slot) * PLACE
}

/// Where the answer of a slot begins.
pub(super) const fn answer(slot: usize) -> usize {
    rest(slot) + WORD
}

/// Where the tail is in a record with so many bytes.
pub(super) const fn tail(len: usize) -> usize {
    WORD + len.next_multiple_of(WORD)
}

/// The length of a record with so many bytes.
pub(super) const fn record(len: usize) -> usize {
    tail(len) + WORD
}

/// The number of the call that follows in the same slot. Zero is none: fresh memory says so.
pub(super) fn next(number: u32) -> u32 {
    number.wrapping_add(1).max(1)
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) enum Kind {
    /// A request, or the reply.
    Plain = 0,
    /// An answer: the service has given up the call without a reply.
    Unanswered = 1,
    /// In the place of an answer that will take its time: there is no sense in looking for it.
    PutOff = 2,
}

/// The first word of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The number of the call in its slot.
    pub number: u32,
    pub kind: Kind,
    /// Bytes that follow.
    pub len: usize,
}

/// The word holds the length in the lower 24 of its upper 32 bits.
const LEN_BITS: u32 = 24;
const _: () = assert!(MAX_CALL < 1 << LEN_BITS);

impl Head {
    pub(super) fn word(self) -> u64 {
        u64::from(self.number) | (self.len as u64 | (self.kind as u64) << LEN_BITS) << 32
    }

    /// The tail of its record with these bytes.
    pub(super) fn tail(self, bytes: &[u8]) -> u64 {
        !(self.word() ^ check(bytes))
    }

    /// `None` for what nobody writes.
    pub(super) fn of(word: u64) -> Option<Head> {
        let rest = word >> 32;
        let kind = match rest >> LEN_BITS {
            0 => Kind::Plain,
            1 => Kind::Unanswered,
            2 => Kind::PutOff,
            _ => return None,
        };
        let len = (rest & ((1 << LEN_BITS) - 1)) as usize;
        (len <= MAX_CALL).then_some(Head { number: word as u32, kind, len })
    }
}

/// Changes if any word of the bytes does: FNV-1a by words in four lanes, so that it costs less than copying them. None: 0.
fn check(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x100_0000_01b3;
    if bytes.is_empty() {
        return 0;
    }
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME);
    let word = |bytes: &[u8]| {
        let mut word = [0; WORD];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut lanes = [1, 2, 3, 4];
    let groups = bytes.chunks_exact(4 * WORD);
    let rest = groups.remainder();
    for group in groups {
        for (lane, bytes) in lanes.iter_mut().zip(group.chunks_exact(WORD)) {
            *lane = mix(*lane, word(bytes));
        }
    }
    let hash = rest.chunks(WORD).fold(lanes[0], |hash, bytes| mix(hash, word(bytes)));
    // The upper bits of a word have not reached the lower ones of the product.
    lanes[1..].iter().fold(hash ^ hash >> 32, |hash, lane| mix(hash, lane ^ lane >> 32))
}

/// What there is of the record of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: that of the call before, or of none.
    Nothing,
    /// Its head, and not all of the rest.
    Part(Head),
    Whole(Head),
    /// What is there belongs to neither call, or to none: it is torn, or nonsense.
    Odd,
}

/// Judges the record of call `awaited`, in the place of the one with `before`, by the word at its head. `is_whole` is asked about a
/// record that fits in the place: whether its [`tail`](Head::tail) is that of the bytes that are there.
pub(super) fn look(word: u64, before: u32, awaited: u32, is_whole: impl FnOnce(Head) -> bool) -> Found {
    if word as u32 == before {
        return Found::Nothing;
    }
    match Head::of(word).filter(|head| head.number == awaited) {
        Some(head) if is_whole(head) => Found::Whole(head),
        Some(head) => Found::Part(head),
        None => Found::Odd,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(head: Head, bytes: &[u8], record: &mut [u8]) {
        record[..WORD].copy_from_slice(&head.word().to_le_bytes());
        record[WORD..WORD + bytes.len()].copy_from_slice(bytes);
        let at = tail(bytes.len());
        record[at..at + WORD].copy_from_slice(&head.tail(bytes).to_le_bytes());
    }

    fn word_at(record: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(record[at..at + WORD].try_into().unwrap())
    }

    fn judge(record: &[u8], before: u32, awaited: u32) -> Found {
        look(word_at(record, 0), before, awaited, |head| {
            // The property tests have shorter places than calls have.
            head.len <= 80 && word_at(record, tail(head.len)) == head.tail(&record[WORD..WORD + head.len])
        })
    }

    #[test]
    fn places_are_apart_and_records_fit() {
        let mut starts: Vec<usize> = (0..CALL_SLOTS).flat_map(|slot| [request(slot), rest(slot)]).collect();
        starts.sort_unstable();
        assert_eq!(starts[0], 0);
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= WORD + record(MAX_CALL)));
        assert!(starts[2 * CALL_SLOTS - 1] + WORD + record(MAX_CALL) <= MEMORY);
        assert!(starts.iter().all(|start| start % 64 == 0));
        // Different lines of a page.
        let lines: std::collections::HashSet<usize> = starts.iter().map(|start| start % 4096).collect();
        assert_eq!(lines.len(), 2 * CALL_SLOTS);
    }

    #[test]
    fn numbers_leave_out_zero() {
        assert_eq!([next(0), next(1), next(u32::MAX - 1), next(u32::MAX)], [1, 2, u32::MAX, 1]);
    }

    #[test]
    fn fresh_memory_holds_nothing() {
        assert_eq!(look(0, 0, 1, |_| unreachable!()), Found::Nothing);
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Plain), Just(Kind::Unanswered), Just(Kind::PutOff)]
    }

    proptest! {
        #[test]
        fn heads_come_back(number: u32, kind in kinds(), len in 0..=MAX_CALL) {
            let head = Head { number, kind, len };
            prop_assert_eq!(Head::of(head.word()), Some(head));
            prop_assert_ne!(head.word(), head.tail(&[]));
        }

        #[test]
        fn any_word_is_a_head_that_fits_or_none(word: u64) {
            if let Some(head) = Head::of(word) {
                prop_assert!(head.len <= MAX_CALL);
                prop_assert_eq!(head.word(), word);
            }
        }

        #[test]
        fn no_word_makes_it_look_outside_of_the_place(word: u64, before: u32, awaited: u32) {
            look(word, before, awaited, |head| {
                let at = tail(head.len);
                assert!(at.is_multiple_of(WORD) && at + WORD <= record(MAX_CALL));
                false
            });
        }

        /// Two records one after the other, of the second of which any lines may be missing yet: it is there when all are.
        #[test]
        fn a_record_is_there_in_whatever_order_it_arrives(
            old in prop::collection::vec(any::<u8>(), 0..80),
            new in prop::collection::vec(any::<u8>(), 0..80),
            missing in prop::collection::vec(any::<bool>(), record(80) / WORD),
        ) {
            let head = |number, bytes: &[u8]| Head { number, kind: Kind::Plain, len: bytes.len() };
            let mut memory = vec![0; record(80)];
            encode(head(1, &old), &old, &mut memory);
            let mut whole = memory.clone();
            encode(head(2, &new), &new, &mut whole);
            for (at, missing) in missing.iter().enumerate() {
                let place = at * WORD..(at + 1) * WORD;
                if !missing {
                    memory[place.clone()].copy_from_slice(&whole[place]);
                }
            }
            let same = memory[..record(new.len())] == whole[..record(new.len())];
            prop_assert_eq!(judge(&memory, 1, 2) == Found::Whole(head(2, &new)), same);
        }

        /// Two records one after the other, the second one arriving from its beginning on, byte by byte: it is there when
        /// its last byte is, and never before.
        #[test]
        fn a_record_is_there_when_all_of_it_is(
            before: u32,
            old in prop::collection::vec(any::<u8>(), 0..80),
            new in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let before = before.max(1);
            let awaited = next(before);
            let head = |number, bytes: &[u8]| Head { number, kind: Kind::Plain, len: bytes.len() };
            let mut memory = vec![0; record(80)];
            encode(head(before, &old), &old, &mut memory);
            prop_assert_eq!(judge(&memory, before, awaited), Found::Nothing);
            let mut arriving = memory.clone();
            encode(head(awaited, &new), &new, &mut arriving);
            for arrived in 0..record(new.len()) {
                memory[..arrived].copy_from_slice(&arriving[..arrived]);
                let whole = judge(&memory, before, awaited) == Found::Whole(head(awaited, &new));
                // What is still to come may be there already.
                let same = memory[..record(new.len())] == arriving[..record(new.len())];
                prop_assert_eq!(whole, same, "{} bytes", arrived);
            }
            prop_assert_eq!(judge(&arriving, before, awaited), Found::Whole(head(awaited, &new)));
        }
    }
}
