//! The scenarios of the search, and the faults that it finds when a rule of the protocol is off.

use super::{Scenario, Task};
use crate::{
    logic::{
        context::Rules,
        placement::{Place, Slot},
        word::Fields,
    },
    simulation::{operation::Order, world::Table},
};

const KEY: u8 = 0;
const OTHER: u8 = 1;

fn get() -> Task {
    Task::Do(Order::Get(KEY))
}

fn put(value: u64) -> Task {
    Task::Do(Order::Put(KEY, value))
}

fn delete() -> Task {
    Task::Do(Order::Delete(KEY))
}

fn migrate(from: usize, to: usize) -> Task {
    Task::Migrate { key: KEY, from, to }
}

/// Returns the places of keys in slots of two nodes. The ranks of each key name slots 0, 1, ...
fn table(ranks: &[&[u32]], fields: Fields) -> Table {
    let place = |(filter, ranks): (u16, &&[u32])| Place {
        slots: ranks.iter().map(|slot| Slot { node: (slot % 2) as u16, number: slot / 2 }).collect(),
        filter,
    };
    Table { places: (0..).zip(ranks).map(place).collect(), fields }
}

/// Returns a scenario in which the key has slots 0, 1 and 2, and the other key slots 0 and 2.
fn three_slots(setup: &[Task], clients: &[&[Task]]) -> Scenario {
    Scenario {
        table: table(&[&[0, 1, 2], &[0, 2]], Fields::new(2, 3)),
        slots: 2,
        entries: 12,
        setup: setup.to_vec(),
        clients: clients.iter().map(|tasks| tasks.to_vec()).collect(),
        rules: Rules::SAFE,
    }
}

/// Returns a scenario in which the key has slots 0 and 1, and the other key slots 0 and 2.
fn two_slots(setup: &[Task], clients: &[&[Task]]) -> Scenario {
    Scenario { table: table(&[&[0, 1], &[0, 2]], Fields::new(2, 3)), ..three_slots(setup, clients) }
}

fn with_rules(scenario: Scenario, change: impl FnOnce(&mut Rules)) -> Scenario {
    let mut rules = Rules::SAFE;
    change(&mut rules);
    Scenario { rules, ..scenario }
}

fn passes(name: &str, scenario: Scenario) {
    match scenario.search() {
        Ok(states) => println!("{name}: {states} states"),
        Err(fault) => panic!("{name}: {fault}"),
    }
}

fn fails(name: &str, scenario: Scenario) {
    match scenario.search() {
        Ok(states) => panic!("{name}: the search finds no fault in {states} states"),
        Err(fault) => println!("{name}: found: {}", fault.lines().next().unwrap_or_default()),
    }
}

/// Returns the tasks that put the value in the slot of rank 1.
fn low() -> Vec<Task> {
    vec![put(1), migrate(0, 1)]
}

#[test]
fn put_against_migrate() {
    passes("up", two_slots(&low(), &[&[put(2)], &[migrate(1, 0)], &[get(), get()]]));
    passes("down", two_slots(&[put(1)], &[&[put(2)], &[migrate(0, 1)], &[get(), get()]]));
    passes("to the third slot", three_slots(&low(), &[&[put(2)], &[migrate(1, 2)], &[get()]]));
    passes("two migrations", three_slots(&low(), &[&[put(2)], &[migrate(1, 0)], &[migrate(1, 2)]]));
}

#[test]
fn migrate_against_reads() {
    passes("up", two_slots(&low(), &[&[migrate(1, 0)], &[get(), get()]]));
    passes("there and back", two_slots(&low(), &[&[migrate(1, 0)], &[migrate(0, 1)], &[get(), get()]]));
}

#[test]
fn delete_against_migrate() {
    passes("up", two_slots(&low(), &[&[delete()], &[migrate(1, 0)], &[get(), get()]]));
    passes("down", two_slots(&[put(1)], &[&[delete()], &[migrate(0, 1)], &[get(), get()]]));
    passes("and a PUT", two_slots(&[put(1)], &[&[delete()], &[migrate(0, 1)], &[put(2)]]));
}

#[test]
fn delete_against_put() {
    // One effect: a DELETE does not remove the second value if a GET has seen the first gone.
    passes("two PUTs", two_slots(&[], &[&[put(2), get(), put(3), get()], &[delete()]]));
    passes("a PUT that replaces", two_slots(&[put(1)], &[&[put(2), get(), put(3), get()], &[delete()]]));
    passes("a gap above", two_slots(&low(), &[&[put(2), get()], &[delete()], &[get()]]));
}

#[test]
fn put_against_put() {
    passes("new", two_slots(&[], &[&[put(2)], &[put(3)], &[get()]]));
    passes("replaced", two_slots(&[put(1)], &[&[put(2)], &[put(3)], &[get()]]));
}

