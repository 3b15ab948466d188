//! Layout of a session's memory for calls by fetching.
//!
//! Each slot has one record for requests and one for answers. A record is a head, the bytes, and
//! an 8-byte aligned tail. The head holds the call's number in its slot, and the tail is a
//! checksum of head and bytes. Devices, sockets and `memcpy` copy in any order, so a record
//! counts as complete only if its tail matches.
//!
//! A word in front of a slot's answer tells whether the host polls, so that a READ of the answer
//! includes it. A client that has mapped the memory publishes its core behind the first request. A
//! client that wants replies WRITTEN to its own memory publishes where that is behind the core. Its
//! memory has one answer for each slot, at the same distances.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use crate::rpc::message::{CALL_SLOTS, MAX_CALL};

/// Length of a head, a tail and a sleep word, in bytes.
pub(super) const WORD: usize = 8;
/// Distance between two slots in bytes: whole cache lines, but not whole pages. With whole pages,
/// the first lines of all slots would share a cache set.
const SLOT_STRIDE: usize = (3 * WORD + MAX_CALL).next_multiple_of(64);
const _: () = assert!(!SLOT_STRIDE.is_multiple_of(4096));
/// Length of a session's memory, in bytes.
pub(crate) const MEMORY: usize = 2 * CALL_SLOTS * SLOT_STRIDE;
/// Offset of the word in which a client on this host publishes the core of its last call, plus
/// one. 0 means unknown.
pub(super) const CORE: usize = request(0) + record(MAX_CALL);
/// Offset of the address, and of the key behind it, of the client's memory for answers. A key with
/// [`HAS_KEY`] is valid.
pub(super) const REPLY_ADDR: usize = CORE + WORD;
pub(super) const REPLY_KEY: usize = REPLY_ADDR + WORD;
const _: () = assert!(REPLY_KEY + WORD <= SLOT_STRIDE);
/// Bit of the word at [`REPLY_KEY`], whose lower 32 bits are the key.
pub(super) const HAS_KEY: u64 = 1 << 32;
/// Length of a client's memory for answers, in bytes.
pub(super) const REPLY_MEMORY: usize = CALL_SLOTS * SLOT_STRIDE;

/// Sleep word while the host does not poll: the client has to notify it. The initial value.
pub(super) const ASLEEP: u64 = 0;
/// Sleep word while the host polls.
pub(super) const AWAKE: u64 = 1;

/// Returns the offset of a slot's request.
pub(super) const fn request(slot: usize) -> usize {
    slot * SLOT_STRIDE
}

/// Returns the offset of a slot's sleep word, in front of its answer.
pub(super) const fn sleep_word(slot: usize) -> usize {
    (CALL_SLOTS + slot) * SLOT_STRIDE
}

/// Returns the offset of a slot's answer.
pub(super) const fn answer(slot: usize) -> usize {
    sleep_word(slot) + WORD
}

/// Returns the offset of a slot's answer in the client's memory.
pub(super) const fn own_answer(slot: usize) -> usize {
    slot * SLOT_STRIDE
}

/// Returns the offset of the tail in a record of `len` bytes.
pub(super) const fn tail(len: usize) -> usize {
    WORD + len.next_multiple_of(WORD)
}

/// Returns the length of a record of `len` bytes.
pub(super) const fn record(len: usize) -> usize {
    tail(len) + WORD
}

/// Returns the number of the next call in a slot. 0 is skipped, because fresh memory holds it.
pub(super) fn next(number: u32) -> u32 {
    number.wrapping_add(1).max(1)
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) enum Kind {
    /// A request, or a reply.
    Plain = 0,
    /// An answer: the service has given up the call without a reply.
    Unanswered = 1,
    /// In place of an answer: the reply is deferred, so polling is pointless.
    Deferred = 2,
    /// An answer: the service has refused the call. The bytes are the reason.
    Rejected = 3,
}

/// The first word of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of the call in its slot.
    pub number: u32,
    pub kind: Kind,
    /// Number of bytes that follow.
    pub len: usize,
}

/// The upper 32 bits of the word hold the kind and, in their lower 24 bits, the length.
const LEN_BITS: u32 = 24;
const _: () = assert!(MAX_CALL < 1 << LEN_BITS);

impl Head {
    pub(super) fn word(self) -> u64 {
        u64::from(self.number) | (self.len as u64 | (self.kind as u64) << LEN_BITS) << 32
    }

    /// Returns the tail of the record with this head and `bytes`.
    pub(super) fn tail(self, bytes: &[u8]) -> u64 {
        !(self.word() ^ check(bytes))
    }

    /// Decodes a head. Returns `None` for an invalid word.
    pub(super) fn of(word: u64) -> Option<Head> {
        let rest = word >> 32;
        let kind = match rest >> LEN_BITS {
            0 => Kind::Plain,
            1 => Kind::Unanswered,
            2 => Kind::Deferred,
            3 => Kind::Rejected,
            _ => return None,
        };
        let len = (rest & ((1 << LEN_BITS) - 1)) as usize;
        (len <= MAX_CALL).then_some(Head { number: word as u32, kind, len })
    }
}

