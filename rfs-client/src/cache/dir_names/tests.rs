use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use crate::cache::{
    dir_names::*,
    recall_log::{Moment, RecallLog},
};

const DIR: u64 = 7;

fn listed(d: &mut DirNames, names: &[&str]) -> bool {
    let (id, from) = d.lists(DIR, 0).expect("a listing");
    d.listed((DIR, id), (from, 100), names.iter().map(|name| name.as_bytes()), true)
}

#[test]
fn a_listed_directory_is_known() {
    let mut d = DirNames::default();
    assert!(!d.is_absent(DIR, b"a"));
    assert!(listed(&mut d, &["a", "b"]));
    assert!(d.is_complete(DIR) && !d.is_absent(DIR, b"a") && d.is_absent(DIR, b"c"));
    d.begins(DIR, b"c");
    assert!(!d.is_absent(DIR, b"c"));
    d.ended(DIR, b"c", false);
    assert!(!d.is_absent(DIR, b"c"));
    d.begins(DIR, b"a");
    d.ended(DIR, b"a", true);
    assert!(d.is_absent(DIR, b"a"));
    d.recalled(DIR, b"x");
    assert!(!d.is_absent(DIR, b"x") && d.is_absent(DIR, b"y"));
    d.forget(DIR);
    assert!(!d.is_absent(DIR, b"y") && !d.is_complete(DIR));
    assert_eq!(d.names, DIRECTORY_WEIGHT);
}

#[test]
fn a_directory_is_listed_after_some_misses() {
    let mut d = DirNames::default();
    let due: Vec<bool> = (0..5_u8).map(|name| d.missed(DIR, &[name], d.mark(), false)).collect();
    assert_eq!(due, [false, false, false, true, true]);
    assert!(d.is_absent(DIR, &[0]) && !d.is_absent(DIR, b"other"));
}

#[test]
fn a_miss_from_before_a_change_is_ignored() {
    let mut d = DirNames::default();
    let before = d.mark();
    d.begins(DIR, b"a");
    d.ended(DIR, b"a", false);
    d.missed(DIR, b"a", before, false);
    assert!(!d.is_absent(DIR, b"a"));
    d.missed(DIR, b"a", d.mark(), true);
    assert!(!d.is_absent(DIR, b"a"), "recalled meanwhile");
    let before = d.mark();
    d.forget_some(0);
    d.missed(DIR, b"a", before, false);
    assert!(!d.is_absent(DIR, b"a"), "the changes since are unknown");
}

#[test]
fn pages_of_another_listing_do_not_count() {
    let mut d = DirNames::default();
    let (old, _) = d.lists(DIR, 0).expect("a listing");
    d.forget(DIR);
    let (new, _) = d.lists(DIR, 0).expect("another");
    assert!(!d.listed((DIR, old), (0, 10), std::iter::empty(), true));
    assert!(!d.listed((DIR, new), (5, 10), std::iter::empty(), true), "a gap");
    assert!(d.listed((DIR, new), (0, 10), std::iter::empty(), true));
    assert_eq!(d.lists(DIR, 0), None, "known");
}

#[test]
fn a_directory_that_is_too_long_is_not_listed() {
    let mut d = DirNames::default();
    let names: Vec<Vec<u8>> = (0..=MAX_LISTED_NAMES).map(|i| i.to_le_bytes().to_vec()).collect();
    let (id, _) = d.lists(DIR, 0).expect("a listing");
    assert!(!d.listed((DIR, id), (0, 9), names.iter().map(Vec::as_slice), true));
    assert!(!d.is_complete(DIR) && !d.missed(DIR, b"a", d.mark(), false));
    assert_eq!(d.names, DIRECTORY_WEIGHT + 1);
}

#[test]
fn the_number_of_names_of_all_directories_is_limited() {
    let mut d = DirNames::default();
    for dir in 0..8 {
        let names: Vec<Vec<u8>> = (0..MAX_LISTED_NAMES - 1).map(|i| i.to_le_bytes().to_vec()).collect();
        let (id, _) = d.lists(dir, 0).expect("a listing");
        assert!(d.listed((dir, id), (0, 9), names.iter().map(Vec::as_slice), true));
        assert!(d.names <= MAX_NAMES && d.is_complete(dir));
    }
}

/// Events in any order. A call has two events, and others may lie between them.
#[derive(Clone, Debug)]
enum Step {
    /// Begins a lookup of a name at the server.
    Ask(u8),
    /// The reply to the oldest lookup in flight is processed.
    Answer,
    /// The oldest reply is delayed behind the others.
    Delay,
    /// This client's change of a name begins. Then the server carries it out, and the client has
    /// the reply.
    Begin(u8, bool),
    Server,
    End,
    /// Another client changes a name, and the recall is in flight.
    Other(u8, bool),
    /// The oldest recall is processed.
    Recall,
    /// Asks for the next page, or processes it.
    Page,
    Listed,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..6_u8;
    let step = prop_oneof![
        name.clone().prop_map(Step::Ask),
        Just(Step::Answer),
        Just(Step::Delay),
        (name.clone(), any::<bool>()).prop_map(|(name, make)| Step::Begin(name, make)),
        Just(Step::Server),
        Just(Step::End),
        (name, any::<bool>()).prop_map(|(name, make)| Step::Other(name, make)),
        Just(Step::Recall),
        Just(Step::Page),
        Just(Step::Listed),
    ];
    prop::collection::vec(step, 1..120)
}

