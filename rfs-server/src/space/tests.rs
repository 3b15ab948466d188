pub(crate) mod fake_store;

use std::sync::Arc;

use rdmabox::Memory;
use rfs_proto::{BLOCK, DataPlace};

use self::fake_store::FakeStore;
use super::{
    alloc::{Short, Want},
    lent_memory::{StoreFailure, Unusable},
    *,
};

fn space(len: usize, mode: Zeroing) -> Arc<Space> {
    Arc::new(Space::new(Arc::new(Memory::private(len).unwrap()), mode))
}

fn want(need: u64) -> Want {
    Want { need, ahead: 0, hint: None, file: 0, shift: 0 }
}

fn is_zero(space: &Space, range: Range) -> bool {
    let mut bytes = vec![1; range.len as usize];
    space.bytes().memory().read(range.start as usize, &mut bytes);
    bytes.iter().all(|&byte| byte == 0)
}

fn use_all(space: &Space, len: u64) -> Range {
    let range = space.allocate(&[want(len)]).unwrap()[0][0];
    space.bytes().memory().write(range.start as usize, &vec![0xa5; len as usize]);
    range
}

#[test]
fn inline_mode_cleans_at_once() {
    let space = space(8 << 20, Zeroing::Inline);
    let range = use_all(&space, 8 << 20);
    space.quarantine((1, 1), &[range], &[]);
    assert_eq!(space.allocate(&[want(1)]), Err(Short::Dirty));
    space.tidy();
    assert_eq!(space.totals().clean, 8 << 20);
    assert!(is_zero(&space, range));
}

#[test]
fn little_dirt_is_cleaned_at_once_in_background_mode_too() {
    let space = space(1 << 20, Zeroing::Background);
    let range = use_all(&space, 1 << 20);
    space.quarantine((1, 1), &[range], &[]);
    space.tidy();
    assert_eq!(space.totals().clean, 1 << 20);
    assert!(is_zero(&space, range));
}

#[test]
fn an_allocation_zeroes_the_space_that_it_needs() {
    let space = space(16 << 20, Zeroing::Background);
    let range = use_all(&space, 16 << 20);
    space.quarantine((1, 1), &[range], &[]);
    // No background thread runs, so the allocation zeroes.
    space.tidy();
    assert_eq!(space.totals().clean, 0);
    let got = loop {
        match space.allocate(&[want(6 << 20)]) {
            Ok(got) => break got,
            Err(short) => {
                assert_eq!(short, Short::Dirty);
                space.gain_clean();
            }
        }
    };
    assert!(is_zero(&space, got[0][0]));
    assert_eq!(space.totals().dirty, 8 << 20);
}

#[test]
fn the_background_thread_cleans_and_stops() {
    let space = space(32 << 20, Zeroing::Background);
    let range = use_all(&space, 32 << 20);
    let zeroer = Zeroer::start(&space).unwrap();
    space.quarantine((1, 1), &[range], &[]);
    space.tidy();
    let got = loop {
        match space.allocate(&[want(32 << 20)]) {
            Ok(got) => break got,
            Err(_) => space.gain_clean(),
        }
    };
    assert!(is_zero(&space, got[0][0]));
    drop(zeroer);
    assert_eq!(Arc::strong_count(&space), 1);
}

