//! Locks, and what they say of a client's caches.

use rfs_proto::{Granted, HeldLock, LockClass, LockKind, LockRange, Locked};

use super::*;

fn lock(ino: u64, owner: u64, kind: LockKind) -> Request<'static> {
    let (class, range) = (LockClass::Record, LockRange { first: 3, last: 9 });
    Request::Lock { ino, owner, class, kind, range, pid: 77, ticket: None }
}

impl Client<'_> {
    fn locked(&self, ino: u64, owner: u64) -> Locked {
        match self.ask(lock(ino, owner, LockKind::Exclusive)) {
            Reply::Locked(locked) => locked,
            other => panic!("{other:?}"),
        }
    }

    fn unlock(&self, ino: u64, owner: u64) {
        self.done(lock(ino, owner, LockKind::Unlock));
    }

    fn in_the_way(&self, ino: u64, owner: u64) -> Option<HeldLock> {
        let (class, range) = (LockClass::Record, LockRange::ALL);
        match self.ask(Request::TestLock { ino, owner, class, exclusive: true, range }) {
            Reply::Conflict(found) => found,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn locks_belong_to_sessions_and_end_with_their_leases() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let ino = one.create("f").attr.ino;
    assert_eq!(two.error(lock(ino, 5, LockKind::Shared)), Errno::EBADF);
    assert_eq!(two.error(lock(ino, 5, LockKind::Unlock)), Errno::EBADF);
    two.opened(Request::Open { ino, write: true });
    one.locked(ino, 5);
    // The same number of another session is another owner.
    assert_eq!(two.error(lock(ino, 5, LockKind::Shared)), Errno::EAGAIN);
    let held = HeldLock { exclusive: true, range: LockRange { first: 3, last: 9 }, pid: 77 };
    assert_eq!(one.in_the_way(ino, 5), None);
    assert_eq!(one.in_the_way(ino, 6), Some(held));
    assert_eq!(two.in_the_way(ino, 5), Some(HeldLock { pid: 0, ..held }));
    let range = LockRange { first: 9, last: 8 };
    let (class, kind) = (LockClass::Flock, LockKind::Shared);
    let backwards = Request::Lock { ino, owner: 5, class, kind, range, pid: 0, ticket: None };
    assert_eq!(one.error(backwards), Errno::EINVAL);
    // One open less is not the last.
    one.opened(Request::Open { ino, write: true });
    one.close(ino);
    assert_eq!(two.error(lock(ino, 5, LockKind::Shared)), Errno::EAGAIN);
    one.close(ino);
    two.locked(ino, 5);
    one.opened(Request::Open { ino, write: true });
    assert_eq!(one.error(lock(ino, 5, LockKind::Shared)), Errno::EAGAIN);
    fixture.dispatcher.session_ended(2);
    one.locked(ino, 5);
}

#[test]
fn a_lock_tells_whether_somebody_else_was_there() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let ino = one.create("f").attr.ino;
    let again = || {
        let locked = one.locked(ino, 5);
        one.unlock(ino, 5);
        locked
    };
    let first = again();
    assert!(first.alone);
    assert_eq!(again(), first, "nobody was");
    // Somebody who opens and closes, and may have written.
    two.opened(Request::Open { ino, write: true });
    assert!(!again().alone);
    two.close(ino);
    let later = again();
    assert!(later.alone && later.visits > first.visits);
    assert_eq!(again(), later);
    // A truncation needs no open.
    two.truncate(ino, 5);
    let cut = again();
    assert!(cut.alone && cut.visits > later.visits);
    assert_eq!(again(), cut);
}

#[test]
fn circles_over_two_files_and_sessions() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let (x, y) = (one.create("x").attr.ino, one.create("y").attr.ino);
    two.opened(Request::Open { ino: x, write: true });
    two.opened(Request::Open { ino: y, write: true });
    one.locked(x, 5);
    two.locked(y, 5);
    let shared = |ino| wait(ino, LockKind::Shared, 1);
    assert_eq!(one.ask(shared(y)), Reply::Waits);
    assert_eq!(two.error(shared(x)), Errno::EDEADLK);
    one.done(Request::StopWaiting { ticket: 1 });
    assert_eq!(two.ask(shared(x)), Reply::Waits);
    let told = two.start(Request::Grants);
    fixture.dispatcher.session_ended(1);
    assert!(matches!(granted(&told)[..], [Granted { ticket: 1, outcome: Ok(_) }]));
}

/// Waits for all of a file, for owner 5.
fn wait(ino: u64, kind: LockKind, ticket: u64) -> Request<'static> {
    let (class, range) = (LockClass::Record, LockRange::ALL);
    Request::Lock { ino, owner: 5, class, kind, range, pid: 0, ticket: Some(ticket) }
}

fn granted(told: &mpsc::Receiver<Reply>) -> Vec<Granted> {
    match told.try_recv() {
        Ok(Reply::Grants(granted)) => granted,
        other => panic!("{other:?}"),
    }
}

