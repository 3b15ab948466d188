use libc::{EAGAIN, EEXIST, EINVAL, ENOENT, ENOTEMPTY, ENXIO};

use super::{
    super::operation::{How, Renaming, Space, bytes},
    *,
};

/// Performs operations one after the other.
struct User(State, Id);

impl User {
    fn new() -> User {
        User(State::empty(), 0)
    }

    fn by(&mut self, worker: usize, op: Op) -> Outcome {
        self.seen(worker, op, &Outcome::Nothing)
    }

    fn seen(&mut self, worker: usize, op: Op, seen: &Outcome) -> Outcome {
        self.1 += 1;
        let act = Act { worker, id: self.1, op: &op, seen, resized: false, paged: false };
        let found = self.0.resolve(act);
        self.0.perform(act, found)
    }

    fn open(&mut self, worker: usize, path: Path) -> Outcome {
        let how = How { write: true, create: true, ..How::default() };
        self.by(worker, Op::Open { slot: 0, path, how })
    }
}

#[test]
fn bytes_are_where_they_were_written_and_holes_are_zero() {
    let mut user = User::new();
    assert_eq!(user.open(0, "a"), Outcome::Done);
    assert_eq!(user.by(0, Op::Write { slot: 0, at: 10, len: 5 }), Outcome::Count(5));
    let mut all = vec![0; 10];
    all.extend(bytes(2, 5));
    assert_eq!(user.by(0, Op::Read { slot: 0, at: 0, len: 99 }), Outcome::Bytes(all.clone()));
    assert_eq!(user.by(0, Op::Truncate { slot: 0, size: 12 }), Outcome::Done);
    assert_eq!(user.by(0, Op::Truncate { slot: 0, size: 15 }), Outcome::Done);
    all[12..].fill(0);
    assert_eq!(user.by(0, Op::ReadName { path: "a", at: 0, len: 99 }), Outcome::Bytes(all));
    assert_eq!(user.by(0, Op::Read { slot: 0, at: 15, len: 9 }), Outcome::Bytes(Vec::new()));
    let allocate = |space, at, len| Op::Allocate { slot: 0, space, at, len };
    assert_eq!(user.by(0, allocate(Space::AllocateKeep, 0, 99)), Outcome::Done);
    assert_eq!(user.0.attr(1).size, 15);
    assert_eq!(user.by(0, allocate(Space::Zero, 11, 9)), Outcome::Done);
    assert_eq!(user.0.attr(1).size, 20);
}

#[test]
fn a_copy_ends_at_the_end_and_does_not_overlap_itself() {
    let mut user = User::new();
    user.open(0, "a");
    user.by(0, Op::Write { slot: 0, at: 0, len: 100 });
    let copy = |at, target, len| Op::Copy { from: 0, to: 0, at, target, len };
    assert_eq!(user.by(0, copy(0, 50, 60)), Outcome::Failed(EINVAL));
    assert_eq!(user.by(0, copy(90, 100, 60)), Outcome::Count(10));
    assert_eq!(user.by(0, copy(110, 0, 60)), Outcome::Count(0));
    let expected = user.by(0, Op::Read { slot: 0, at: 90, len: 10 });
    assert_eq!(user.by(0, Op::Read { slot: 0, at: 100, len: 10 }), expected);
}

#[test]
fn zeros_may_be_a_hole_and_data_may_not() {
    let mut user = User::new();
    user.open(0, "a");
    user.by(0, Op::Write { slot: 0, at: 8192, len: 100 });
    let seek = |hole, at| Op::Seek { slot: 0, hole, at };
    for right in [0, 4096, 8192] {
        assert_eq!(user.seen(0, seek(false, 0), &Outcome::Count(right)), Outcome::Count(right));
    }
    assert_ne!(user.seen(0, seek(false, 0), &Outcome::Count(8193)), Outcome::Count(8193));
    assert_eq!(user.seen(0, seek(true, 0), &Outcome::Count(4096)), Outcome::Count(4096));
    assert_ne!(user.seen(0, seek(true, 8192), &Outcome::Count(8192)), Outcome::Count(8192));
    assert_eq!(user.seen(0, seek(true, 9000), &Outcome::Nothing), Outcome::Failed(ENXIO));
}