#[test]
fn released_space_waits_for_the_snapshot_to_copy_it() {
    const M: u64 = 1 << 20;
    let space = space(4 << 20, Zeroing::Inline);
    let whole = use_all(&space, 4 << 20);
    let part = |at: u64| Range { start: whole.start + at * M, len: M };
    let hold = space.hold();
    space.quarantine((1, 1), &[part(0), part(1)], &[]);
    // A session can reach this range, too.
    space.quarantine((1, 1), &[part(2)], &[4]);
    space.tidy();
    assert_eq!((space.totals().clean, space.totals().quarantined), (0, 3 * M));
    assert!(!is_zero(&space, part(0)) && !is_zero(&space, part(1)));
    hold.copied_to(M);
    assert_eq!((space.totals().clean, space.totals().quarantined), (M, 2 * M));
    hold.copied_to(3 * M);
    assert_eq!((space.totals().clean, space.totals().quarantined), (2 * M, M));
    space.note_last_close(1, 4);
    space.tidy();
    assert_eq!((space.totals().clean, space.totals().quarantined), (3 * M, 0));
    space.quarantine((2, 1), &[part(3)], &[]);
    assert_eq!(space.totals().quarantined, M);
    drop(hold);
    assert_eq!((space.totals().clean, space.totals().quarantined), (4 * M, 0));
    assert!(is_zero(&space, whole));
    // Space that was copied before is free at once.
    let whole = use_all(&space, 4 << 20);
    let hold = space.hold();
    hold.copied_to(2 * M);
    space.quarantine((3, 1), &[part(1)], &[]);
    space.tidy();
    assert_eq!((space.totals().clean, space.totals().quarantined), (M, 0));
    space.quarantine((3, 1), &[Range { start: whole.start, len: M }], &[]);
    drop(hold);
    assert_eq!(space.totals().clean, 2 * M);
}

/// Catches bytes of removed files in a snapshot, and missing bytes of files that were there at its
/// moment.
#[test]
fn a_snapshot_copies_only_what_files_have_at_its_moment() {
    const M: u64 = 1 << 20;
    // There is no zeroing thread, so large dirty space stays dirty.
    let space = space(16 << 20, Zeroing::Background);
    let [file, dirty, reached] = [2 * M, 4 * M, 2 * M].map(|len| use_all(&space, len));
    space.quarantine((1, 1), &[dirty], &[]);
    space.quarantine((2, 1), &[reached], &[4]);
    let mut hold = space.hold();
    let [kept, removed] = [0, M].map(|at| Range { start: file.start + at, len: M });
    space.quarantine((3, 1), &[removed], &[5]);
    hold.leave_out_free();
    let all = Range { start: 0, len: 16 << 20 };
    assert_eq!(hold.to_copy(all), [file]);
    space.quarantine((4, 1), &[kept], &[]);
    space.note_last_close(2, 4);
    space.tidy();
    assert_eq!(hold.to_copy(all), [file]);
}

#[test]
fn quarantined_space_comes_back_with_the_lease() {
    let space = space(1 << 20, Zeroing::Inline);
    let range = use_all(&space, 1 << 20);
    space.quarantine((9, 1), &[range], &[4]);
    assert_eq!(space.allocate(&[want(1)]), Err(Short::Full));
    space.note_last_close(9, 4);
    space.tidy();
    assert_eq!(space.totals().clean, 1 << 20);
}

/// After the lock is released, the report could be stale and hide a later release of the same
/// space.
#[test]
fn quarantined_space_is_reported_under_the_lock_and_merged() {
    let space = space(1 << 20, Zeroing::Inline);
    let whole = use_all(&space, 1 << 20);
    let part = |at: u64, len: u64| Range { start: whole.start + at * BLOCK, len: len * BLOCK };
    space.quarantine((7, 1), &[part(3, 1)], &[5, 4]);
    space.quarantine((7, 1), &[part(1, 2)], &[6]);
    space.quarantine((8, 1), &[part(9, 1)], &[4]);
    let _hold = space.hold();
    // Only the snapshot reaches these ranges.
    space.quarantine((8, 1), &[part(10, 1)], &[]);
    space.quarantine((9, 1), &[part(20, 1)], &[]);
    let mut told = Vec::new();
    let tell = |ino, ranges: &[Range], holders: &[u64]| {
        assert!(space.account.is_locked());
        told.push((ino, ranges.to_vec(), holders.to_vec()));
        Ok::<(), ()>(())
    };
    space.tell_quarantined(tell).unwrap();
    told.sort_unstable();
    assert_eq!(told, [(7, vec![part(1, 3)], vec![4, 5, 6]), (8, vec![part(9, 1)], vec![4])]);
}

