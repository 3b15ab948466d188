use super::*;

const A: Owner = (1, 10);
const B: Owner = (1, 20);
const C: Owner = (2, 10);
const D: Owner = (3, 10);

use LockKind::{Exclusive, Shared, Unlock};
use LockOutcome::{Done, Waits};

fn wish(owner: Owner, first: u64, last: u64) -> LockRequest {
    LockRequest { owner, class: LockClass::Record, range: LockRange { first, last }, pid: 7 }
}

fn flock(owner: Owner) -> LockRequest {
    LockRequest { class: LockClass::Flock, ..wish(owner, 0, u64::MAX) }
}

impl Locks {
    fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.counts.is_empty()
            && self.holding.is_empty()
            && self.tickets.is_empty()
            && self.by_owner.is_empty()
    }

    /// Returns the tickets and outcomes of the answers since the last call.
    fn answered(&mut self) -> Vec<(Ticket, Result<(), Errno>)> {
        self.take_answers().into_iter().map(|answer| (answer.ticket, answer.outcome)).collect()
    }

    fn try_set(&mut self, ino: u64, wish: LockRequest, kind: LockKind) -> Result<LockOutcome, Errno> {
        self.set(ino, wish, kind, None)
    }

    /// Requests a lock with a ticket of the owner's session and `number`.
    fn wait(
        &mut self,
        ino: u64,
        wish: LockRequest,
        kind: LockKind,
        number: u64,
    ) -> Result<LockOutcome, Errno> {
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
fn record_locks_and_flocks_do_not_conflict() {
    let mut locks = Locks::default();
    assert_eq!(locks.try_set(5, wish(A, 0, u64::MAX), Exclusive), Ok(Done));
    assert_eq!(locks.try_set(5, flock(B), Exclusive), Ok(Done));
    assert_eq!(locks.try_set(5, flock(C), Shared), Err(Errno::EAGAIN));
    assert_eq!(locks.try_set(5, flock(B), Shared), Ok(Done));
    assert_eq!(locks.try_set(5, flock(C), Shared), Ok(Done));
    // A failed upgrade has dropped the lock that was held.
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
    assert_eq!(locks.answered(), [((3, 1), Ok(()))], "the next waiter gets the lock");
    locks.closed(3, 5);
    assert!(locks.is_empty() && locks.answered().is_empty());
}

#[test]
fn the_locks_of_a_session_are_limited() {
    let mut locks = Locks::default();
    // The locks are not adjacent, so they do not merge; other files and owners count, too.
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
    assert_eq!(locks.wait(5, wish(B, 0, 0), Shared, 2), Err(Errno::ENOLCK), "a waiter counts");
    assert!(locks.stop_waiting((1, 1)));
    assert_eq!(locks.wait(5, wish(B, 0, 0), Shared, 2), Ok(Waits));
    for (session, ino) in [(1, 6), (1, 5), (2, 5)] {
        locks.closed(session, ino);
    }
    assert!(locks.is_empty());
}

#[test]
fn waiters_are_granted_in_the_order_of_their_requests() {
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
        "both share, and no later reader overtakes the writer"
    );
    assert_eq!(locks.try_set(5, flock(A), Shared), Ok(Done), "a request without a ticket ignores waiters");
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
fn a_waiter_waits_only_for_its_range() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(A, 0, 9), Exclusive).unwrap();
    locks.try_set(5, wish(A, 20, 29), Exclusive).unwrap();
    assert_eq!(locks.wait(5, wish(C, 5, 15), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 25, 25), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 10, 12), Exclusive, 2), Ok(Waits), "behind the waiter there");
    assert_eq!(locks.wait(5, wish(D, 16, 18), Exclusive, 3), Ok(Done));
    locks.try_set(5, wish(A, 20, 40), Unlock).unwrap();
    assert_eq!(locks.answered(), [((3, 1), Ok(()))]);
    assert!(locks.stop_waiting((2, 1)) && !locks.stop_waiting((2, 1)));
    assert_eq!(locks.answered(), [((3, 2), Ok(()))], "no waiter is before it any more");
}

#[test]
fn a_request_does_not_queue_behind_a_waiter_that_waits_for_it() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(A, 0, 9), Shared).unwrap();
    assert_eq!(locks.wait(5, wish(C, 0, 9), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(D, 0, 9), Shared, 1), Ok(Waits), "it is behind");
    assert_eq!(locks.wait(5, wish(A, 5, 20), Shared, 1), Ok(Done));
    // D holds the other file, A waits for it, and C waits for A. So D does not queue behind C.
    locks.try_set(6, wish(D, 0, 0), Exclusive).unwrap();
    assert_eq!(locks.wait(6, wish(A, 0, 0), Shared, 2), Ok(Waits));
    assert_eq!(locks.answered(), [((3, 1), Ok(()))]);
}

#[test]
fn an_insisting_waiter_ignores_the_queue_order() {
    let mut locks = Locks::default();
    locks.try_set(5, flock(A), Shared).unwrap();
    assert_eq!(locks.wait(5, flock(C), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, flock(D), Shared, 1), Ok(Waits));
    assert!(locks.insist((2, 1)), "a holder conflicts");
    assert_eq!(locks.answered(), []);
    assert!(locks.insist((3, 1)));
    assert_eq!(locks.answered(), [((3, 1), Ok(()))]);
    assert!(!locks.insist((3, 1)));
}

#[test]
fn a_wait_that_would_close_a_cycle_is_refused() {
    let mut locks = Locks::default();
    for (owner, at) in [(A, 0), (B, 1), (C, 2)] {
        locks.try_set(5, wish(owner, at, at), Exclusive).unwrap();
    }
    assert_eq!(locks.wait(5, wish(A, 1, 1), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(A, 9, 9), Exclusive, 1), Err(Errno::EINVAL), "one ticket, one wait");
    assert_eq!(locks.wait(5, wish(B, 2, 2), Shared, 2), Ok(Waits));
    assert_eq!(
        locks.try_set(5, wish(C, 0, 0), Shared),
        Err(Errno::EAGAIN),
        "a request without a ticket closes no cycle"
    );
    assert_eq!(locks.wait(5, wish(C, 0, 0), Shared, 1), Err(Errno::EDEADLK));
    assert!(locks.stop_waiting((1, 1)));
    assert_eq!(locks.wait(5, wish(C, 0, 0), Shared, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(A, 2, 2), Exclusive, 1), Err(Errno::EDEADLK));
    assert_eq!(locks.answered(), []);
}

#[test]
fn a_grant_that_closes_a_cycle_refuses_the_waiter() {
    let mut locks = Locks::default();
    locks.try_set(5, wish(C, 0, 0), Exclusive).unwrap();
    locks.try_set(5, wish(D, 1, 1), Exclusive).unwrap();
    // A waits for C with one thread and for D with another one, before C waits for D.
    assert_eq!(locks.wait(5, wish(A, 0, 0), Exclusive, 1), Ok(Waits));
    assert_eq!(locks.wait(5, wish(A, 1, 1), Exclusive, 2), Ok(Waits));
    assert_eq!(locks.wait(5, wish(C, 1, 1), Exclusive, 1), Ok(Waits));
    locks.try_set(5, wish(D, 1, 1), Unlock).unwrap();
    assert_eq!(locks.answered(), [((1, 2), Ok(())), ((1, 1), Err(Errno::EDEADLK))]);
    locks.try_set(5, wish(A, 1, 1), Unlock).unwrap();
    assert_eq!(locks.answered(), [((2, 1), Ok(()))]);
}