/// Returns a checksum that changes with any word: FNV-1a by words in four lanes, cheaper than a
/// copy. 0 for no bytes.
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
    // The upper bits of a word have not reached the lower bits of the product.
    lanes[1..].iter().fold(hash ^ hash >> 32, |hash, lane| mix(hash, lane ^ lane >> 32))
}

/// The state of a call's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordState {
    /// The record of the previous call, or none.
    Nothing,
    /// The head is there, but the rest is incomplete.
    Partial(Head),
    Complete(Head),
    /// The head belongs to no expected call: torn or invalid.
    Malformed,
}

/// Classifies the record of call `awaited` by its head. The place held the record of call
/// `before`. `is_whole` returns true if the [`tail`](Head::tail) of a record that fits matches
/// the bytes.
pub(super) fn classify(
    word: u64,
    before: u32,
    awaited: u32,
    is_whole: impl FnOnce(Head) -> bool,
) -> RecordState {
    if word as u32 == before {
        return RecordState::Nothing;
    }
    match Head::of(word).filter(|head| head.number == awaited) {
        Some(head) if is_whole(head) => RecordState::Complete(head),
        Some(head) => RecordState::Partial(head),
        None => RecordState::Malformed,
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

    fn judge(record: &[u8], before: u32, awaited: u32) -> RecordState {
        classify(word_at(record, 0), before, awaited, |head| {
            // The property tests use shorter slots than calls.
            head.len <= 80 && word_at(record, tail(head.len)) == head.tail(&record[WORD..WORD + head.len])
        })
    }

    #[test]
    fn slots_do_not_overlap_and_records_fit() {
        let mut starts: Vec<usize> =
            (0..CALL_SLOTS).flat_map(|slot| [request(slot), sleep_word(slot)]).collect();
        starts.sort_unstable();
        assert_eq!(starts[0], 0);
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= WORD + record(MAX_CALL)));
        assert!(starts[2 * CALL_SLOTS - 1] + WORD + record(MAX_CALL) <= MEMORY);
        assert!(starts.iter().all(|start| start % 64 == 0));
        // The slots start on different lines of a page.
        let lines: std::collections::HashSet<usize> = starts.iter().map(|start| start % 4096).collect();
        assert_eq!(lines.len(), 2 * CALL_SLOTS);
    }

    #[test]
    fn call_numbers_skip_zero() {
        assert_eq!([next(0), next(1), next(u32::MAX - 1), next(u32::MAX)], [1, 2, u32::MAX, 1]);
    }

    #[test]
    fn fresh_memory_holds_nothing() {
        assert_eq!(classify(0, 0, 1, |_| unreachable!()), RecordState::Nothing);
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Plain), Just(Kind::Unanswered), Just(Kind::Deferred), Just(Kind::Rejected)]
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
        fn no_word_makes_classify_read_outside_the_slot(word: u64, before: u32, awaited: u32) {
            classify(word, before, awaited, |head| {
                let at = tail(head.len);
                assert!(at.is_multiple_of(WORD) && at + WORD <= record(MAX_CALL));
                false
            });
        }

        /// A record replaces another, with any of its words missing. It is complete exactly if no
        /// word is missing.
        #[test]
        fn a_record_is_complete_in_any_order_of_arrival(
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
            prop_assert_eq!(judge(&memory, 1, 2) == RecordState::Complete(head(2, &new)), same);
        }

        /// A record replaces another byte by byte. It is complete exactly if the last byte has
        /// arrived.
        #[test]
        fn a_record_is_complete_when_all_of_it_has_arrived(
            before: u32,
            old in prop::collection::vec(any::<u8>(), 0..80),
            new in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let before = before.max(1);
            let awaited = next(before);
            let head = |number, bytes: &[u8]| Head { number, kind: Kind::Plain, len: bytes.len() };
            let mut memory = vec![0; record(80)];
            encode(head(before, &old), &old, &mut memory);
            prop_assert_eq!(judge(&memory, before, awaited), RecordState::Nothing);
            let mut arriving = memory.clone();
            encode(head(awaited, &new), &new, &mut arriving);
            for arrived in 0..record(new.len()) {
                memory[..arrived].copy_from_slice(&arriving[..arrived]);
                let whole = judge(&memory, before, awaited) == RecordState::Complete(head(awaited, &new));
                // The missing bytes may be equal to the old ones.
                let same = memory[..record(new.len())] == arriving[..record(new.len())];
                prop_assert_eq!(whole, same, "{} bytes", arrived);
            }
            prop_assert_eq!(judge(&arriving, before, awaited), RecordState::Complete(head(awaited, &new)));
        }
    }
}