const STORE: u64 = 4 * BLOCK;

/// Returns a space whose second piece of each file is in a store.
fn space_with_store() -> (Space, Arc<FakeStore>) {
    let store = Arc::new(FakeStore::new(STORE));
    let own = Space::new(Arc::new(Memory::private(4 * BLOCK as usize).unwrap()), Zeroing::Inline);
    let lent = Arc::<FakeStore>::clone(&store);
    (own.with_stores(lent, [(1, STORE)], BLOCK).expect("a space"), store)
}

#[test]
fn bytes_of_a_store_are_moved_and_zeroed_there() {
    let (space, store) = space_with_store();
    let ranges = space.allocate(&[want(2 * BLOCK)]).unwrap().concat();
    let [own, lent] = ranges[..] else { panic!("{ranges:?}") };
    assert_eq!(lent.start, DataPlace::new(1, 0).unwrap().number());
    space.write(own.start, &[7; BLOCK as usize], false).unwrap();
    space.copy(own, lent.start, &mut Vec::new()).unwrap();
    assert_eq!(store.bytes.lock()[..BLOCK as usize], [7; BLOCK as usize]);
    space.zero(Range { len: BLOCK - 1, ..lent }).unwrap();
    assert_eq!(space.is_zero(lent), Ok(false));
    space.zero(lent).unwrap();
    assert_eq!((space.is_zero(lent), space.is_zero(own)), (Ok(true), Ok(false)));
}

#[test]
fn space_of_a_store_that_does_not_answer_waits_until_it_is_back() {
    let (space, store) = space_with_store();
    let ranges = space.allocate(&[want(2 * BLOCK)]).unwrap().concat();
    space.write(ranges[1].start, &[7; BLOCK as usize], false).unwrap();
    store.set_up(false);
    space.close_store(1);
    let failure = Err(StoreFailure(1));
    assert_eq!((space.zero(ranges[1]), space.is_zero(ranges[1])), (failure, Err(StoreFailure(1))));
    let copied = space.copy(ranges[0], ranges[1].start, &mut Vec::new());
    assert_eq!(copied, Err(Unusable::Store(StoreFailure(1))));
    space.quarantine((1, 1), &ranges, &[]);
    space.tidy();
    // No thread tries for ever, and no file gets space of the store.
    assert_eq!((space.totals().clean, space.totals().dirty), (4 * BLOCK, 0));
    assert_eq!(space.totals().quarantined, BLOCK);
    assert_eq!(space.allocate(&[want(5 * BLOCK)]), Err(Short::Full));
    store.set_up(true);
    space.open_store(1);
    assert_eq!((space.totals().clean, space.totals().quarantined), (8 * BLOCK, 0));
    assert_eq!(space.is_zero(ranges[1]), Ok(true));
}

/// Catches space that is used again while a write may arrive there late, and space that never comes
/// back.
#[test]
fn space_of_a_store_in_doubt_waits_for_the_end_of_each_access() {
    let (space, store) = space_with_store();
    let ranges = space.allocate(&[want(4 * BLOCK)]).unwrap().concat();
    let [own, lent] = [0, 1].map(|store| {
        let is_there = |range: &Range| DataPlace::from_number(range.start).store() == store;
        ranges.iter().copied().filter(is_there).collect::<Vec<_>>()
    });
    let (before, after) = lent.split_at(1);
    let held = |bytes: u64| assert_eq!(space.totals().quarantined, bytes);
    // It is in quarantine before the doubt, and its holder lets it go afterwards.
    space.quarantine((1, 1), before, &[7]);
    store.set_up(false);
    assert!(space.doubt(1, 7) && !space.doubt(1, 7) && space.doubt(0, 8) && !space.doubt(2, 7));
    space.end_doubts();
    space.note_last_close(1, 7);
    space.quarantine((1, 1), after, &[]);
    space.quarantine((1, 1), &own, &[]);
    held(2 * BLOCK);
    store.set_up(true);
    space.open_store(1);
    held(2 * BLOCK);
    space.end_doubts();
    held(0);
    space.tidy();
    assert_eq!(space.totals().clean, 8 * BLOCK);
    // Space that is given up later is free at once.
    let ranges = space.allocate(&[want(4 * BLOCK)]).unwrap().concat();
    space.quarantine((1, 1), &ranges, &[]);
    held(0);
}

