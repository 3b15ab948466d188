//! Tests of the client against a server in memory, with mapped memory and without.

mod append;
mod async_io;
mod cache;
mod checksums;
pub(crate) mod fake;
mod writeback;

use std::sync::{Arc, atomic::Ordering};

use rdmabox::RequestError;
use rfs_proto::{Attr, BLOCK, Errno, SetAttr, SetTime};

use crate::{
    AttachOptions, Client, ClientError, Creator, LentRights, ReadData,
    tests::fake::{Fake, Interceptor, OpKind},
};

/// The root directory is always referenced.
const ROOT: usize = 1;
const OWNER: Creator = Creator { uid: 0, gid: 0, umask: 0 };
const TRUNCATE: SetAttr = SetAttr {
    perm: None,
    uid: None,
    gid: None,
    size: Some(0),
    atime: None,
    mtime: None,
    drop_privileges: false,
    ctime: None,
    only_if: None,
};

fn client(server: &Arc<Fake>) -> Client {
    Client::attach(server.clone(), &AttachOptions::default()).expect("attached")
}

fn both(test: impl Fn(Arc<Fake>)) {
    for mapped in [true, false] {
        test(Fake::new(256, mapped));
    }
}

fn create(client: &Client, name: &str) -> u64 {
    client.files.create(1, name.as_bytes(), 0o644, OWNER, true).expect("created").ino
}

fn read(client: &Client, ino: u64, offset: u64, len: usize) -> Vec<u8> {
    try_read(client, ino, offset, len).expect("read")
}

fn try_read(client: &Client, ino: u64, offset: u64, len: usize) -> Result<Vec<u8>, ClientError> {
    client.reads.read(ino, offset, len, &mut vec![0xee; 3], |data| match data {
        ReadData::Bytes(bytes) => bytes.to_vec(),
        ReadData::Mapped { memory, offset, len } => {
            let mut out = vec![0; len];
            memory.read(offset, &mut out);
            out
        }
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8 + 1).collect()
}

#[test]
fn written_bytes_are_read_back_and_holes_are_zero() {
    both(|server| {
        server.run.store(2, Ordering::Relaxed);
        server.page.store(3, Ordering::Relaxed);
        let c = client(&server);
        let ino = create(&c, "f");
        let data = pattern(20 * BLOCK as usize + 77);
        let at = 5 * BLOCK + 13;
        c.writes.write(ino, at, &data).expect("written");
        let mut expected = vec![0; at as usize];
        expected.extend_from_slice(&data);
        assert_eq!(read(&c, ino, 0, expected.len() + 1000), expected);
        assert_eq!(read(&c, ino, at + 3, 10), data[3..13]);
        assert_eq!(read(&c, ino, at + data.len() as u64, 10), b"");
        assert_eq!(read(&c, ino, u64::MAX, 10), b"");
        assert_eq!(c.attributes.getattr(ino).expect("attributes").size, expected.len() as u64);
    });
}

#[test]
fn reads_and_overwrites_of_an_open_file_make_no_call() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.writes.write(ino, 0, &pattern(8 * BLOCK as usize)).expect("written");
        let before = server.calls();
        for i in 0..8 {
            c.writes.write(ino, i * BLOCK, &pattern(BLOCK as usize)).expect("written");
            assert_eq!(read(&c, ino, i * BLOCK, BLOCK as usize), pattern(BLOCK as usize));
        }
        c.attributes.getattr(ino).expect("attributes");
        c.files.fsync(ino).expect("synced");
        assert_eq!(server.calls(), before);
    });
}

#[test]
fn growing_into_allocated_space_is_one_list_and_no_call() {
    let server = Fake::new(256, false);
    let c = client(&server);
    let ino = create(&c, "f");
    c.writes.write(ino, 0, b"x").expect("written");
    let (calls, lists) = (server.calls(), server.lists.load(Ordering::Relaxed));
    c.writes.write(ino, 1, b"y").expect("written");
    assert_eq!(server.calls(), calls);
    assert_eq!(server.lists.load(Ordering::Relaxed), lists + 1);
    assert_eq!(server.size_and_time(ino).0, 2);
}

#[test]
fn two_clients_see_each_others_bytes() {
    both(|server| {
        let (a, b) = (client(&server), client(&server));
        let ino = create(&a, "f");
        assert_eq!(b.lookups.lookup(1, b"f").expect("found").ino, ino);
        b.files.open(ino, true).expect("opened");
        a.writes.write(ino, 0, b"from a").expect("written");
        assert_eq!(read(&b, ino, 0, 100), b"from a", "past the size that b knew");
        b.writes.write(ino, 6, b", from b").expect("written");
        assert_eq!(read(&a, ino, 0, 100), b"from a, from b");
    });
}

