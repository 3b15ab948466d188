//! The allocator over the server's own arena and two stores, against a set of bytes.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const UNIT: u64 = 10;
const LEN: [u64; 3] = [60, 100, 40];

fn arena() -> Arena {
    let mut arena = Arena::new(LEN[0]);
    assert!(arena.add_store(1, LEN[1], UNIT) && arena.add_store(2, LEN[2], UNIT));
    arena
}

fn place(store: u16, offset: u64) -> u64 {
    DataPlace::new(store, offset).expect("a place").number()
}

fn want(file: u64, need: u64) -> Want {
    Want { need, ahead: 0, hint: None, file, shift: 0 }
}

/// Returns store, offset and length of each range.
fn shown(ranges: &[Range]) -> Vec<(u16, u64, u64)> {
    let split = |range: &Range| {
        let place = DataPlace::from_number(range.start);
        (place.store(), place.offset(), range.len)
    };
    ranges.iter().map(split).collect()
}

fn granted(arena: &mut Arena, want: Want) -> Vec<(u16, u64, u64)> {
    shown(&arena.allocate(&[want]).expect("space")[0])
}

#[test]
fn stores_take_turns_piece_by_piece() {
    let mut arena = arena();
    assert_eq!(granted(&mut arena, want(0, 7)), [(0, 0, 7)], "a small file");
    assert_eq!(granted(&mut arena, want(0, 32)), [(0, 7, 10), (1, 0, 10), (2, 0, 10), (0, 17, 2)]);
    // The file grows: its piece goes on, then the next store has its turn.
    let more = Want { hint: Some(19), ..want(32, 18) };
    assert_eq!(granted(&mut arena, more), [(0, 19, 8), (1, 10, 10)]);
    // At the beginning of a piece the hint does not count.
    let next = Want { hint: Some(place(1, 20)), ahead: 15, ..want(50, 5) };
    assert_eq!(granted(&mut arena, next), [(2, 10, 10), (0, 27, 10)], "space ahead of need, too");
}

#[test]
fn a_full_or_closed_store_is_passed_over() {
    let mut arena = arena();
    arena.set_open(1, false);
    assert_eq!(arena.totals().clean, 100);
    assert_eq!(granted(&mut arena, want(10, 10)), [(2, 0, 10)]);
    let hint = Want { hint: Some(place(1, 5)), ..want(15, 5) };
    assert_eq!(granted(&mut arena, hint), [(2, 10, 5)], "not even where the file goes on");
    assert_eq!(granted(&mut arena, want(0, 85)).iter().map(|range| range.2).sum::<u64>(), 85);
    assert_eq!(arena.allocate(&[want(0, 1)]), Err(Short::Full));
    arena.set_open(1, true);
    assert_eq!(granted(&mut arena, want(0, 12)), [(1, 0, 12)]);
    assert_eq!(arena.clean_by_store(), [(0, 0, true), (1, 88, true), (2, 0, true)]);
}

#[test]
fn the_holders_of_space_in_a_store_are_told() {
    let mut arena = arena();
    let range = |store, offset, len| Range { start: place(store, offset), len };
    arena.allocate(&[want(0, 60)]).expect("space");
    arena.quarantine((7, 3), range(1, 0, 10), &[40, 41]);
    arena.quarantine((7, 5), range(1, 10, 2), &[41]);
    arena.quarantine((8, 2), range(2, 0, 10), &[42]);
    let of = |arena: &Arena, store| arena.holders_in(store).into_iter().collect::<Vec<_>>();
    assert_eq!(of(&arena, 1), [(40, 7, 3), (41, 7, 3), (41, 7, 5)]);
    assert_eq!((of(&arena, 2), of(&arena, 0)), (vec![(42, 8, 2)], vec![]));
    arena.layouts_returned(7, 41, 5);
    assert_eq!(of(&arena, 1), [(40, 7, 3)]);
}

#[test]
fn stores_whose_places_would_touch_others_are_refused() {
    let mut arena = Arena::new(10);
    let add = |arena: &mut Arena, store, len, unit| arena.add_store(store, len, unit);
    assert!(!add(&mut arena, 0, 10, UNIT), "the server's own arena");
    assert!(!add(&mut arena, 1, DataPlace::STORE_LEN, UNIT) && !add(&mut arena, 1, 10, 0));
    assert!(add(&mut arena, 1, 10, UNIT) && !add(&mut arena, 1, 10, UNIT));
    assert_eq!(arena.totals().len, 20);
}

