//! Every interleaving of a few operations: an explicit-state search.
//!
//! A state is the memory, the machines, and the history so far. A transition executes one part of
//! one verb. Each history is checked when an operation returns, so a client that stops or dies at
//! any step is covered: its operation has no return. At the end all referenced entries are valid.

mod scenarios;

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::logic::{
    context::{Context, Rules},
    entry,
    placement::Placement,
    verb::{Answer, Step, Stored, Verb},
    word::{Content, EntryRef},
};

use super::{
    history::{Event, Record, is_linearizable},
    operation::{Operation, Order, Outcome, plan_move},
    world::{Table, UnderWay, World},
};

/// The operation of a client of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Do(Order),
    /// Moves the entry in the slot of one rank of a key to the slot of another rank.
    Migrate {
        key: u8,
        from: usize,
        to: usize,
    },
}

/// A set of clients and the memory in which they begin.
struct Scenario {
    table: Table,
    slots: usize,
    entries: usize,
    /// Executed one after the other before the search.
    setup: Vec<Task>,
    clients: Vec<Vec<Task>>,
    rules: Rules,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    next: usize,
    run: Option<(Operation, UnderWay)>,
    /// Index of the open record in the history.
    open: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    clients: Vec<Client>,
    history: Vec<(u8, Record)>,
    events: u64,
}

impl State {
    fn stored(&self, node: u16, entries: usize) -> Option<Stored> {
        let unused = (1..=entries as u32).find(|offset| self.world.head(node, *offset) == 0)?;
        Some(Stored { entry: EntryRef { table: node, offset: unused }, life: 1 })
    }
}

impl Scenario {
    fn context(&self) -> Context<'_> {
        Context { placement: &self.table, max_depth: 2, patience: 0, rules: self.rules }
    }

    /// Passes an answer to a machine. Verbs that no other client notices are executed at once.
    fn drive(&self, state: &mut State, at: usize, mut operation: Operation, mut answer: Answer) -> bool {
        let node = at as u16 % 2;
        loop {
            match operation.step(&self.context(), answer) {
                Step::Done(outcome) => return self.end(state, at, outcome),
                Step::Issue(verb @ (Verb::Store(_) | Verb::Release(_))) => {
                    let target = state.stored(node, self.entries);
                    answer = UnderWay::new(verb, target, |_| {}).finish(&mut state.world);
                }
                Step::Issue(verb) => {
                    let under_way = UnderWay::new(verb, None, |order| order.reverse());
                    state.clients[at].run = Some((operation, under_way));
                    return true;
                }
            }
        }
    }

    /// Ends an operation. Returns false if the history is not linearizable.
    fn end(&self, state: &mut State, at: usize, outcome: Outcome) -> bool {
        state.events += 1;
        let Some(open) = state.clients[at].open.take() else { return true };
        match outcome {
            Outcome::Event(event) => {
                let record = &mut state.history[open].1;
                (record.returned, record.event) = (Some(state.events), event);
            }
            // An operation without effect: its call is forgotten, its place remains.
            Outcome::Nothing | Outcome::Internal => state.history[open].0 = u8::MAX,
        }
        (0..self.table.places.len() as u8).all(|key| {
            let of_key = state.history.iter().filter(|(its, record)| {
                // An open GET says nothing.
                *its == key && (record.returned.is_some() || !matches!(record.event, Event::Get(_)))
            });
            is_linearizable(&of_key.map(|(_, record)| *record).collect::<Vec<_>>())
        })
    }

    fn begin(&self, state: &mut State, at: usize, task: Task) -> bool {
        state.events += 1;
        let operation = match task {
            Task::Do(order) => {
                let event = order.unknown().unwrap_or(Event::Get(None));
                state.clients[at].open = Some(state.history.len());
                state.history.push((order.key(), Record { called: state.events, returned: None, event }));
                Operation::new(&self.context(), order)
            }
            Task::Migrate { key, from, to } => {
                match plan_move(&mut state.world, &self.table, key, from, to) {
                    Some(order) => Operation::migrate(order),
                    None => return true,
                }
            }
        };
        self.drive(state, at, operation, Answer::None)
    }

    /// Makes one transition of a client. `None` if it has nothing to do.
    fn transition(&self, state: &State, at: usize) -> Option<(State, bool)> {
        let mut state = state.clone();
        let client = &mut state.clients[at];
        let is_right = match client.run.take() {
            None => {
                let task = *self.clients[at].get(client.next)?;
                client.next += 1;
                self.begin(&mut state, at, task)
            }
            Some((operation, mut under_way)) => {
                let is_entry = under_way.is_entry();
                match under_way.advance(&mut state.world) {
                    Some(answer) => self.drive(&mut state, at, operation, answer),
                    // Entries are never torn while a slot refers to them: `random` shows it.
                    None if is_entry => {
                        let answer = under_way.finish(&mut state.world);
                        self.drive(&mut state, at, operation, answer)
                    }
                    None => {
                        state.clients[at].run = Some((operation, under_way));
                        true
                    }
                }
            }
        };
        Some((state, is_right))
    }

    fn start(&self) -> State {
        let client = Client { next: 0, run: None, open: None };
        let mut state = State {
            world: World::new(2, self.slots, self.entries),
            clients: vec![client; self.clients.len()],
            history: Vec::new(),
            events: 0,
        };
        for task in &self.setup {
            assert!(self.begin(&mut state, 0, *task));
            while let Some((operation, under_way)) = state.clients[0].run.take() {
                let answer = under_way.finish(&mut state.world);
                assert!(self.drive(&mut state, 0, operation, answer));
            }
        }
        state
    }

    /// Returns a fault of the memory in which no client has anything to do.
    fn fault_at_rest(&self, state: &mut State) -> Option<String> {
        for (key, place) in self.table.places.iter().enumerate() {
            let words = state.world.words(&place.slots);
            let mut found = 0;
            for (slot, word) in place.slots.iter().zip(words) {
                let Ok(Content::Entry { entry, filter }) = word.content(self.table.fields()) else {
                    continue;
                };
                if filter != place.filter {
                    continue;
                }
                let verb = Verb::ReadEntry { slot: *slot, word, entry };
                let Answer::Entry(read) = UnderWay::new(verb, None, |_| {}).finish(&mut state.world) else {
                    unreachable!("an entry")
                };
                let (_, is_released) = entry::split_head(state.world.head(entry.table, entry.offset));
                found += 1;
                if !read.is_valid() || is_released || found > 1 {
                    return Some(format!(
                        "key {key}: {found} entries, {slot:?} {entry:?} {read:?} {is_released}"
                    ));
                }
            }
        }
        None
    }

    /// Visits all states.
    ///
    /// # Errors
    /// The history of the first state that is wrong.
    fn search(&self) -> Result<usize, String> {
        let mut visited = HashSet::new();
        let mut stack = vec![self.start()];
        while let Some(mut state) = stack.pop() {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            if !visited.insert(hasher.finish()) {
                continue;
            }
            let mut is_at_rest = true;
            for at in 0..state.clients.len() {
                if let Some((next, is_right)) = self.transition(&state, at) {
                    is_at_rest = false;
                    if !is_right {
                        return Err(format!("not linearizable: {:#?}", next.history));
                    }
                    stack.push(next);
                }
            }
            if is_at_rest && let Some(fault) = self.fault_at_rest(&mut state) {
                return Err(format!("{fault}: {:#?}", state.history));
            }
        }
        Ok(visited.len())
    }
}