#[test]
fn a_filled_hole_is_filled_for_concurrent_readers() {
    let server = Fake::new(256, false);
    let interceptor = Interceptor::new(&server);
    let a = Arc::new(Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached"));
    let b = client(&server);
    let ino = create(&a, "f");
    b.files.open(ino, true).expect("opened");
    a.writes.write(ino, 8 * BLOCK, b"end").expect("written");
    assert_eq!(read(&a, ino, 0, 4), [0; 4]);
    // One reader has found a hole in its layout, and checks it. Another reader is faster.
    let faster = a.clone();
    interceptor.once(OpKind::Read, move || {
        b.writes.write(ino, 0, b"data").expect("written by another client");
        assert_eq!(read(&faster, ino, 0, 4), b"data");
        Ok(())
    });
    assert_eq!(read(&a, ino, 0, 4), b"data");
}

#[test]
fn a_size_raised_by_another_client_meanwhile_is_never_lowered() {
    both(|server| {
        let interceptor = Interceptor::new(&server);
        let a = Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached");
        let b = client(&server);
        let ino = create(&a, "f");
        b.files.open(ino, true).expect("opened");
        a.writes.write(ino, 0, b"aa").expect("written");
        interceptor.once(OpKind::Execute, move || {
            b.writes.write(ino, 0, &pattern(100)).expect("written by another client");
            Ok(())
        });
        a.writes.write(ino, 2, b"bb").expect("written");
        assert_eq!(server.size_and_time(ino).0, 100);
        let mut expected = pattern(100);
        expected[2..4].copy_from_slice(b"bb");
        assert_eq!(read(&a, ino, 0, 200), expected);
    });
}

#[test]
fn a_size_raised_a_little_meanwhile_is_raised_further() {
    both(|server| {
        let interceptor = Interceptor::new(&server);
        let a = Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached");
        let b = client(&server);
        let ino = create(&a, "f");
        b.files.open(ino, true).expect("opened");
        a.writes.write(ino, 0, b"aa").expect("written");
        interceptor.once(OpKind::Execute, move || {
            b.writes.write(ino, 2, b"b").expect("written by another client");
            Ok(())
        });
        a.writes.write(ino, 2, b"ccc").expect("written");
        assert_eq!(server.size_and_time(ino).0, 5);
        assert_eq!(read(&a, ino, 0, 9), b"aaccc");
    });
}

#[test]
fn a_write_that_a_truncation_overtook_is_repeated() {
    both(|server| {
        let interceptor = Interceptor::new(&server);
        let a = Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached");
        let b = client(&server);
        let ino = create(&a, "f");
        a.writes.write(ino, 0, &pattern(3 * BLOCK as usize)).expect("written");
        // Mapped: a write inside the file notices the truncation. Otherwise: a write past the end
        // does.
        let kind = if server_is_mapped(&server) { OpKind::Write } else { OpKind::Execute };
        let at = if server_is_mapped(&server) { BLOCK } else { 3 * BLOCK };
        interceptor.once(kind, move || {
            b.attributes.setattr(ino, &TRUNCATE).expect("truncated by another client");
            Ok(())
        });
        a.writes.write(ino, at, b"after").expect("written");
        assert_eq!(server.size_and_time(ino).0, at + 5);
        let mut expected = vec![0; at as usize];
        expected.extend_from_slice(b"after");
        assert_eq!(read(&a, ino, 0, 5 * BLOCK as usize), expected);
    });
}

fn server_is_mapped(server: &Arc<Fake>) -> bool {
    client(server).is_mapped()
}

#[test]
fn a_hole_that_another_client_filled_is_found() {
    both(|server| {
        let (a, b) = (client(&server), client(&server));
        let ino = create(&a, "f");
        a.writes.write(ino, 4 * BLOCK, b"end").expect("written");
        b.files.open(ino, true).expect("opened");
        assert_eq!(read(&b, ino, BLOCK, 4), [0; 4]);
        a.writes.write(ino, BLOCK, b"fill").expect("written");
        assert_eq!(read(&b, ino, BLOCK, 4), b"fill");
        // A hole that stays one costs no further call.
        read(&b, ino, 2 * BLOCK, 4);
        let before = server.calls();
        assert_eq!(read(&b, ino, 2 * BLOCK, 4), [0; 4]);
        assert_eq!(server.calls(), before);
    });
}

#[test]
fn a_cut_and_extended_range_reads_as_zero() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.writes.write(ino, 0, &pattern(3 * BLOCK as usize)).expect("written");
        c.attributes.setattr(ino, &SetAttr { size: Some(10), ..SetAttr::default() }).expect("cut");
        assert_eq!(read(&c, ino, 0, 100), pattern(10));
        c.attributes
            .setattr(ino, &SetAttr { size: Some(2 * BLOCK), ..SetAttr::default() })
            .expect("extended");
        let mut expected = pattern(10);
        expected.resize(2 * BLOCK as usize, 0);
        assert_eq!(read(&c, ino, 0, 3 * BLOCK as usize), expected);
    });
}

