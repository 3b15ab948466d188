use super::*;

const A: Owner = (1, 10);
const B: Owner = (1, 20);
const C: Owner = (2, 10);
const D: Owner = (3, 10);

use Asked::{Done, Waits};
use LockKind::{Exclusive, Shared, Unlock};

fn wish(owner: Owner, first: u64, last: u64) -> Wish {
    Wish { owner, class: LockClass::Record, range: LockRange { first, last }, pid: 7 }
}

fn flock(owner: Owner) -> Wish {
    Wish { class: LockClass::Flock, ..wish(owner, 0, u64::MAX) }
}

impl Locks {
    fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.counts.is_empty()
            && self.holding.is_empty()
            && self.tickets.is_empty()
            && self.by_owner.is_empty()
    }

    /// Who has been answered, by owner's session and number.
    fn answered(&mut self) -> Vec<(Ticket, Result<(), Errno>)> {
        self.take_answers().into_iter().map(|answer| (answer.ticket, answer.outcome)).collect()
    }

    fn try_set(&mut self, ino: u64, wish: Wish, kind: LockKind) -> Result<Asked, Errno> {
        self.set(ino, wish, kind, None)
    }

    /// Asks with a ticket that is the owner's own number and this one.
    fn wait(&mut self, ino: u64, wish: Wish, kind: LockKind, number: u64) -> Result<Asked, Errno> {
        self.set(ino, wish, kind, Some(number))
    }
}

#[test]
fn shared_and_exclusive() {
    let mut locks = Locks::default();
    assert_eq!(locks.try_set(5, wish(A, 0, 9), Shared), Ok(Done));
    assert_eq!(locks.try_set(5, wish(C, 5, 14), Shared), Ok(Done));
    assert_eq!(locks.try_set(5, wish(C, 5, 14), Exclusive), Err(Errno::EAGAIN));
    assert_eq!(locks.try_set(5, wish(C, 10, 14), Exclusive), Ok(Done));
    assert_eq!(locks.try_set(6, wish(C, 0, 9), Exclusive), Ok(Done), "another file");
    let in_the_way = HeldLock { exclusive: false, range: LockRange { first: 0, last: 9 }, pid: 7 };
    assert_eq!(locks.conflict(5, wish(B, 0, 3), true), Some((1, in_the_way)));
    assert_eq!(locks.conflict(5, wish(B, 0, 3), false), None);
    assert_eq!(locks.conflict(5, wish(A, 0, 3), true), None);
    assert_eq!(locks.try_set(5, wish(A, 0, u64::MAX), Unlock), Ok(Done));
    assert_eq!(locks.conflict(5, wish(B, 0, 3), true), None);
}

#[test]
fn the_two_classes_do_not_see_each_other() {
    let mut locks = Locks::default();
    assert_eq!(locks.try_set(5, wish(A, 0, u64::MAX), Exclusive), Ok(Done));
    assert_eq!(locks.try_set(5, flock(B), Exclusive), Ok(Done));
    assert_eq!(locks.try_set(5, flock(C), Shared), Err(Errno::EAGAIN));
    assert_eq!(locks.try_set(5, flock(B), Shared), Ok(Done));
    assert_eq!(locks.try_set(5, flock(C), Shared), Ok(Done));
    // An upgrade that fails has given up what there was.
    assert_eq!(locks.try_set(5, flock(C), Exclusive), Err(Errno::EAGAIN));
    assert_eq!(locks.try_set(5, flock(B), Exclusive), Ok(Done));
}

#[test]
fn sessions_that_close_leave_nothing() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(A, 0, 9), Exclusive).unwrap();
    locks.try_set(5, flock(A), Exclusive).unwrap();
    assert_eq!(locks.wait(5, wish(C, 0, 9), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 0, 9), Exclusive, 1), Ok(Waits));
    locks.closed(2, 5);
    assert_eq!(locks.answered(), [((2, 1), Err(Errno::EBADF))]);
    locks.closed(1, 5);
    assert_eq!(locks.answered(), [((3, 1), Ok(()))], "and whoever waited for it goes on");
    locks.closed(3, 5);
    assert!(locks.is_empty() && locks.answered().is_empty());
}

#[test]
fn nobody_has_locks_without_number() {
    let mut locks = Locks::default();
    // Neither side by side nor in pieces; other files and owners count, too.
    locks.try_set(6, wish(B, 0, u64::MAX), Exclusive).unwrap();
    for at in 1..MAX_LOCKS as u64 {
        locks.try_set(6, wish(B, 2 * at, 2 * at), Unlock).unwrap();
    }
    assert_eq!(locks.count(1), MAX_LOCKS);
    assert_eq!(locks.try_set(6, wish(B, 1 << 40, 1 << 40), Unlock), Err(Errno::ENOLCK));
    assert_eq!(locks.try_set(5, wish(A, 0, 0), Shared), Err(Errno::ENOLCK));
    assert_eq!(locks.wait(5, wish(A, 0, 0), Shared, 1), Err(Errno::ENOLCK));
    assert_eq!(locks.try_set(5, wish(C, 0, 0), Exclusive), Ok(Done), "that is another session");
    locks.try_set(6, wish(B, 3, 3), Unlock).unwrap();
    assert_eq!(locks.wait(5, wish(A, 0, 0), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(B, 0, 0), Shared, 2), Err(Errno::ENOLCK), "who waits counts");
    assert!(locks.stop_waiting((1, 1)));
    assert_eq!(locks.wait(5, wish(B, 0, 0), Shared, 2), Ok(Waits));
    for (session, ino) in [(1, 6), (1, 5), (2, 5)] {
        locks.closed(session, ino);
    }
    assert!(locks.is_empty());
}

