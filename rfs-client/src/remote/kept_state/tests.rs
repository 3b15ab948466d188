//! The kept state, as a next process finds it.

use std::{collections::HashSet, fs::File, sync::Arc};

use rfs_proto::{Identity, LockClass};

use super::{Counter, KeptLock, KeptState, KeptStateError, RequestScope, Row, state::KeptInode};

/// Returns the state as the next process finds it, after the death of this one.
fn next(kept: &Arc<KeptState>) -> Arc<KeptState> {
    let file = File::from(kept.file().try_clone_to_owned().expect("cloned"));
    KeptState::open(file).expect("the same format")
}

/// Returns the counters of all inodes, by inode.
fn counters(kept: &Arc<KeptState>) -> Vec<(u64, [u64; 6])> {
    let counts = |inode: &KeptInode| Counter::ALL.map(|counter| inode.count(counter));
    kept.take_inodes().iter().map(|inode| (inode.ino, counts(inode))).collect()
}

#[test]
fn effects_of_a_repeated_request_are_taken_back_and_others_stay() {
    let kept = KeptState::create().expect("a memory file");
    let row = Row::add(&kept, 5).expect("room");
    row.count(Counter::References, 1);
    let (answered, lost) = (RequestScope::begin(&kept, 10, false), RequestScope::begin(&kept, 12, false));
    for scope in [&answered, &lost] {
        let _in = scope.enter();
        row.count(Counter::References, 2);
        row.count(Counter::Opens, 1);
    }
    answered.end();
    let late = RequestScope::begin(&kept, 14, false);
    {
        let _in = late.enter();
        row.count(Counter::Cached, 1);
    }
    let kept = next(&kept);
    kept.take_back(&HashSet::from([12]));
    assert_eq!(counters(&kept), [(5, [3, 1, 0, 0, 1, 0])], "14 was answered in the last moment");
    std::mem::forget((lost, late, row));
}

#[test]
fn an_inode_that_a_repeated_request_has_removed_is_back() {
    let kept = KeptState::create().expect("a memory file");
    let row = Row::add(&kept, 7).expect("room");
    row.count(Counter::References, 1);
    let scope = RequestScope::begin(&kept, 20, false);
    let in_scope = scope.enter();
    row.count(Counter::References, -1);
    drop((in_scope, row));
    // Another inode gets the place.
    let other = Row::add(&kept, 8).expect("room");
    other.count(Counter::References, 4);
    let kept = next(&kept);
    kept.take_back(&HashSet::from([20]));
    let mut found = counters(&kept);
    found.sort_unstable();
    assert_eq!(found, [(7, [1, 0, 0, 0, 0, 0]), (8, [4, 0, 0, 0, 0, 0])]);
    std::mem::forget((scope, other));
}

#[test]
fn calls_in_flight_locks_and_the_session_are_found() {
    let kept = KeptState::create().expect("a memory file");
    let (mount, memory) = (Identity([1; 16]), Identity([2; 16]));
    kept.set_session(mount, memory, 9);
    kept.begin_call((3, 7), (30, 1), b"envelope");
    kept.begin_call((4, 2), (0, 0), b"done");
    kept.end_call((4, 2));
    let lock = KeptLock { ino: 5, handle: 8, owner: 9, class: LockClass::Flock, ticket: None };
    let waits = KeptLock { ticket: Some(77), class: LockClass::Record, ..lock };
    let gone = KeptLock { owner: 10, ..lock };
    [lock, gone, waits].iter().for_each(|lock| kept.add_lock(lock));
    kept.remove_lock(&gone);
    let kept = next(&kept);
    assert_eq!((kept.session(), kept.takeovers()), ((mount, memory, 9), 1));
    assert_eq!((kept.sequences()[3], kept.sequences()[4]), (7, 2));
    let calls = kept.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].slot, calls[0].sequence, calls[0].unique, calls[0].ordinal), (3, 7, 30, 1));
    assert_eq!(calls[0].envelope, b"envelope");
    assert_eq!(kept.take_locks(), [lock, waits]);
}