#[test]
fn many_opens_of_a_client_are_one_open_at_the_server() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        let before = server.calls();
        c.files.open(ino, true).expect("opened");
        c.files.open(ino, true).expect("opened");
        assert_eq!((server.calls(), server.opens(ino)), (before, 1));
        c.files.close(ino).expect("closed");
        c.files.close(ino).expect("closed");
        assert_eq!(server.opens(ino), 1);
        c.files.close(ino).expect("closed");
        assert_eq!(server.opens(ino), 0);
        assert_eq!(c.files.close(ino), Err(Errno::EBADF.into()));
        assert_eq!(try_read(&c, ino, 0, 1), Err(Errno::EBADF.into()));
        assert_eq!(c.writes.write(ino, 0, b"x"), Err(Errno::EBADF.into()));
    });
}

#[test]
fn every_open_at_the_server_is_closed() {
    let server = Fake::new(16, true);
    let c = client(&server);
    let ino = create(&c, "f");
    // A create that finds the file opens it once more at the server.
    c.files.create(1, b"f", 0o644, OWNER, false).expect("opened");
    assert_eq!(server.opens(ino), 2);
    c.files.close(ino).expect("closed");
    c.files.close(ino).expect("closed");
    assert_eq!(server.opens(ino), 0);
    c.lookups.forget(ino, 2);
    assert_eq!(c.known_inodes(), ROOT);
}

#[test]
fn an_inode_is_forgotten_with_its_last_reference() {
    let server = Fake::new(16, true);
    let c = client(&server);
    let ino = create(&c, "f");
    c.lookups.lookup(1, b"f").expect("found");
    c.lookups.forget(ino, 2);
    assert_eq!(c.known_inodes(), ROOT + 1, "it is open");
    c.writes.write(ino, 0, b"x").expect("written");
    c.files.close(ino).expect("closed");
    assert_eq!(c.known_inodes(), ROOT);
    assert_eq!(c.files.open(999, true), Err(Errno::ENOENT.into()));
    assert_eq!(c.known_inodes(), ROOT, "a failed open leaves nothing");
}

#[test]
fn a_write_to_a_full_server_fails_and_changes_nothing() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.writes.write(ino, 0, b"kept").expect("written");
        let big = vec![1; 300 * BLOCK as usize];
        assert_eq!(c.writes.write(ino, 2, &big), Err(Errno::ENOSPC.into()));
        assert_eq!(read(&c, ino, 0, 100), b"kept");
        c.writes.write(ino, 4, b" on").expect("written");
        assert_eq!(read(&c, ino, 0, 100), b"kept on");
    });
}

#[test]
fn a_write_stores_what_fits() {
    both(|server| {
        server.run.store(1000, Ordering::Relaxed);
        let c = client(&server);
        let ino = create(&c, "f");
        let data = pattern(300 * BLOCK as usize);
        let mut at = 0;
        let refused = loop {
            match c.writes.write_some(ino, at as u64, &data[at..]) {
                Ok(written) => at += written.len,
                Err(e) => break e,
            }
        };
        assert_eq!((at as u64, refused), (256 * BLOCK, Errno::ENOSPC.into()));
        assert!(read(&c, ino, 0, data.len()) == data[..at]);
        assert_eq!(c.writes.write_some(ino, 0, &data[..100]).map(|written| written.len), Ok(100));
        assert_eq!(c.writes.write_some(ino, 0, b"").map(|written| written.len), Ok(0));
    });
}

#[test]
fn a_write_past_the_maximum_file_size_fails() {
    let server = Fake::new(16, true);
    let c = client(&server);
    let ino = create(&c, "f");
    assert_eq!(c.writes.write(ino, i64::MAX as u64, b"x"), Err(Errno::EFBIG.into()));
    assert_eq!(c.writes.write(ino, u64::MAX, b"x"), Err(Errno::EFBIG.into()));
    assert_eq!(c.writes.write(ino, u64::MAX, b""), Ok(()));
}