/// A lookup in flight: the name, whether the server found it, and when it began.
struct InFlight {
    name: u8,
    found: bool,
    mark: Mark,
    since: Moment,
}

/// This client's change of a name. `done`: the server has carried it out, with or without effect.
struct OwnChange {
    name: u8,
    make: bool,
    done: Option<bool>,
    since: Moment,
}

/// A page of a listing: the listing, the cookies before and at its end, and its names.
struct Page {
    id: ListingId,
    from: u64,
    to: u64,
    names: Vec<[u8; 1]>,
    end: bool,
}

/// The names at the server. Names keep their cookies, and new ones come last.
#[derive(Default)]
struct Truth {
    names: Vec<(u64, u8)>,
    cookies: u64,
}

impl Truth {
    fn has(&self, name: u8) -> bool {
        self.names.iter().any(|(_, n)| *n == name)
    }

    /// Makes or removes a name. Returns true if that changes anything.
    fn set(&mut self, name: u8, make: bool) -> bool {
        if make == self.has(name) {
            return false;
        }
        if make {
            self.cookies += 1;
            self.names.push((self.cookies, name));
        } else {
            self.names.retain(|(_, n)| *n != name);
        }
        true
    }
}

/// A client's names beside the names at the server, and all that is in flight between them.
#[derive(Default)]
struct World {
    d: DirNames,
    recalled: RecallLog,
    truth: Truth,
    lookups: Vec<InFlight>,
    change: Option<OwnChange>,
    recalls: VecDeque<u8>,
    page: Option<Page>,
}

impl World {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Ask(name) if !self.d.is_absent(DIR, &[name]) => {
                let (mark, since) = (self.d.mark(), self.recalled.now());
                self.lookups.push(InFlight { name, found: self.truth.has(name), mark, since });
            }
            Step::Answer if !self.lookups.is_empty() => {
                let InFlight { name, found, mark, since } = self.lookups.remove(0);
                if !found {
                    self.d.missed(DIR, &[name], mark, self.recalled.name(since, DIR, &[name]));
                }
            }
            Step::Delay if !self.lookups.is_empty() => self.lookups.rotate_left(1),
            Step::Other(name, make) if self.truth.set(name, make) => self.recalls.push_back(name),
            Step::Recall => {
                if let Some(name) = self.recalls.pop_front() {
                    self.recalled.note(rfs_proto::Recall::Name { parent: DIR, name: vec![name] });
                    self.d.recalled(DIR, &[name]);
                }
            }
            Step::Begin(..) | Step::Server | Step::End => self.change(step),
            Step::Page | Step::Listed => self.list(step),
            _ => {}
        }
    }

    /// Takes a step of this client's own change.
    fn change(&mut self, step: &Step) {
        match (step, &mut self.change) {
            (&Step::Begin(name, make), None) => {
                self.d.begins(DIR, &[name]);
                self.change = Some(OwnChange { name, make, done: None, since: self.recalled.now() });
            }
            (Step::Server, Some(change)) if change.done.is_none() => {
                change.done = Some(self.truth.set(change.name, change.make));
            }
            (Step::End, &mut Some(OwnChange { name, make, done: Some(done), since })) => {
                let gone = done && !make && !self.recalled.name(since, DIR, &[name]);
                self.d.ended(DIR, &[name], gone);
                self.change = None;
            }
            _ => {}
        }
    }

    /// Takes a step of a listing, whose pages have two names each.
    fn list(&mut self, step: &Step) {
        match (step, self.page.take()) {
            (Step::Page, None) => {
                if let Some((id, from)) = self.d.lists(DIR, 0) {
                    let names = &self.truth.names;
                    let page: Vec<(u64, u8)> =
                        names.iter().copied().filter(|(cookie, _)| *cookie > from).take(2).collect();
                    let to = page.last().map_or(from, |(cookie, _)| *cookie);
                    let end = names.iter().all(|(cookie, _)| *cookie <= to);
                    let names = page.iter().map(|(_, name)| [*name]).collect();
                    self.page = Some(Page { id, from, to, names, end });
                }
            }
            (Step::Listed, Some(Page { id, from, to, names, end })) => {
                self.d.listed((DIR, id), (from, to), names.iter().map(|name| &name[..]), end);
            }
            (_, page) => self.page = page,
        }
    }

    /// Checks that a name is absent if it is said to be absent. Names with a change or a recall in
    /// flight do not count.
    fn check(&self) -> Result<(), TestCaseError> {
        let changing = self.change.iter().map(|change| change.name);
        let unsettled: BTreeSet<u8> = self.recalls.iter().copied().chain(changing).collect();
        for name in (0..6).filter(|name| !unsettled.contains(name)) {
            prop_assert!(!self.d.is_absent(DIR, &[name]) || !self.truth.has(name), "{name} exists");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn absent_names_do_not_exist(steps in steps()) {
        let mut world = World::default();
        for step in &steps {
            world.step(step);
            world.check()?;
        }
    }
}