#[test]
fn who_asks_first_is_first() {
    let mut locks = Locks::default();
    locks.try_set(5, flock(A), Exclusive).unwrap();
    for (owner, kind) in [(B, Shared), (C, Shared), (D, Exclusive), ((4, 1), Shared), ((5, 1), Exclusive)] {
        assert_eq!(locks.wait(5, flock(owner), kind, owner.1), Ok(Waits));
    }
    assert_eq!(locks.answered(), []);
    locks.try_set(5, flock(A), Unlock).unwrap();
    assert_eq!(
        locks.answered(),
        [((1, 20), Ok(())), ((2, 10), Ok(()))],
        "both share, and no third one goes by"
    );
    assert_eq!(
        locks.try_set(5, flock(A), Shared),
        Ok(Done),
        "who does not want to wait is refused for nobody who waits"
    );
    for owner in [A, B, C] {
        assert_eq!(locks.answered(), []);
        locks.try_set(5, flock(owner), Unlock).unwrap();
    }
    assert_eq!(locks.answered(), [((3, 10), Ok(()))]);
    locks.try_set(5, flock(D), Shared).unwrap();
    assert_eq!(locks.answered(), [((4, 1), Ok(()))], "a weaker lock lets others in");
    locks.closed(4, 5);
    locks.closed(3, 5);
    assert_eq!(locks.answered(), [((5, 1), Ok(()))]);
}

#[test]
fn ranges_are_waited_for_by_themselves() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(A, 0, 9), Exclusive).unwrap();
    locks.try_set(5, wish(A, 20, 29), Exclusive).unwrap();
    assert_eq!(locks.wait(5, wish(C, 5, 15), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 25, 25), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 10, 12), Exclusive, 2), Ok(Waits), "behind who waits there");
    assert_eq!(locks.wait(5, wish(D, 16, 18), Exclusive, 3), Ok(Done));
    locks.try_set(5, wish(A, 20, 40), Unlock).unwrap();
    assert_eq!(locks.answered(), [((3, 1), Ok(()))]);
    assert!(locks.stop_waiting((2, 1)) && !locks.stop_waiting((2, 1)));
    assert_eq!(locks.answered(), [((3, 2), Ok(()))], "there is nobody before it any more");
}

#[test]
fn nobody_waits_behind_those_who_wait_for_him() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(A, 0, 9), Shared).unwrap();
    assert_eq!(locks.wait(5, wish(C, 0, 9), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 0, 9), Shared, 1), Ok(Waits), "it is behind");
    assert_eq!(locks.wait(5, wish(A, 5, 20), Shared, 1), Ok(Done));
    // Over another file: D has it, A waits for it, and C for A. So D does not wait for C.
    locks.try_set(6, wish(D, 0, 0), Exclusive).unwrap();
    assert_eq!(locks.wait(6, wish(A, 0, 0), Shared, 2), Ok(Waits));
    assert_eq!(locks.answered(), [((3, 1), Ok(()))]);
}

#[test]
fn who_insists_waits_for_nobody_who_waits() {
    let mut locks = Locks::default();
    locks.try_set(5, flock(A), Shared).unwrap();
    assert_eq!(locks.wait(5, flock(C), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, flock(D), Shared, 1), Ok(Waits));
    assert!(locks.insist((2, 1)), "he has a lock to wait for");
    assert_eq!(locks.answered(), []);
    assert!(locks.insist((3, 1)));
    assert_eq!(locks.answered(), [((3, 1), Ok(()))]);
    assert!(!locks.insist((3, 1)));
}

#[test]
fn circles_are_found_before_they_close() {
    let mut locks = Locks::default();
    for (owner, at) in [(A, 0), (B, 1), (C, 2)] {
        locks.try_set(5, wish(owner, at, at), Exclusive).unwrap();
    }
    assert_eq!(locks.wait(5, wish(A, 1, 1), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(A, 9, 9), Exclusive, 1), Err(Errno::EINVAL), "one ticket, one wait");
    assert_eq!(locks.wait(5, wish(B, 2, 2), Shared, 2), Ok(Waits));
    assert_eq!(locks.try_set(5, wish(C, 0, 0), Shared), Err(Errno::EAGAIN), "who does not wait closes none");
    assert_eq!(locks.wait(5, wish(C, 0, 0), Shared, 1), Err(Errno::EDEADLK));
    assert!(locks.stop_waiting((1, 1)));
    assert_eq!(locks.wait(5, wish(C, 0, 0), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(A, 2, 2), Exclusive, 1), Err(Errno::EDEADLK));
    assert_eq!(locks.answered(), []);
}

#[test]
fn a_circle_that_a_second_thread_closes_by_getting_a_lock() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(C, 0, 0), Exclusive).unwrap();
    locks.try_set(5, wish(D, 1, 1), Exclusive).unwrap();
    // A waits for C with one thread, and with another one for D, before C does.
    assert_eq!(locks.wait(5, wish(A, 0, 0), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(A, 1, 1), Exclusive, 2), Ok(Waits));
    assert_eq!(locks.wait(5, wish(C, 1, 1), Exclusive, 1), Ok(Waits));
    locks.try_set(5, wish(D, 1, 1), Unlock).unwrap();
    assert_eq!(locks.answered(), [((1, 2), Ok(())), ((1, 1), Err(Errno::EDEADLK))]);
    locks.try_set(5, wish(A, 1, 1), Unlock).unwrap();
    assert_eq!(locks.answered(), [((2, 1), Ok(()))]);
}