#[test]
fn the_last_note_of_an_append_counts() {
    let kept = KeptState::create().expect("a memory file");
    let scope = RequestScope::begin(&kept, 40, false);
    scope.note_append(100, 1);
    scope.note_append(200, 2);
    let kept = next(&kept);
    kept.take_back(&HashSet::from([40]));
    assert!(kept.is_begun_append(40) && kept.has_previous_appends());
    let repeated = RequestScope::begin(&kept, 40, true);
    assert_eq!(repeated.previous_append(), Some((200, 2)));
    repeated.end();
    assert!(!kept.has_previous_appends());
    std::mem::forget(scope);
}

#[test]
fn an_append_is_known_after_two_deaths_and_its_counts_are_taken_back_once() {
    let kept = KeptState::create().expect("a memory file");
    let row = Row::add(&kept, 5).expect("room");
    row.count(Counter::References, 3);
    let scope = RequestScope::begin(&kept, 40, false);
    {
        let _in = scope.enter();
        row.count(Counter::References, 1);
        scope.note_append(100, 1);
        row.count(Counter::References, 1);
    }
    let mut last = Arc::clone(&kept);
    for _ in 0..2 {
        last = next(&last);
        last.take_back(&HashSet::from([40]));
        assert_eq!(last.previous_append(40), Some((100, 1)));
        assert_eq!(counters(&last), [(5, [3, 0, 0, 0, 0, 0])]);
    }
    RequestScope::begin(&last, 40, true).end();
    let last = next(&last);
    last.take_back(&HashSet::from([40]));
    assert!(!last.is_begun_append(40), "the append was answered");
    std::mem::forget((scope, row));
}

#[test]
fn an_append_that_was_given_up_begins_anew() {
    let kept = KeptState::create().expect("a memory file");
    let scope = RequestScope::begin(&kept, 40, false);
    scope.note_append(100, 1);
    scope.give_append_up();
    let taken = next(&kept);
    taken.take_back(&HashSet::from([40]));
    assert!(!taken.is_begun_append(40) && !taken.has_previous_appends());
    std::mem::forget(scope);
}

#[test]
fn threads_that_count_at_once_lose_no_count() {
    let kept = KeptState::create().expect("a memory file");
    let row = Row::add(&kept, 5).expect("room");
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| (0..10_000).for_each(|_| row.count(Counter::References, 1)));
        }
    });
    assert_eq!(row.get(Counter::References), 40_000);
}

#[test]
fn a_death_between_a_note_and_its_count_leaves_no_inode_too_early() {
    let kept = KeptState::create().expect("a memory file");
    let row = Row::add(&kept, 5).expect("room");
    row.count(Counter::References, 2);
    row.count(Counter::AtServer, 2);
    // The process died after the first half of each change.
    for (counter, amount) in [(Counter::References, -1), (Counter::AtServer, 1)] {
        assert!(!counter.changes_before_note(amount));
        let scope = RequestScope::begin(&kept, 50, false);
        scope.note_effect(5, counter, amount);
        std::mem::forget(scope);
    }
    let taken = next(&kept);
    taken.take_back(&HashSet::from([50]));
    assert_eq!(counters(&taken), [(5, [3, 0, 1, 0, 0, 0])]);
    std::mem::forget(row);
}

#[test]
fn replies_of_a_repeated_request_are_known_until_they_are_used() {
    let kept = KeptState::create().expect("a memory file");
    kept.begin_call((3, 7), (30, 0), b"envelope");
    let kept = next(&kept);
    kept.replies().add(&kept.calls()[0], None, None);
    let scope = |unique| RequestScope::begin(&kept, unique, true);
    let (repeated, other) = (scope(30), scope(31));
    assert!(repeated.has_replies() && !other.has_replies());
    assert_eq!(kept.replies().take(30, 0).map(|reply| (reply.slot, reply.sequence)), Some((3, 7)));
    assert!(!repeated.has_replies());
}

#[test]
fn a_state_of_another_format_is_refused() {
    let other = tempfile::tempfile().expect("a file");
    let short = KeptState::open(other.try_clone().expect("cloned"));
    assert!(matches!(short, Err(KeptStateError::Os(_))), "{short:?}");
    other.set_len(1 << 31).expect("longer");
    let empty = KeptState::open(other);
    assert!(matches!(empty, Err(KeptStateError::Format { found: 0 })), "{empty:?}");
}
