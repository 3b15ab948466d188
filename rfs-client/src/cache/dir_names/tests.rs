use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::cache::dir_names::*;

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

proptest! {
    /// While no change and no recall is in flight, a name that is said to be absent is absent.
    #[test]
    fn absent_names_do_not_exist(steps in steps()) {
        let mut d = DirNames::default();
        let mut recalled = crate::cache::recall_log::RecallLog::default();
        // The names at the server. Names keep their cookies, and new ones come last.
        let mut truth: Vec<(u64, u8)> = Vec::new();
        let mut cookies = 0;
        let set = |truth: &mut Vec<(u64, u8)>, name: u8, make: bool, cookies: &mut u64| {
            if make != truth.iter().any(|(_, n)| *n == name) {
                if make {
                    *cookies += 1;
                    truth.push((*cookies, name));
                } else {
                    truth.retain(|(_, n)| *n != name);
                }
                true
            } else {
                false
            }
        };
        let mut lookups = Vec::new();
        let mut change: Option<(u8, bool, Option<bool>, crate::cache::recall_log::Moment)> = None;
        let mut recalls = std::collections::VecDeque::new();
        let mut page = None;
        for step in steps {
            match step {
                Step::Ask(name) if !d.is_absent(DIR, &[name]) => {
                    let found = truth.iter().any(|(_, n)| *n == name);
                    lookups.push((name, found, d.mark(), recalled.now()));
                }
                Step::Answer if !lookups.is_empty() => {
                    let (name, found, mark, since) = lookups.remove(0);
                    if !found {
                        d.missed(DIR, &[name], mark, recalled.name(since, DIR, &[name]));
                    }
                }
                Step::Delay if !lookups.is_empty() => lookups.rotate_left(1),
                Step::Begin(name, make) if change.is_none() => {
                    d.begins(DIR, &[name]);
                    change = Some((name, make, None, recalled.now()));
                }
                Step::Server => {
                    if let Some((name, make, done @ None, _)) = &mut change {
                        *done = Some(set(&mut truth, *name, *make, &mut cookies));
                    }
                }
                Step::End => {
                    if let Some((name, make, Some(done), since)) = change {
                        let gone = done && !make && !recalled.name(since, DIR, &[name]);
                        d.ended(DIR, &[name], gone);
                        change = None;
                    }
                }
                Step::Other(name, make) if set(&mut truth, name, make, &mut cookies) => {
                    recalls.push_back(name);
                }
                Step::Recall => {
                    if let Some(name) = recalls.pop_front() {
                        recalled.note(rfs_proto::Recall::Name { parent: DIR, name: vec![name] });
                        d.recalled(DIR, &[name]);
                    }
                }
                Step::Page if page.is_none() => {
                    if let Some((id, from)) = d.lists(DIR, 0) {
                        let names: Vec<(u64, u8)> =
                            truth.iter().copied().filter(|(cookie, _)| *cookie > from).take(2).collect();
                        let to = names.last().map_or(from, |(cookie, _)| *cookie);
                        let end = truth.iter().all(|(cookie, _)| *cookie <= to);
                        page = Some((id, from, to, names, end));
                    }
                }
                Step::Listed => {
                    if let Some((id, from, to, names, end)) = page.take() {
                        let names: Vec<[u8; 1]> = names.iter().map(|(_, name)| [*name]).collect();
                        d.listed((DIR, id), (from, to), names.iter().map(|name| &name[..]), end);
                    }
                }
                _ => {}
            }
            let unsettled: BTreeSet<u8> =
                recalls.iter().copied().chain(change.iter().map(|(name, ..)| *name)).collect();
            for name in (0..6).filter(|name| !unsettled.contains(name)) {
                prop_assert!(
                    !d.is_absent(DIR, &[name]) || !truth.iter().any(|(_, n)| *n == name),
                    "{name} exists"
                );
            }
        }
    }
}