fn pages(space: &Space) -> u64 {
    let fd = space.bytes().memory().fd().unwrap().try_clone_to_owned().unwrap();
    std::os::unix::fs::MetadataExt::blocks(&std::fs::File::from(fd).metadata().unwrap()) * 512
}

fn resized(space: &Space, len: u64) -> Result<u64, TooSmall> {
    space.resize(len, |_| Ok(()))
}

/// Catches memory that stays after a shrinking, and a size below the space in use.
#[test]
fn shrinking_zeroes_what_is_dirty_and_returns_its_memory() {
    const MIB: u64 = 1 << 20;
    let space = Space::new(Arc::new(Memory::shared("test", 16 << 20).unwrap()), Zeroing::Background);
    let [kept, freed] = [use_all(&space, 4 * MIB), use_all(&space, 8 * MIB)];
    space.quarantine((1, 1), &[freed], &[]);
    assert_eq!(pages(&space), 12 * MIB);
    let too_small = Err(TooSmall { least: 4 * MIB, quarantined: 0 });
    assert_eq!(resized(&space, 4 * MIB - BLOCK), too_small);
    assert_eq!(space.own_len(), 16 * MIB);
    assert_eq!(resized(&space, 4 * MIB), Ok(16 * MIB));
    assert_eq!((pages(&space), space.totals().len, space.totals().clean), (4 * MIB, 4 * MIB, 0));
    assert_eq!(space.allocate(&[want(1)]), Err(Short::Full));
    space.populate(Range { start: 0, len: 16 * MIB });
    assert_eq!(pages(&space), 4 * MIB, "withdrawn memory stays with the system");
    assert_eq!(space.hold().to_copy(Range { start: 0, len: 16 * MIB }), [kept]);
    // A session can reach the space, so it is no space that can go.
    space.quarantine((1, 1), &[kept], &[7]);
    assert_eq!(resized(&space, MIB), Err(TooSmall { least: 4 * MIB, quarantined: 4 * MIB }));
    space.note_last_close(1, 7);
    assert_eq!(resized(&space, MIB), Ok(4 * MIB));
    assert_eq!(resized(&space, 0), Ok(MIB));
    assert_eq!((pages(&space), space.totals().len), (0, 0));
}

/// Catches memory that is given to files although it could not be reserved.
#[test]
fn growing_reserves_before_it_gives() {
    const MIB: u64 = 1 << 20;
    let space = Space::new(Arc::new(Memory::shared("test", 16 << 20).unwrap()), Zeroing::Background);
    resized(&space, 2 * MIB).unwrap();
    let reserve = |ranges: &[Range], is_enough: bool| {
        ranges.iter().for_each(|&range| space.reserve_range(range).unwrap());
        assert_eq!(ranges, [Range { start: 2 * MIB, len: 4 * MIB }]);
        is_enough.then_some(()).ok_or(TooSmall { least: 7, quarantined: 0 })
    };
    let refused = space.resize(6 * MIB, |ranges| reserve(ranges, false));
    assert_eq!(refused, Err(TooSmall { least: 7, quarantined: 0 }));
    assert_eq!((pages(&space), space.own_len(), space.totals().clean), (0, 2 * MIB, 2 * MIB));
    assert_eq!(space.resize(6 * MIB, |ranges| reserve(ranges, true)), Ok(2 * MIB));
    assert_eq!((pages(&space), space.totals().clean), (4 * MIB, 6 * MIB));
    let all = space.allocate(&[want(6 * MIB)]).unwrap()[0][0];
    assert!(is_zero(&space, all));
    assert!(resized(&space, 17 * MIB).is_err());
}
