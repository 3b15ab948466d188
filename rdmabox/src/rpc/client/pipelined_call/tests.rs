use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use proptest::prelude::*;

use super::*;

/// Waiters are numbers in these tests.
type Numbers = CallTable<u32>;

#[test]
fn half_of_the_slots_are_given_and_a_returned_place_goes_to_the_next_waiter() {
    let mut table = Numbers::default();
    let due = Instant::now();
    for slot in 0..MAX_STARTED {
        assert_eq!(table.request_place(&|| unreachable!()), Availability::Now);
        table.begin(slot, due);
    }
    assert_eq!(table.request_place(&|| 1), Availability::Wait);
    assert_eq!(table.request_place(&|| 2), Availability::Wait);
    assert_eq!(table.end(3)[..], [1]);
    // The notified waiter owns the place, although it has not used it yet.
    assert_eq!(table.request_place(&|| 3), Availability::Wait);
    assert_eq!(table.fail()[..], [2, 3]);
    assert_eq!(table.request_place(&|| unreachable!()), Availability::Closed);
}

#[test]
fn a_call_is_overdue_from_its_time_until_it_ends() {
    let mut table = Numbers::default();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(table.overdue(at(9)), 0);
    for (slot, due) in [(1, 5), (0, 7)] {
        assert_eq!(table.request_place(&|| unreachable!()), Availability::Now);
        table.begin(slot, at(due));
    }
    assert_eq!([table.overdue(at(5)), table.overdue(at(6)), table.overdue(at(8))], [0, 0b10, 0b11]);
    table.extend_deadline(0, at(9));
    assert_eq!([table.overdue(at(9)), table.overdue(at(10))], [0b10, 0b11]);
    assert!(table.end(1).is_empty());
    // A finished call cannot get a new deadline.
    table.extend_deadline(1, at(9));
    assert_eq!([table.overdue(at(9)), table.overdue(at(10))], [0, 0b01]);
}

#[test]
fn only_calls_in_flight_at_the_end_are_lost() {
    let mut table = Numbers::default();
    assert_eq!(table.request_place(&|| unreachable!()), Availability::Now);
    assert!(table.fail().is_empty());
    assert_eq!(table.request_replies(&|| unreachable!()), Availability::Now);
    // It got its place before the end.
    table.begin(0, Instant::now());
    assert_eq!(table.request_replies(&|| unreachable!()), Availability::Closed);
    assert!(table.end(0).is_empty());
    assert_eq!(table.request_replies(&|| unreachable!()), Availability::Closed);
}

/// A naive model of the call table.
#[derive(Debug, Default)]
struct Model {
    in_flight: HashSet<usize>,
    /// Places taken by calls that have not begun.
    idle_places: usize,
    place_waiters: VecDeque<u32>,
    reply_waiters: HashMap<u32, HashSet<usize>>,
}

impl Model {
    /// Returns the waiters that the end of a slot's call releases, in no order.
    fn end(&mut self, slot: usize) -> HashSet<u32> {
        self.in_flight.remove(&slot);
        let mut released: HashSet<u32> = self.place_waiters.pop_front().into_iter().collect();
        self.idle_places += released.len();
        self.reply_waiters.retain(|waiter, calls| {
            calls.remove(&slot);
            if calls.is_empty() {
                released.insert(*waiter);
            }
            !calls.is_empty()
        });
        released
    }
}

#[derive(Clone, Debug)]
enum Action {
    Place,
    Replies,
    Begin(usize),
    End(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::Place),
        1 => Just(Action::Replies),
        3 => (0..CALL_SLOTS).prop_map(Action::Begin),
        2 => (0..CALL_SLOTS).prop_map(Action::End),
    ]
}

proptest! {
    #[test]
    fn waiters_are_released_exactly_when_their_condition_holds(acts in prop::collection::vec(action(), 0..200)) {
        let (mut table, mut model, due) = (Numbers::default(), Model::default(), Instant::now());
        for (number, action) in (0..).zip(acts) {
            match action {
                Action::Place => {
                    let free = model.in_flight.len() + model.idle_places < MAX_STARTED;
                    let availability = table.request_place(&|| number);
                    prop_assert_eq!(availability, if free { Availability::Now } else { Availability::Wait });
                    if free { model.idle_places += 1 } else { model.place_waiters.push_back(number) }
                }
                Action::Replies => {
                    let none = model.in_flight.is_empty();
                    let availability = table.request_replies(&|| number);
                    prop_assert_eq!(availability, if none { Availability::Now } else { Availability::Wait });
                    if !none {
                        model.reply_waiters.insert(number, model.in_flight.clone());
                    }
                }
                Action::Begin(slot) if model.idle_places > 0 && !model.in_flight.contains(&slot) => {
                    table.begin(slot, due);
                    model.idle_places -= 1;
                    model.in_flight.insert(slot);
                }
                Action::End(slot) if model.in_flight.contains(&slot) => {
                    let released: HashSet<u32> = table.end(slot).into_iter().collect();
                    prop_assert_eq!(released, model.end(slot));
                }
                Action::Begin(_) | Action::End(_) => {}
            }
            prop_assert!(model.in_flight.len() + model.idle_places <= MAX_STARTED);
        }
        let waiting: HashSet<u32> = model.place_waiters.into_iter().chain(model.reply_waiters.into_keys()).collect();
        prop_assert_eq!(table.fail().into_iter().collect::<HashSet<u32>>(), waiting);
    }
}
