//! Locks, and their information about the validity of a client's cache.

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
    // The same owner number in another session is another owner.
    assert_eq!(two.error(lock(ino, 5, LockKind::Shared)), Errno::EAGAIN);
    let held = HeldLock { exclusive: true, range: LockRange { first: 3, last: 9 }, pid: 77 };
    assert_eq!(one.in_the_way(ino, 5), None);
    assert_eq!(one.in_the_way(ino, 6), Some(held));
    assert_eq!(two.in_the_way(ino, 5), Some(HeldLock { pid: 0, ..held }));
    let range = LockRange { first: 9, last: 8 };
    let (class, kind) = (LockClass::Flock, LockKind::Shared);
    let backwards = Request::Lock { ino, owner: 5, class, kind, range, pid: 0, ticket: None };
    assert_eq!(one.error(backwards), Errno::EINVAL);
    // The file is opened twice, so the first close is not the last.
    one.opened(Request::Open { ino, write: true });
    one.close(ino);
    assert_eq!(two.error(lock(ino, 5, LockKind::Shared)), Errno::EAGAIN);
    one.close(ino);
    two.locked(ino, 5);
    one.opened(Request::Open { ino, write: true });
    assert_eq!(one.error(lock(ino, 5, LockKind::Shared)), Errno::EAGAIN);
    fixture.dispatcher.attachments().ended(2);
    one.locked(ino, 5);
}

#[test]
fn a_lock_tells_whether_another_session_has_used_the_file() {
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
    assert_eq!(again(), first, "no other session used it");
    // Another session opens and closes the file, and may have written.
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
    fixture.dispatcher.attachments().ended(1);
    assert!(matches!(granted(&told)[..], [Granted { ticket: 1, outcome: Ok(_) }]));
}

/// Blocks for a lock of the whole file, for owner 5.
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

/// Makes a file that session 1 has locked for owner 5, and that sessions 1 to 3 have open.
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
fn blocked_lock_requests_are_granted_in_order() {
    let fixture = fixture(16, 8);
    let (ino, [one, two, three]) = locked_by_one(&fixture);
    let (to_two, to_three) = (two.start(Request::Grants), three.start(Request::Grants));
    assert_eq!(two.ask(wait(ino, LockKind::Exclusive, 7)), Reply::Waits);
    assert_eq!(two.ask(wait(ino, LockKind::Exclusive, 7)), Reply::Waits, "it still waits");
    assert_eq!(two.error(wait(ino, LockKind::Shared, 7)), Errno::EINVAL, "that ticket is taken");
    assert_eq!(three.ask(wait(ino, LockKind::Shared, 7)), Reply::Waits, "each session has its own tickets");
    assert_eq!((to_two.try_recv(), to_three.try_recv()), (NOTHING, NOTHING));
    one.unlock(ino, 5);
    let [Granted { ticket: 7, outcome: Ok(Locked { visits, alone: false }) }] = granted(&to_two)[..] else {
        panic!()
    };
    assert_eq!(to_three.try_recv(), NOTHING);
    assert_eq!(two.error(Request::StopWaiting { ticket: 7 }), Errno::ENOENT, "it has stopped waiting");
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
    assert!(next.visits > visits, "another session has used it");
    // A session that asks again gets grants that came meanwhile at once.
    assert_eq!(one.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    three.close(ino);
    let [Granted { ticket: 1, outcome: Ok(Locked { alone: false, .. }) }] =
        granted(&one.start(Request::Grants))[..]
    else {
        panic!()
    };
}

#[test]
fn a_cancelled_request_gets_no_lock_and_unblocks_later_ones() {
    let fixture = fixture(16, 8);
    let (ino, [one, two, three]) = locked_by_one(&fixture);
    // A writer waits for the lock of a reader, and another reader waits behind the writer.
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
fn a_session_has_one_request_for_grants_and_none_after_its_end() {
    let fixture = fixture(16, 8);
    let (ino, [one, two, three]) = locked_by_one(&fixture);
    let (first, second) = (two.start(Request::Grants), two.start(Request::Grants));
    assert_eq!(first.try_recv(), Ok(Reply::Error(Errno::EINTR)));
    for client in [&two, &three] {
        assert_eq!(client.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    }
    fixture.dispatcher.attachments().ended(2);
    assert_eq!(second.try_recv(), Ok(Reply::Error(Errno::EPROTO)));
    assert_eq!(two.start(Request::Grants).try_recv(), Ok(Reply::Error(Errno::EPROTO)));
    // The blocked request of session 2 has ended, so session 3 is next. A blocked request fails
    // when its session closes the file.
    one.unlock(ino, 5);
    let to_three = three.start(Request::Grants);
    assert!(matches!(granted(&to_three)[..], [Granted { ticket: 1, outcome: Ok(_) }]));
    assert_eq!(one.ask(wait(ino, LockKind::Exclusive, 1)), Reply::Waits);
    one.close(ino);
    assert_eq!(granted(&one.start(Request::Grants)), [Granted { ticket: 1, outcome: Err(Errno::EBADF) }]);
    assert!(fixture.dispatcher.store.grants.lock().end(2).is_none());
}
