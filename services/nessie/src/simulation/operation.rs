//! Any machine, with a result that a history records.

use crate::logic::{
    context::Context,
    operations::{
        delete::Delete,
        get::{Get, Got},
        migrate::{Migrate, Migrated, Move},
        put::{Leftover, Put, PutMachine, Repair},
    },
    placement::Placement,
    verb::{Answer, Failure, Step, Verb},
    word::Content,
};

use super::{
    history::Event,
    world::{Table, UnderWay, World, number_of, value_of},
};

/// Reads the words that a MIGRATE between two ranks of a key needs. `None` if the source does not
/// have the key, the destination is not empty, or a node is lost.
pub(super) fn plan_move(world: &mut World, table: &Table, key: u8, from: usize, to: usize) -> Option<Move> {
    let place = table.place(&[key]);
    if place.slots.iter().any(|slot| world.is_lost(slot.node)) {
        return None;
    }
    let words = world.words(&place.slots);
    let Ok(Content::Entry { entry, filter }) = words[from].content(table.fields()) else { return None };
    if words[to].content(table.fields()) != Ok(Content::Empty) || filter != place.filter {
        return None;
    }
    let verb = Verb::ReadEntry { slot: place.slots[from], word: words[from], entry };
    let Answer::Entry(read) = UnderWay::new(verb, None, |_| {}).finish(world) else { return None };
    Some(Move {
        source: place.slots[from],
        source_word: words[from],
        source_entry: entry,
        entry: read,
        destination: place.slots[to],
        destination_word: words[to],
        filter,
    })
}

/// The operation for a client. Keys are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    Get(u8),
    Put(u8, u64),
    Delete(u8),
}

impl Order {
    pub(super) fn key(self) -> u8 {
        match self {
            Order::Get(key) | Order::Put(key, _) | Order::Delete(key) => key,
        }
    }

    /// Returns the event of an operation whose outcome is unknown. An unknown GET says nothing.
    pub(super) fn unknown(self) -> Option<Event> {
        match self {
            Order::Get(_) => None,
            Order::Put(_, value) => Some(Event::Put(value)),
            Order::Delete(_) => Some(Event::Delete),
        }
    }
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Event(Event),
    /// The operation had no effect, and says nothing: a failure, or a lost key.
    Nothing,
    /// A repair or a MIGRATE by itself.
    Internal,
}

/// The machine of any operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Get(Get),
    Put(Box<PutMachine>, u64),
    Delete(Delete),
    Migrate(Box<Migrate>, Move),
    Repair(Box<Repair>),
}

impl Operation {
    pub(super) fn new(cx: &Context<'_>, order: Order) -> Operation {
        match order {
            Order::Get(key) => Operation::Get(Get::new(cx, &[key])),
            Order::Put(key, value) => {
                Operation::Put(Box::new(PutMachine::new(cx, &[key], &value_of(value))), value)
            }
            Order::Delete(key) => Operation::Delete(Delete::new(cx, &[key])),
        }
    }

    pub(super) fn migrate(order: Move) -> Operation {
        Operation::Migrate(Box::new(Migrate::new(order.clone())), order)
    }

    pub(super) fn step(&mut self, cx: &Context<'_>, answer: Answer) -> Step<Outcome> {
        fn done<T>(step: Step<T>, outcome: impl FnOnce(T) -> Outcome) -> Step<Outcome> {
            match step {
                Step::Issue(verb) => Step::Issue(verb),
                Step::Done(result) => Step::Done(outcome(result)),
            }
        }
        match self {
            Operation::Get(get) => done(get.step(cx, answer), |result| match result.expect("no failure") {
                Got::Found(entry) => Outcome::Event(Event::Get(Some(number_of(entry.value())))),
                Got::NotFound => Outcome::Event(Event::Get(None)),
                Got::Lost => Outcome::Nothing,
            }),
            Operation::Put(put, value) => done(put.step(cx, answer), |result| match result {
                Ok(Put::Stored) => Outcome::Event(Event::Put(*value)),
                Ok(Put::Superseded) => unreachable!("only repairs end so"),
                Err(Failure::IndexFull | Failure::NoSlot | Failure::DataFull) => Outcome::Nothing,
                Err(Failure::Decode(e)) => panic!("{e}"),
            }),
            Operation::Delete(delete) => done(delete.step(cx, answer), |result| match result {
                Ok(()) => Outcome::Event(Event::Delete),
                Err(Failure::Decode(e)) => panic!("{e}"),
                Err(_) => Outcome::Nothing,
            }),
            Operation::Migrate(migrate, _) => done(migrate.step(cx, answer), |_: Migrated| Outcome::Internal),
            Operation::Repair(repair) => done(repair.step(cx, answer), |()| Outcome::Internal),
        }
    }

    /// Returns the remaining work of an operation that is given up.
    pub(super) fn leftover(self, cx: &Context<'_>, is_issued: bool) -> Option<Leftover> {
        match self {
            Operation::Put(put, _) => put.leftover(cx, is_issued),
            Operation::Repair(repair) => Some(repair.leftover(cx, is_issued)),
            Operation::Migrate(migrate, order) => {
                let left = migrate.unfinished(cx, is_issued)?;
                let place = cx.placement.place(order.entry.key());
                Some(Leftover::of_move(left, order.entry, place))
            }
            Operation::Delete(delete) => delete.leftover(cx, is_issued),
            Operation::Get(_) => None,
        }
    }
}
