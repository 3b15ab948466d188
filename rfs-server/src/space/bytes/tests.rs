use proptest::prelude::*;

use super::*;

const B: u64 = BLOCK;
const BLOCKS: u64 = 4;

fn bytes() -> Bytes {
    let words = Memory::private(checksum::region_len(BLOCKS * B) as usize).unwrap();
    Bytes::new(Arc::new(Memory::private((BLOCKS * B) as usize).unwrap()), Some(Arc::new(words)))
}

fn all() -> Range {
    Range { start: 0, len: BLOCKS * B }
}

fn flip(bytes: &Bytes, at: u64) {
    let mut byte = [0];
    bytes.arena.read(at as usize, &mut byte);
    bytes.arena.write(at as usize, &[byte[0] ^ 1]);
}

fn bad_blocks(bytes: &Bytes) -> Vec<u64> {
    bytes.bad(all()).iter().map(|bad| bad.place / B).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Zero(u64, u64),
    Write(u64, Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    // Prefers offsets at block edges.
    let place = || prop_oneof![0..BLOCKS * B, (0..BLOCKS, 0..3u64).prop_map(|(b, at)| b * B + at)];
    let len = prop_oneof![1..3 * B, Just(B), Just(2 * B)];
    prop_oneof![
        (place(), len.clone()).prop_map(|(at, len)| Step::Zero(at, len.min(BLOCKS * B - at))),
        (place(), len, any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write(at, vec![byte; len.min(BLOCKS * B - at) as usize])),
    ]
}

proptest! {
    /// A checksum word is not updated, or is updated for other bytes.
    #[test]
    fn every_change_leaves_words_that_fit(steps in prop::collection::vec(step(), 1..30)) {
        let bytes = bytes();
        let mut model = vec![0; (BLOCKS * B) as usize];
        for step in steps {
            match step {
                Step::Zero(at, len) => {
                    bytes.zero(Range { start: at, len });
                    model[at as usize..(at + len) as usize].fill(0);
                }
                Step::Write(at, data) => {
                    bytes.write(at, &data, false).unwrap();
                    model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                }
            }
            prop_assert_eq!(bytes.bad(all()), vec![]);
        }
        let mut there = Vec::new();
        bytes.read(all(), &mut there).unwrap();
        prop_assert!(there == model);
    }

    /// A partial change must not make a bad block valid.
    #[test]
    fn a_bad_block_stays_bad_until_it_is_written_as_a_whole(
        flipped in 0..B, (from, len) in (0..B, 1..B),
    ) {
        let bytes = bytes();
        bytes.write(0, &[7; 3 * B as usize], false).unwrap();
        flip(&bytes, B + flipped);
        prop_assert_eq!(bad_blocks(&bytes), [1]);
        let len = len.min(B - from);
        bytes.zero(Range { start: B + from, len });
        prop_assert_eq!(bad_blocks(&bytes), [1]);
        let refused = bytes.write(B + from, &vec![1; len as usize], false);
        prop_assert_eq!(refused.unwrap_err().place, B);
        prop_assert_eq!(bytes.read(Range { start: B + from, len }, &mut Vec::new()).unwrap_err().place, B);
        prop_assert_eq!(bad_blocks(&bytes), [1]);
        bytes.write(B, &[1; B as usize], false).unwrap();
        prop_assert_eq!(bytes.bad(all()), vec![]);
    }
}

#[test]
fn a_write_up_to_the_end_replaces_a_bad_block() {
    let bytes = bytes();
    bytes.write(B, &[7; 100], false).unwrap();
    flip(&bytes, 2 * B - 1);
    // Only a write from the block's first byte on replaces all of it.
    assert!(bytes.write(B + 1, &[8; 99], true).is_err());
    assert!(bytes.write(B, &[8; 100], false).is_err());
    bytes.write(B, &[8; 100], true).unwrap();
    assert_eq!(bytes.bad(all()), []);
    let mut there = Vec::new();
    bytes.read(Range { start: B, len: B }, &mut there).unwrap();
    assert!(there[..100] == [8; 100] && there[100..].iter().all(|&byte| byte == 0));
}

#[test]
fn zeroing_a_whole_block_makes_it_valid() {
    let bytes = bytes();
    bytes.write(0, &[7; 2 * B as usize], false).unwrap();
    flip(&bytes, 5);
    flip(&bytes, 3 * B);
    bytes.zero(all());
    assert_eq!(bytes.bad(all()), []);
}

#[test]
fn a_write_reports_the_bad_block_and_leaves_later_blocks() {
    let bytes = bytes();
    bytes.write(0, &[7; 4 * B as usize], false).unwrap();
    flip(&bytes, 2 * B + 100);
    // The first block in part, the second as a whole, the third in part.
    let bad = bytes.write(10, &[9; 2 * B as usize], false).unwrap_err();
    assert_eq!((bad.place, bad.expected), (2 * B, check(&[7; B as usize])));
    let mut there = Vec::new();
    bytes.read(Range { start: 0, len: 2 * B }, &mut there).unwrap();
    assert!(there[..10] == [7; 10] && there[10..].iter().all(|&byte| byte == 9));
}

/// The server is killed while it changes blocks.
#[test]
fn only_open_words_are_settled() {
    let bytes = bytes();
    bytes.write(0, &[7; 3 * B as usize], false).unwrap();
    let words = bytes.words.as_deref().unwrap();
    store(words, B, load(words, B).opened());
    flip(&bytes, B);
    flip(&bytes, 2 * B);
    assert_eq!(bad_blocks(&bytes), [1, 2]);
    assert_eq!(bytes.settle(), Settled { open: 1, unknown: 1, places: vec![B] });
    // A damaged block at rest stays bad.
    assert_eq!(bad_blocks(&bytes), [2]);
    assert_eq!(bytes.settle(), Settled::default());
}

/// A word that lost a bit at rest still matches its block, so it does not count as unknown. A block
/// that is neither old nor zero is listed.
#[test]
fn an_open_block_that_is_unchanged_or_zero_is_not_unknown() {
    let bytes = bytes();
    bytes.write(0, &[7; 4 * B as usize], false).unwrap();
    let words = bytes.words.as_deref().unwrap();
    for block in 0..3 {
        store(words, block * B, load(words, block * B).opened());
    }
    bytes.arena.zero(B as usize, B as usize);
    flip(&bytes, 2 * B + 9);
    assert_eq!(bytes.settle(), Settled { open: 3, unknown: 1, places: vec![2 * B] });
    assert_eq!(bytes.bad(all()), []);
}

/// Only the first few of many unknown blocks are listed.
#[test]
fn the_list_of_unknown_blocks_is_limited() {
    let len = 40 * B;
    let words = Memory::private(checksum::region_len(len) as usize).unwrap();
    let bytes = Bytes::new(Arc::new(Memory::private(len as usize).unwrap()), Some(Arc::new(words)));
    let words = bytes.words.as_deref().unwrap();
    for block in 0..40 {
        store(words, block * B, load(words, block * B).opened());
        flip(&bytes, block * B);
    }
    let settled = bytes.settle();
    assert_eq!((settled.open, settled.unknown, settled.places.len()), (40, 40, NAMED));
}

#[test]
fn a_block_is_open_while_it_changes() {
    let bytes = bytes();
    let version = |block| load(bytes.words.as_deref().unwrap(), block).version();
    bytes.write(0, &[1; 10], false).unwrap();
    assert_eq!([version(0), version(B)], [2, 0]);
    bytes.zero(Range { start: 5, len: 5 });
    bytes.zero(all());
    assert_eq!([version(0), version(B)], [6, 0]);
    // The word stands for zeroes.
    bytes.zero(all());
    assert_eq!(version(0), 6);
}

/// Copies of a half-written block and of a bad block.
#[test]
fn a_torn_copy_is_repaired_and_bad_blocks_are_reported() {
    let bytes = bytes();
    bytes.write(0, &[7; 4 * B as usize], false).unwrap();
    let mut copy = vec![7; 3 * B as usize];
    copy[B as usize..][..9].fill(1);
    flip(&bytes, 3 * B);
    assert_eq!(bytes.mend(0, &mut copy), []);
    assert!(copy.iter().all(|&byte| byte == 7));
    let mut copy = vec![6; 2 * B as usize];
    let bad = bytes.mend(2 * B, &mut copy);
    let expected = check(&[7; B as usize]);
    assert_eq!(bad, [Bad { place: 3 * B, expected, found: check(&copy[B as usize..]) }]);
    assert_eq!(copy[..B as usize + 2], [&[7; B as usize][..], &[6, 7]].concat());
    // In other memory, where the block would get a matching checksum.
    let other = self::bytes();
    other.write(2 * B, &copy, true).unwrap();
    other.expect(3 * B, expected);
    assert_eq!(other.bad(all()), bad);
}

/// Without this check, a copy of a block with an open word or a damaged version would be valid in
/// the snapshot.
#[test]
fn a_copy_of_a_block_that_stays_open_is_bad_unless_it_is_unchanged() {
    let bytes = bytes();
    bytes.write(0, &[7; 4 * B as usize], false).unwrap();
    let words = bytes.words.as_deref().unwrap();
    for block in 1..3 {
        store(words, block * B, load(words, block * B).opened());
    }
    flip(&bytes, 2 * B + 5);
    let mut copy = vec![0; 4 * B as usize];
    bytes.arena.read(0, &mut copy);
    let bad = bytes.mend(0, &mut copy);
    let found = check(&copy[2 * B as usize..3 * B as usize]);
    assert_eq!(bad, [Bad { place: 2 * B, expected: check(&[7; B as usize]), found }]);
}

/// Longer than the rereads without a pause take.
#[test]
fn a_copy_waits_for_the_writer_of_the_block() {
    let bytes = bytes();
    let words = bytes.words.as_deref().unwrap();
    bytes.write(0, &[7; B as usize], false).unwrap();
    store(words, 0, load(words, 0).opened());
    flip(&bytes, 5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(20 * PAUSE);
            bytes.write(0, &[8; B as usize], false).unwrap();
        });
        let mut copy = vec![0; B as usize];
        assert_eq!(bytes.mend(0, &mut copy), []);
        assert!(copy == [8; B as usize]);
    });
}

/// A read of memory that was never written allocates no page.
#[test]
fn a_read_does_not_allocate_untouched_pages() {
    let arena = Arc::new(Memory::shared("never-touched", (BLOCKS * B) as usize).unwrap());
    let words = Memory::private(checksum::region_len(BLOCKS * B) as usize).unwrap();
    let bytes = Bytes::new(Arc::clone(&arena), Some(Arc::new(words)));
    let words = bytes.words.as_deref().unwrap();
    let present = || rustix::fs::fstat(arena.fd().unwrap()).unwrap().st_blocks;
    store(words, B, load(words, B).opened());
    assert_eq!(bytes.settle().open, 1);
    assert_eq!(bytes.bad(all()), []);
    bytes.read(all(), &mut Vec::new()).unwrap();
    bytes.zero(Range { start: 10, len: 3 * B });
    assert_eq!(present(), 0);
    // The data is verified nevertheless.
    flip(&bytes, 2 * B);
    assert_eq!(bad_blocks(&bytes), [2]);
    assert!(present() > 0);
}