#[test]
fn names_are_made_once_and_a_replaced_file_lives_while_it_is_open() {
    let mut user = User::new();
    user.open(0, "a");
    user.open(1, "b");
    let how = How { write: true, create: true, exclusive: true, ..How::default() };
    assert_eq!(user.by(0, Op::Open { slot: 1, path: "a", how }), Outcome::Failed(EEXIST));
    let rename = |how| Op::Rename { from: "a", to: "b", how };
    assert_eq!(user.by(0, rename(Renaming::NoReplace)), Outcome::Failed(EEXIST));
    assert_eq!(user.by(0, rename(Renaming::Replace)), Outcome::Done);
    assert_eq!(user.0.lookup("a"), None);
    assert_eq!(user.0.lookup("b"), Some(1));
    user.0.collect();
    let unlinked = Attr { links: 0, ..user.0.attr(1) };
    assert_eq!(user.by(1, Op::Stat { slot: 0 }), Outcome::Attr(unlinked));
    user.by(1, Op::Close { slot: 0 });
    user.0.collect();
    assert_eq!(user.0.inodes.len(), 2);
    assert_eq!(user.by(0, rename(Renaming::Exchange)), Outcome::Failed(ENOENT));
}

#[test]
fn a_directory_goes_when_it_is_empty_and_takes_no_names_then() {
    let mut user = User::new();
    assert_eq!(user.open(0, "d/x"), Outcome::Failed(ENOENT));
    assert_eq!(user.by(0, Op::Mkdir { path: "d" }), Outcome::Done);
    assert_eq!(user.open(0, "d/x"), Outcome::Done);
    assert_eq!(user.by(0, Op::Rmdir { path: "d" }), Outcome::Failed(ENOTEMPTY));
    assert_eq!(user.by(0, Op::Link { from: "d/x", to: "a" }), Outcome::Done);
    assert_eq!(user.by(0, Op::Unlink { path: "d/x" }), Outcome::Done);
    // A walk that found the directory before it went.
    let op = Op::Link { from: "a", to: "d/y" };
    let act = Act { worker: 0, id: 99, op: &op, seen: &Outcome::Done, resized: false, paged: false };
    let found = user.0.resolve(act);
    assert_eq!(user.by(1, Op::Rmdir { path: "d" }), Outcome::Done);
    assert_eq!(user.0.perform(act, found), Outcome::Failed(ENOENT));
}

#[test]
fn locks_exclude_other_open_files_and_end_with_them() {
    let mut user = User::new();
    user.open(0, "a");
    user.open(1, "a");
    let lock = |lock| Op::LockFile { slot: 0, lock };
    assert_eq!(user.by(0, lock(Lock::Exclusive)), Outcome::Done);
    assert_eq!(user.by(1, lock(Lock::Shared)), Outcome::Failed(EAGAIN));
    let range = |lock, at| Op::LockRange { slot: 0, lock, at, len: 4 };
    assert_eq!(user.by(1, range(Lock::Shared, 0)), Outcome::Done);
    assert_eq!(user.by(0, range(Lock::Shared, 2)), Outcome::Done);
    assert_eq!(user.by(0, range(Lock::Exclusive, 3)), Outcome::Failed(EAGAIN));
    assert_eq!(user.by(0, range(Lock::Exclusive, 4)), Outcome::Done);
    assert!(user.0.has_locks(0));
    user.by(0, Op::Close { slot: 0 });
    assert!(!user.0.has_locks(0));
    assert_eq!(user.by(1, lock(Lock::Exclusive)), Outcome::Done);
    assert_eq!(user.by(1, range(Lock::Exclusive, 4)), Outcome::Done);
}

#[test]
fn an_append_that_is_overtaken_may_stay_where_the_end_was() {
    let mut user = User::new();
    let how = How { write: true, append: true, create: true, ..How::default() };
    user.by(0, Op::Open { slot: 0, path: "a", how });
    user.open(1, "a");
    let op = Op::Write { slot: 0, at: 7, len: 5 };
    let act = Act { worker: 0, id: 50, op: &op, seen: &Outcome::Count(5), resized: true, paged: false };
    let found = user.0.resolve(act);
    user.by(1, Op::Write { slot: 0, at: 10, len: 1 });
    user.0.perform(act, found);
    assert_eq!(user.0.attr(1).size, 11);
    let alone = Act { resized: false, ..act };
    let found = user.0.resolve(alone);
    user.0.perform(alone, found);
    assert_eq!(user.0.attr(1).size, 16);
}

#[test]
fn a_truncation_may_get_between_the_pages_of_a_write() {
    let mut user = User::new();
    user.open(0, "a");
    user.open(1, "a");
    let op = Op::Write { slot: 0, at: 4000, len: 200 };
    let act = Act { worker: 0, id: 50, op: &op, seen: &Outcome::Count(200), resized: true, paged: true };
    let found = user.0.resolve(act);
    assert_eq!(user.0.attr(1).size, 4096);
    user.by(1, Op::Truncate { slot: 0, size: 10 });
    assert_eq!(user.0.perform(act, found), Outcome::Count(200));
    let mut all = vec![0; 4200];
    all[4096..].copy_from_slice(&bytes(50, 200)[96..]);
    assert_eq!(user.by(1, Op::Read { slot: 0, at: 0, len: 9000 }), Outcome::Bytes(all));
}