#[test]
fn every_operation_fails_if_the_server_is_dead() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.writes.write(ino, 0, b"x").expect("written");
        server.die();
        let gone = ClientError::Request(RequestError::Disconnected);
        assert_eq!(try_read(&c, ino, 0, 1), Err(gone.clone()), "although the memory may still be mapped");
        assert_eq!(c.writes.write(ino, 0, b"y"), Err(gone.clone()));
        assert_eq!(c.attributes.getattr(ino), Err(gone.clone()));
        assert_eq!(c.lookups.lookup(1, b"f"), Err(gone.clone()));
        assert_eq!(c.files.close(ino), Err(gone));
        assert_eq!(try_read(&c, ino, 0, 1), Err(Errno::EBADF.into()), "closed all the same");
    });
}

#[test]
fn a_timeout_has_its_own_errno() {
    let server = Fake::new(16, false);
    let interceptor = Interceptor::new(&server);
    let c = Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached");
    let ino = create(&c, "f");
    for kind in [OpKind::Execute, OpKind::Call] {
        interceptor.once(kind, || Err(RequestError::Timeout(std::time::Duration::from_secs(1))));
        let failed = match kind {
            OpKind::Call => c.lookups.lookup(1, b"f").map(drop),
            _ => try_read(&c, ino, 0, 1).map(drop),
        };
        assert_eq!(failed.expect_err("timeout").errno(), Errno::ETIMEDOUT);
    }
}

#[test]
fn write_times_are_published_sparingly_and_never_lost() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.writes.write(ino, 0, b"1").expect("written");
        let first = server.size_and_time(ino).1;
        assert!(first > 0, "the first write is published at once");
        // Most of many quick writes stay pending. The caller sees their times at once.
        while server.size_and_time(ino).1 != first || !pending(&c, ino) {
            c.writes.write(ino, 0, b"2").expect("written");
            if server.size_and_time(ino).1 != first {
                break;
            }
        }
        let seen = c.attributes.getattr(ino).expect("attributes").mtime;
        c.files.flush(ino).expect("flushed");
        assert_eq!(server.size_and_time(ino).1, seen);
        assert!(!pending(&c, ino));
    });
}

fn pending(client: &Client, ino: u64) -> bool {
    client.caching.inodes.get(ino).is_some_and(|inode| inode.times.lock().pending().is_some())
}

#[test]
fn a_time_that_was_set_is_not_overwritten_by_an_older_write() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.writes.write(ino, 0, b"1").expect("written");
        c.writes.write(ino, 0, b"2").expect("written");
        let set = SetAttr { mtime: Some(SetTime::At(12345)), ..SetAttr::default() };
        assert_eq!(c.attributes.setattr(ino, &set).expect("set").mtime, 12345);
        c.files.close(ino).expect("closed");
        assert_eq!(c.attributes.getattr(ino).expect("attributes").mtime, 12345);
        c.files.open(ino, true).expect("opened");
        c.writes.write(ino, 0, b"3").expect("written");
        assert!(c.attributes.getattr(ino).expect("attributes").mtime > 12345, "the next write counts");
    });
}

#[test]
fn a_record_that_became_another_inodes_is_not_believed() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        server.reuse_slot(ino);
        let before = server.calls();
        assert_eq!(c.attributes.getattr(ino).expect("asked by message").ino, ino);
        assert_eq!(server.calls(), before + 1);
    });
}

#[test]
fn attributes_are_compared_with_those_the_caller_was_told() {
    let server = Fake::new(16, true);
    let (a, b) = (client(&server), client(&server));
    let ino = create(&a, "f");
    b.lookups.lookup(1, b"f").expect("found");
    let attr = b.files.open(ino, true).expect("opened");
    assert!(b.attributes.differs_from_told(&attr), "nothing was told yet");
    b.attributes.told(&attr, 1);
    assert!(!b.attributes.differs_from_told(&attr));
    a.writes.write(ino, 0, b"x").expect("written");
    let attr = b.files.open(ino, true).expect("opened");
    assert!(b.attributes.differs_from_told(&attr));
    assert_eq!(b.privileges.of(ino), Ok(LentRights::new(0o644, rfs_proto::Marks::empty())));
}

#[test]
fn threads_write_and_grow_one_file_in_parallel() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let c = &c;
                scope.spawn(move || {
                    for i in 0..32u64 {
                        let block = i * 4 + t;
                        c.writes.write(ino, block * 1000, &vec![block as u8 + 1; 1000]).expect("written");
                    }
                });
            }
        });
        let all = read(&c, ino, 0, 200_000);
        assert_eq!(all.len(), 128_000);
        for (block, bytes) in all.chunks(1000).enumerate() {
            assert!(bytes.iter().all(|b| *b == block as u8 + 1), "block {block}");
        }
    });
}