#[test]
#[ignore = "takes minutes: ci/soak"]
fn put_against_put_at_length() {
    passes("a gap above", two_slots(&low(), &[&[put(2)], &[put(3)], &[get()]]));
    passes("and a DELETE", two_slots(&low(), &[&[put(2)], &[put(3)], &[delete()]]));
    passes("and a MIGRATE", two_slots(&low(), &[&[put(2)], &[put(3)], &[migrate(1, 0)]]));
}

#[test]
fn a_slot_that_becomes_free() {
    let occupied = [Task::Do(Order::Put(OTHER, 9))];
    let clear: &[Task] = &[Task::Do(Order::Delete(OTHER))];
    passes("two PUTs", two_slots(&occupied, &[&[put(2)], clear, &[put(3)]]));
    // The other key moves out of the way, as part of the PUT.
    let full = [Task::Do(Order::Put(OTHER, 9)), put(1)];
    passes("a PUT and a GET", two_slots(&full, &[&[put(2), get()], clear, &[get()]]));
}

/// Returns a scenario in which a PUT reads its own entry, which another PUT then replaces. A
/// MIGRATE carries the new entry to the slot that the first PUT reads next. The other key makes the
/// first PUT read again.
fn replaced_and_moved() -> Scenario {
    let occupied = [Task::Do(Order::Put(OTHER, 9))];
    let client = [Task::Do(Order::Delete(OTHER)), put(3), migrate(0, 1), get()];
    let table = table(&[&[0, 1], &[1, 2]], Fields::new(2, 3));
    Scenario { table, ..two_slots(&occupied, &[&[put(2)], &client]) }
}

#[test]
fn a_put_whose_replacement_moves_down() {
    passes("one MIGRATE", replaced_and_moved());
}

#[test]
fn a_put_that_migrates_another_key() {
    // Both slots of the key are taken, and each entry in them has another slot.
    let (second, third) = (Task::Do(Order::Put(OTHER, 9)), Task::Do(Order::Put(2, 7)));
    let clients: [&[Task]; 3] =
        [&[put(2)], &[Task::Do(Order::Put(OTHER, 8))], &[Task::Do(Order::Get(OTHER))]];
    let scenario = Scenario {
        table: table(&[&[1, 3], &[1, 2], &[3, 0]], Fields::new(2, 3)),
        ..two_slots(&[second, third], &clients)
    };
    passes("a PUT and a GET of the other key", scenario);
}

#[test]
fn the_search_finds_the_faults_of_other_protocols() {
    let reads = two_slots(&low(), &[&[migrate(1, 0)], &[get(), get()]]);
    fails("a GET without second look", with_rules(reads, |rules| rules.get_verifies = false));
    let deletes = two_slots(&[put(1)], &[&[delete()], &[migrate(0, 1)], &[get()]]);
    fails("a DELETE without second look", with_rules(deletes, |rules| rules.delete_verifies = false));
    let unfinished = two_slots(
        &[put(1)],
        &[&[migrate(0, 1)], &[Task::Migrate { key: KEY, from: 1, to: 0 }], &[delete(), get()]],
    );
    fails(
        "a MIGRATE of an entry that is not valid",
        with_rules(unfinished, |rules| rules.migrate_needs_valid = false),
    );
    let stale = two_slots(&[put(1)], &[&[put(2)], &[migrate(0, 1)]]);
    fails("a MIGRATE that does not revert", with_rules(stale, |rules| rules.migrate_reverts = false));
    let occupied = [Task::Do(Order::Put(OTHER, 9))];
    let two = || two_slots(&occupied, &[&[put(2), get()], &[Task::Do(Order::Delete(OTHER))], &[put(3)]]);
    fails("a PUT without second look", with_rules(two(), |rules| rules.put_verifies = false));
    fails("a PUT that stays below another", with_rules(two(), |rules| rules.put_moves_up = false));
    let moved = with_rules(replaced_and_moved(), |rules| rules.put_scans_up = false);
    fails("a PUT that reads its own slot first", moved);
}

#[test]
fn versions_that_wrap_are_no_danger() {
    let clients: [&[Task]; 3] = [&[migrate(1, 0)], &[migrate(0, 1)], &[get()]];
    let fields = Fields::new(2, 3).with_version_bits(1);
    let places: &[&[u32]] = &[&[0, 1], &[0, 2]];
    let named = Scenario { table: table(places, fields), ..two_slots(&low(), &clients) };
    passes("cleared words that name an entry", named);
    let paper = fields.with_anonymous_clears();
    let anonymous = Scenario { table: table(places, paper), ..two_slots(&low(), &clients) };
    fails("cleared words with a version alone", anonymous);
}
