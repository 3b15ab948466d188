//! Tests of requests under locks that get lost.

use rfs_proto::{FallocateFlags, LockClass};

use super::*;
use crate::{inode::locks::held_locks::LockKey, remote::address::Epoch};

/// Begins a new epoch in which a lock is lost.
fn lose_a_lock(c: &Client, ino: u64) {
    let inode = c.caching.inodes.opened(ino).expect("known");
    inode.caller.lock().locks.has(LockKey { handle: 7, owner: 7, class: LockClass::Record });
    assert_eq!(inode.lose_locks(Epoch(1)), 1);
    // Placed bytes have to be checked against the record, too.
    inode.file.write().size.distrust();
}

/// The lost lock may have guarded the requests.
#[test]
fn a_request_under_a_lost_lock_is_not_repeated() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let other = c.async_io.transfers.count();
    let reading = start(&c, ino, 5, 100).expect("started");
    let writing = start_write(&c, ino, 5, b"xyz", false).expect("started");
    // A file of one byte, with space for more.
    let longer = create(&c, "g");
    c.writes.write(longer, 0, b"x").expect("written");
    let extending = start_write(&c, longer, 1, b"yz", false).expect("started");
    lose_a_lock(&c, ino);
    lose_a_lock(&c, longer);
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(extending.recv().expect("answered"), Err(Errno::EIO.into()));
    assert_eq!(server.size_and_time(longer).0, 1);
    assert_eq!(reading.recv().expect("answered"), Err(Errno::EIO.into()));
    assert_eq!(writing.recv().expect("answered"), Err(Errno::EIO.into()));
    drop(other);
}

/// A lock may guard changes of size and space as well as writes.
#[test]
fn a_change_of_space_under_a_lost_lock_fails() {
    let server = Fake::new(256, false);
    let (_meddler, c, ino) = with_file(&server);
    let other = create(&c, "g");
    lose_a_lock(&c, ino);
    let calls = server.calls();
    let refused = || Err(Errno::EIO.into());
    assert_eq!(c.attributes.setattr(ino, &TRUNCATE).map(drop), refused());
    assert_eq!(c.space.fallocate(ino, 0, 1, FallocateFlags::empty()).map(drop), refused());
    assert_eq!(c.space.copy((ino, 0), (other, 0), 1), Err(Errno::EIO.into()));
    assert_eq!(c.space.copy((other, 0), (ino, 0), 1), Err(Errno::EIO.into()));
    assert_eq!(server.calls(), calls, "nothing is asked for");
    c.attributes.setattr(other, &TRUNCATE).expect("no lock of that file was lost");
}

/// The lock is lost while the request is in flight. The next session does not carry the request
/// out.
#[test]
fn a_change_of_size_fails_if_its_lock_gets_lost_meanwhile() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let inode = c.caching.inodes.opened(ino).expect("known");
    inode.caller.lock().locks.has(LockKey { handle: 7, owner: 7, class: LockClass::Record });
    let loses = Arc::clone(&inode);
    interceptor.once(OpKind::Call, move || {
        loses.lose_locks(Epoch(1));
        Err(RequestError::Disconnected)
    });
    assert_eq!(c.attributes.setattr(ino, &TRUNCATE).map(drop), Err(Errno::EIO.into()));
    assert_eq!(on_server(&server, ino), pattern(LEN));
}