const NOTHING: Result<Reply, mpsc::TryRecvError> = Err(mpsc::TryRecvError::Empty);

/// A file that session 1 has locked for owner 5, open in sessions 1 to 3.
fn locked_by_one(fixture: &Fixture) -> (u64, [Client<'_>; 3]) {
    let clients = [1, 2, 3].map(|id| fixture.client(id));
    let ino = clients[0].create("f").attr.ino;
    for client in &clients[1..] {
        client.opened(Request::Open { ino, write: true });
    }
    clients[0].locked(ino, 5);
    (ino, clients)
}

#[test]
fn whoever_waits_is_told_late_and_in_turn() {
    let fixture = fixture(16, 8);
    let (ino, [one, two, three]) = locked_by_one(&fixture);
    let (to_two, to_three) = (two.start(Request::Grants), three.start(Request::Grants));
    assert_eq!(two.ask(wait(ino, LockKind::Exclusive, 7)), Reply::Waits);
    assert_eq!(two.ask(wait(ino, LockKind::Exclusive, 7)), Reply::Waits, "it goes on waiting");
    assert_eq!(two.error(wait(ino, LockKind::Shared, 7)), Errno::EINVAL, "that ticket is taken");
    assert_eq!(three.ask(wait(ino, LockKind::Shared, 7)), Reply::Waits, "numbers are a session's own");
    assert_eq!((to_two.try_recv(), to_three.try_recv()), (NOTHING, NOTHING));
    one.unlock(ino, 5);
    let [Granted { ticket: 7, outcome: Ok(Locked { visits, alone: false }) }] = granted(&to_two)[..] else {
        panic!()
    };
    assert_eq!(to_three.try_recv(), NOTHING);
    assert_eq!(two.error(Request::StopWaiting { ticket: 7 }), Errno::ENOENT, "it does not wait any more");
    two.done(Request::Lock {
        ino,
        owner: 5,
        class: LockClass::Record,
        kind: LockKind::Unlock,
        range: LockRange::ALL,
        pid: 0,
        ticket: None,
    });
    let [Granted { ticket: 7, outcome: Ok(next) }] = granted(&to_three)[..] else { panic!() };
    assert!(next.visits > visits, "somebody else was there");
    // Who has been told asks again, and is told at once what has come meanwhile.
    assert_eq!(one.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    three.close(ino);
    let [Granted { ticket: 1, outcome: Ok(Locked { alone: false, .. }) }] =
        granted(&one.start(Request::Grants))[..]
    else {
        panic!()
    };
}

#[test]
fn whoever_stops_gets_nothing_and_those_behind_go_on() {
    let fixture = fixture(16, 8);
    let (ino, [one, two, three]) = locked_by_one(&fixture);
    // A lock for readers, behind which a writer waits, and behind that a reader.
    one.ask(lock(ino, 5, LockKind::Shared));
    assert_eq!(two.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    assert_eq!(three.ask(wait(ino, LockKind::Shared, 1)), Reply::Waits);
    let (to_two, to_three) = (two.start(Request::Grants), three.start(Request::Grants));
    two.done(Request::StopWaiting { ticket: 1 });
    assert!(matches!(granted(&to_three)[..], [Granted { ticket: 1, outcome: Ok(_) }]));
    assert_eq!(two.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits, "the ticket can be used again");
    two.done(Request::Insist { ticket: 1 });
    assert_eq!(two.error(Request::Insist { ticket: 2 }), Errno::ENOENT);
    three.close(ino);
    assert_eq!(to_two.try_recv(), NOTHING);
    one.close(ino);
    assert!(matches!(granted(&to_two)[..], [Granted { ticket: 1, outcome: Ok(Locked { alone: true, .. }) }]));
}

#[test]
fn one_asks_for_grants_at_a_time_and_not_when_the_session_is_over() {
    let fixture = fixture(16, 8);
    let (ino, [one, two, three]) = locked_by_one(&fixture);
    let (first, second) = (two.start(Request::Grants), two.start(Request::Grants));
    assert_eq!(first.try_recv(), Ok(Reply::Error(Errno::EINTR)));
    for client in [&two, &three] {
        assert_eq!(client.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    }
    fixture.dispatcher.session_ended(2);
    assert_eq!(second.try_recv(), Ok(Reply::Error(Errno::EPROTO)));
    assert_eq!(two.start(Request::Grants).try_recv(), Ok(Reply::Error(Errno::EPROTO)));
    // Its place is another one's now. Who closes the file by another way waits in vain.
    one.unlock(ino, 5);
    let to_three = three.start(Request::Grants);
    assert!(matches!(granted(&to_three)[..], [Granted { ticket: 1, outcome: Ok(_) }]));
    assert_eq!(one.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    one.close(ino);
    assert_eq!(granted(&one.start(Request::Grants)), [Granted { ticket: 1, outcome: Err(Errno::EBADF) }]);
    assert!(fixture.dispatcher.store.grants.lock().end(2).is_none());
}