#[test]
fn the_use_of_each_store_is_known() {
    let mut arena = arena();
    arena.set_open(2, false);
    let used = arena.allocate(&[want(0, 30)]).expect("space").concat();
    assert_eq!(shown(&used), [(0, 0, 10), (1, 0, 10), (0, 10, 10)]);
    arena.free(used[0]);
    arena.quarantine((1, 1), used[1], &[7]);
    let usage = |store, len, clean| StoreUsage { store, len, clean, is_open: true, ..StoreUsage::default() };
    let expected = [
        StoreUsage { dirty: 10, ..usage(0, LEN[0], 40) },
        StoreUsage { quarantined: 10, ..usage(1, LEN[1], 90) },
        StoreUsage { is_open: false, ..usage(2, LEN[2], 40) },
    ];
    assert_eq!(arena.usage(), expected);
    assert_eq!(expected.map(|usage| usage.used()), [10, 0, 0]);
}

/// A store that drains or does not answer counts neither with its length nor with its space.
#[test]
fn open_totals_leave_out_stores_that_give_nothing() {
    let mut arena = arena();
    let used = arena.allocate(&[want(0, 30)]).expect("space").concat();
    assert_eq!(shown(&used), [(0, 0, 10), (1, 0, 10), (2, 0, 10)]);
    arena.free(used[1]);
    arena.quarantine((1, 1), used[2], &[7]);
    assert_eq!(arena.open_totals(), arena.totals());
    arena.set_drain(1, true);
    let open = |dirty, quarantined, clean, len| Totals { len, clean, dirty, quarantined };
    assert_eq!(arena.open_totals(), open(0, 10, LEN[0] + LEN[2] - 20, LEN[0] + LEN[2]));
    arena.set_open(2, false);
    assert_eq!(arena.open_totals(), open(0, 0, LEN[0] - 10, LEN[0]));
    assert_eq!([0, 1, 2].map(|at: usize| arena.gives(used[at].start)), [true, false, false]);
    arena.set_drain(1, false);
    assert!(arena.gives(used[1].start));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { file: u64, need: u64, ahead: u64 },
    Free { pick: usize, holder: Option<u64> },
    SessionEnded(u64),
    SetOpen { store: u16, is_open: bool },
    SetDrain { store: u16, drains: bool },
    Remove { store: u16 },
    Forget { store: u16 },
    AddAgain,
    TakeDirty { max: u64 },
    Zeroed { pick: usize, done: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..200u64, 1..60u64, 0..40u64)
            .prop_map(|(file, need, ahead)| Step::Allocate { file, need, ahead }),
        4 => (any::<usize>(), proptest::option::of(1..4u64))
            .prop_map(|(pick, holder)| Step::Free { pick, holder }),
        2 => (1..5u64).prop_map(Step::SessionEnded),
        1 => (1..3u16, any::<bool>()).prop_map(|(store, is_open)| Step::SetOpen { store, is_open }),
        1 => (1..3u16, any::<bool>()).prop_map(|(store, drains)| Step::SetDrain { store, drains }),
        1 => (1..3u16).prop_map(|store| Step::Remove { store }),
        1 => (1..8u16).prop_map(|store| Step::Forget { store }),
        1 => Just(Step::AddAgain),
        3 => (1..50u64).prop_map(|max| Step::TakeDirty { max }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(pick, done)| Step::Zeroed { pick, done }),
    ]
}

/// Extents of files, with the ranges that are being zeroed, and which stores are open.
struct Model {
    used: Vec<Range>,
    zeroing: Vec<Range>,
    bytes: HashSet<u64>,
    /// Number and length of each store, and whether it is open and does not drain.
    stores: Vec<(u16, u64, [bool; 2])>,
    last: u16,
}

impl Model {
    fn gives(&self, store: u16) -> bool {
        let is = |(number, _, gives): &(u16, u64, [bool; 2])| *number == store && *gives == [true; 2];
        store == 0 || self.stores.iter().any(is)
    }

    fn len_of(&self, store: u16) -> Option<u64> {
        let of = |(number, len, _): &(u16, u64, [bool; 2])| (*number == store).then_some(*len);
        if store == 0 { Some(LEN[0]) } else { self.stores.iter().find_map(of) }
    }

    fn set(&mut self, store: u16, which: usize, gives: bool) {
        let of = self.stores.iter_mut().filter(|(number, ..)| *number == store);
        of.for_each(|(_, _, state)| state[which] = gives);
    }

    /// Drops a store with all that files have there.
    fn drop_store(&mut self, store: u16) {
        self.stores.retain(|(number, ..)| *number != store);
        let is_there = |start: u64| DataPlace::from_number(start).store() == store;
        self.bytes.retain(|byte| !is_there(*byte));
    }
}

