use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use proptest::prelude::*;

use super::*;

/// Who waits is a number here.
type Numbers = Book<u32>;

#[test]
fn half_of_the_slots_are_given_and_a_place_that_comes_back_is_the_next_ones() {
    let mut book = Numbers::default();
    let due = Instant::now();
    for slot in 0..MAX_STARTED {
        assert_eq!(book.ask_for_a_place(&|| unreachable!()), Asked::Now);
        book.begin(slot, due);
    }
    assert_eq!(book.ask_for_a_place(&|| 1), Asked::Later);
    assert_eq!(book.ask_for_a_place(&|| 2), Asked::Later);
    assert_eq!(book.end(3)[..], [1]);
    // It is taken: the one who was told has yet to use it.
    assert_eq!(book.ask_for_a_place(&|| 3), Asked::Later);
    assert_eq!(book.fail()[..], [2, 3]);
    assert_eq!(book.ask_for_a_place(&|| unreachable!()), Asked::Over);
}

#[test]
fn a_call_is_overdue_from_its_time_until_it_ends() {
    let mut book = Numbers::default();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(book.overdue(at(9)), 0);
    for (slot, due) in [(1, 5), (0, 7)] {
        assert_eq!(book.ask_for_a_place(&|| unreachable!()), Asked::Now);
        book.begin(slot, at(due));
    }
    assert_eq!([book.overdue(at(5)), book.overdue(at(6)), book.overdue(at(8))], [0, 0b10, 0b11]);
    book.renew(0, at(9));
    assert_eq!([book.overdue(at(9)), book.overdue(at(10))], [0b10, 0b11]);
    assert!(book.end(1).is_empty());
    // What has ended is not under way again.
    book.renew(1, at(9));
    assert_eq!([book.overdue(at(9)), book.overdue(at(10))], [0, 0b01]);
}

#[test]
fn what_is_under_way_at_the_end_is_lost_and_nothing_else() {
    let mut book = Numbers::default();
    assert_eq!(book.ask_for_a_place(&|| unreachable!()), Asked::Now);
    assert!(book.fail().is_empty());
    assert_eq!(book.ask_for_replies(&|| unreachable!()), Asked::Now);
    // It had its place before.
    book.begin(0, Instant::now());
    assert_eq!(book.ask_for_replies(&|| unreachable!()), Asked::Over);
    assert!(book.end(0).is_empty());
    assert_eq!(book.ask_for_replies(&|| unreachable!()), Asked::Over);
}

/// What the book says, written down at length.
#[derive(Debug, Default)]
struct Model {
    under_way: HashSet<usize>,
    /// Taken, and not begun.
    idle_places: usize,
    for_a_place: VecDeque<u32>,
    for_replies: HashMap<u32, HashSet<usize>>,
}

impl Model {
    /// Those who hear of the end of a slot's call, in no order.
    fn end(&mut self, slot: usize) -> HashSet<u32> {
        self.under_way.remove(&slot);
        let mut told: HashSet<u32> = self.for_a_place.pop_front().into_iter().collect();
        self.idle_places += told.len();
        self.for_replies.retain(|waiter, calls| {
            calls.remove(&slot);
            if calls.is_empty() {
                told.insert(*waiter);
            }
            !calls.is_empty()
        });
        told
    }
}

#[derive(Clone, Debug)]
enum Act {
    Place,
    Replies,
    Begin(usize),
    End(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Place),
        1 => Just(Act::Replies),
        3 => (0..CALL_SLOTS).prop_map(Act::Begin),
        2 => (0..CALL_SLOTS).prop_map(Act::End),
    ]
}

proptest! {
    #[test]
    fn who_waits_hears_when_it_is_so_and_not_before(acts in prop::collection::vec(act(), 0..200)) {
        let (mut book, mut model, due) = (Numbers::default(), Model::default(), Instant::now());
        for (number, act) in (0..).zip(acts) {
            match act {
                Act::Place => {
                    let free = model.under_way.len() + model.idle_places < MAX_STARTED;
                    let asked = book.ask_for_a_place(&|| number);
                    prop_assert_eq!(asked, if free { Asked::Now } else { Asked::Later });
                    if free { model.idle_places += 1 } else { model.for_a_place.push_back(number) }
                }
                Act::Replies => {
                    let none = model.under_way.is_empty();
                    let asked = book.ask_for_replies(&|| number);
                    prop_assert_eq!(asked, if none { Asked::Now } else { Asked::Later });
                    if !none {
                        model.for_replies.insert(number, model.under_way.clone());
                    }
                }
                Act::Begin(slot) if model.idle_places > 0 && !model.under_way.contains(&slot) => {
                    book.begin(slot, due);
                    model.idle_places -= 1;
                    model.under_way.insert(slot);
                }
                Act::End(slot) if model.under_way.contains(&slot) => {
                    let told: HashSet<u32> = book.end(slot).into_iter().collect();
                    prop_assert_eq!(told, model.end(slot));
                }
                Act::Begin(_) | Act::End(_) => {}
            }
            prop_assert!(model.under_way.len() + model.idle_places <= MAX_STARTED);
        }
        let waiting: HashSet<u32> = model.for_a_place.into_iter().chain(model.for_replies.into_keys()).collect();
        prop_assert_eq!(book.fail().into_iter().collect::<HashSet<u32>>(), waiting);
    }
}
