//! Locks, and what they say of a client's caches.

use rfs_proto::{HeldLock, LockClass, LockKind, LockRange, Locked};

use super::*;

fn lock(ino: u64, owner: u64, kind: LockKind) -> Request<'static> {
    let (class, range) = (LockClass::Record, LockRange { first: 3, last: 9 });
    Request::Lock { ino, owner, class, kind, range, pid: 77, wait: false }
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
    let backwards = Request::Lock { ino, owner: 5, class, kind, range, pid: 0, wait: false };
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
    let (class, kind, range) = (LockClass::Record, LockKind::Shared, LockRange::ALL);
    let wait = |ino| Request::Lock { ino, owner: 5, class, kind, range, pid: 0, wait: true };
    assert_eq!(one.error(wait(y)), Errno::EAGAIN);
    assert_eq!(two.error(wait(x)), Errno::EDEADLK);
    one.done(Request::StopWaiting { owner: 5 });
    assert_eq!(two.error(wait(x)), Errno::EAGAIN);
    fixture.dispatcher.session_ended(1);
    assert!(matches!(two.ask(wait(x)), Reply::Locked(_)));
}