fn allocate(arena: &mut Arena, model: &mut Model, want: Want) {
    let before = arena.totals();
    let ranges = match arena.allocate(&[want]) {
        Err(Short::Full) => return assert!(want.need > before.available()),
        Err(Short::Dirty) => return assert!(want.need > before.clean && want.need <= before.available()),
        Ok(granted) => granted.concat(),
    };
    let got: u64 = ranges.iter().map(|range| range.len).sum();
    assert!(got >= want.need && got <= want.need + want.ahead, "{got} bytes for {want:?}");
    for range in ranges {
        let [(store, offset, len)] = shown(&[range])[..] else { unreachable!("one range") };
        let end = model.len_of(store).expect("a store of the pool");
        assert!(offset + len <= end, "{range:?} ends in another store");
        assert!(model.gives(store), "{range:?} is in a closed store");
        for byte in range.start..range.end() {
            assert!(model.bytes.insert(byte), "byte {byte:#x} has two owners");
        }
        model.used.push(range);
    }
}

fn apply(arena: &mut Arena, model: &mut Model, step: Step) {
    match step {
        Step::Allocate { file, need, ahead } => {
            allocate(arena, model, Want { need, ahead, hint: None, file, shift: 0 });
        }
        Step::Free { pick, holder } if !model.used.is_empty() => {
            let range = model.used.swap_remove(pick % model.used.len());
            arena.quarantine((1, 1), range, holder.as_slice());
        }
        Step::SessionEnded(session) => arena.session_ended(session),
        Step::SetOpen { store, is_open } => {
            arena.set_open(store, is_open);
            model.set(store, 0, is_open);
        }
        Step::SetDrain { store, drains } => {
            arena.set_drain(store, drains);
            model.set(store, 1, !drains);
        }
        Step::Remove { store } => {
            let is_free = model.bytes.iter().all(|byte| DataPlace::from_number(*byte).store() != store);
            let is_known = model.stores.iter().any(|(number, ..)| *number == store);
            assert_eq!(arena.remove_store(store), is_known && is_free, "{store}");
            if is_known && is_free {
                model.drop_store(store);
            }
        }
        Step::Forget { store } => {
            let is_known = model.stores.iter().any(|(number, ..)| *number == store);
            assert_eq!(arena.forget_store(store), is_known);
            model.drop_store(store);
        }
        Step::AddAgain => {
            model.last += 1;
            assert!(arena.add_store(model.last, 30, UNIT));
            model.stores.push((model.last, 30, [true; 2]));
        }
        Step::TakeDirty { max } => model.zeroing.extend(arena.take_dirty(max)),
        Step::Zeroed { pick, done } if !model.zeroing.is_empty() => {
            let range = model.zeroing.swap_remove(pick % model.zeroing.len());
            match done {
                true => {
                    // The bytes of a store that has gone are no bytes of the model any more.
                    let known = model.len_of(DataPlace::from_number(range.start).store()).is_some();
                    (range.start..range.end()).for_each(|byte| assert_eq!(model.bytes.remove(&byte), known));
                    arena.zeroed(range);
                }
                false => arena.not_zeroed(range, 4),
            }
        }
        Step::Free { .. } | Step::Zeroed { .. } => {}
    }
}

proptest! {
    /// A byte has one owner from its allocation until it was zeroed. It lies in the store that it
    /// was granted from, and comes from an open store. In the end all space is clean.
    #[test]
    fn no_byte_has_two_owners(steps in proptest::collection::vec(step(), 1..150)) {
        let mut arena = arena();
        let stores = vec![(1, LEN[1], [true; 2]), (2, LEN[2], [true; 2])];
        let (used, zeroing) = (vec![], vec![]);
        let mut model = Model { used, zeroing, bytes: HashSet::new(), stores, last: 7 };
        for step in steps {
            apply(&mut arena, &mut model, step);
            let owned = model.bytes.len() as u64;
            let clean: u64 = arena.clean_by_store().iter().map(|(_, bytes, _)| bytes).sum();
            let all = LEN[0] + model.stores.iter().map(|(_, len, _)| len).sum::<u64>();
            prop_assert_eq!((clean + owned, arena.totals().len), (all, all));
        }
        model.used.drain(..).for_each(|range| arena.free(range));
        (1..5).for_each(|session| arena.session_ended(session));
        model.zeroing.drain(..).for_each(|range| arena.zeroed(range));
        while let Some(range) = arena.take_dirty(7) {
            arena.zeroed(range);
        }
        let own = Range { start: 0, len: LEN[0] };
        let lent = model.stores.iter().map(|(store, len, _)| Range { start: place(*store, 0), len: *len });
        let whole = std::iter::once(own).chain(lent);
        prop_assert_eq!(arena.clean.ranges().collect::<Vec<_>>(), whole.collect::<Vec<_>>());
    }
}
