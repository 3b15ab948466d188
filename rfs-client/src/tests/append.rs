//! Tests of appends, and of changes by other clients meanwhile.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use rfs_proto::record;

use crate::tests::*;

/// Creates a file of one byte, and a client whose operations the test can intercept.
fn with_file(server: &Arc<Fake>) -> (Arc<Interceptor>, Client, u64) {
    let interceptor = Interceptor::new(server);
    let a = Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached");
    let ino = create(&a, "f");
    a.writes.write(ino, 0, b"0").expect("written");
    (interceptor, a, ino)
}

fn another(server: &Arc<Fake>, ino: u64) -> Client {
    let b = client(server);
    b.files.open(ino, true).expect("opened");
    b
}

#[test]
fn clients_append_one_behind_the_other() {
    both(|server| {
        let (_, a, ino) = with_file(&server);
        let b = another(&server, ino);
        assert_eq!(a.appends.append(ino, b"aaa"), Ok(1));
        assert_eq!(b.appends.append(ino, &[b'b'; 5000]), Ok(4));
        assert_eq!(a.appends.append(ino, b""), Ok(5004));
        assert_eq!(a.appends.append(ino, b"aa"), Ok(5004));
        assert_eq!(server.appender(ino), 0);
        let expected = [&b"0aaa"[..], &[b'b'; 5000], b"aa"].concat();
        assert_eq!(read(&b, ino, 0, 6000), expected);
        a.files.close(ino).expect("closed");
        assert_eq!(a.appends.append(ino, b"x"), Err(Errno::EBADF.into()));
        assert_eq!(b.appends.append(ino + 1, b"x"), Err(Errno::EBADF.into()));
    });
}

#[test]
fn an_append_into_allocated_space_is_two_lists_and_no_call() {
    let server = Fake::new(256, false);
    let (_, a, ino) = with_file(&server);
    let (calls, lists) = (server.calls(), server.lists.load(Ordering::Relaxed));
    a.appends.append(ino, b"x").expect("appended");
    assert_eq!((server.calls(), server.lists.load(Ordering::Relaxed)), (calls, lists + 2));
}

#[test]
fn an_append_waits_for_another_clients_append() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        let (send, receive) = std::sync::mpsc::channel();
        let waiting = server.clone();
        // While `a` holds the append lock, before it places bytes.
        interceptor.later(1, OpKind::Execute, move || {
            assert_ne!(waiting.appender(ino), 0);
            let before = waiting.lists.load(Ordering::Relaxed);
            let other = thread::spawn(move || b.appends.append(ino, b"bb"));
            while waiting.lists.load(Ordering::Relaxed) < before + 3 {
                thread::yield_now();
            }
            send.send(other).expect("received");
            Ok(())
        });
        assert_eq!(a.appends.append(ino, b"aa"), Ok(1));
        assert_eq!(receive.recv().expect("sent").join().expect("no panic"), Ok(3));
        assert_eq!(read(&a, ino, 0, 10), b"0aabb");
        assert_eq!(server.appender(ino), 0);
    });
}

#[test]
fn an_append_waits_for_a_dead_clients_lock_but_not_for_its_own() {
    both(|server| {
        let (_, a, ino) = with_file(&server);
        // An append of this session timed out and left the lock.
        server.set_appender(ino, record::appender(1, 9));
        assert_eq!(a.appends.append(ino, b"a"), Ok(1));
        server.set_appender(ino, record::appender(77, 9));
        let lists = server.lists.load(Ordering::Relaxed);
        thread::scope(|scope| {
            let appending = scope.spawn(|| a.appends.append(ino, b"b"));
            while server.lists.load(Ordering::Relaxed) < lists + 3 {
                thread::yield_now();
            }
            assert!(!appending.is_finished());
            server.set_appender(ino, 0);
            assert_eq!(appending.join().expect("no panic"), Ok(2));
        });
    });
}

#[test]
fn a_truncation_moves_an_append_to_the_new_end() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        a.appends.append(ino, &pattern(9000)).expect("appended");
        interceptor.later(1, OpKind::Execute, move || {
            b.attributes.setattr(ino, &TRUNCATE).expect("truncated");
            Ok(())
        });
        assert_eq!(a.appends.append(ino, b"after"), Ok(0));
        assert_eq!(read(&a, ino, 0, 100), b"after");
        assert_eq!(server.appender(ino), 0);
    });
}

#[test]
fn a_file_truncated_and_grown_to_the_same_size_meanwhile_has_the_bytes() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        a.appends.append(ino, &pattern(2 * BLOCK as usize - 1)).expect("appended");
        interceptor.later(1, OpKind::Execute, move || {
            b.attributes.setattr(ino, &TRUNCATE).expect("truncated");
            b.writes.write(ino, 0, &vec![7; 2 * BLOCK as usize]).expect("written");
            Ok(())
        });
        assert_eq!(a.appends.append(ino, b"behind"), Ok(2 * BLOCK));
        assert_eq!(read(&a, ino, 2 * BLOCK - 1, 100), b"\x07behind");
    });
}

#[test]
fn an_append_stays_where_the_end_was_if_a_write_grows_the_file_meanwhile() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        interceptor.later(1, OpKind::Execute, move || {
            b.writes.write(ino, 10, b"far").expect("written");
            Ok(())
        });
        assert_eq!(a.appends.append(ino, b"behind"), Ok(1));
        // The bytes are there once, and zeros follow them.
        assert_eq!(read(&a, ino, 0, 100), b"0behind\0\0\0far");
        assert_eq!(server.appender(ino), 0);
    });
}

#[test]
fn an_append_is_whole_if_a_write_grows_the_file_within_it() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        interceptor.later(1, OpKind::Execute, move || {
            b.writes.write(ino, 3, b"far").expect("written");
            Ok(())
        });
        assert_eq!(a.appends.append(ino, b"behind it"), Ok(1));
        assert_eq!(read(&a, ino, 0, 100), b"0behind it");
    });
}

#[test]
fn a_truncation_after_a_write_that_overtook_an_append_cuts_the_append() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        let steps = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&steps);
        interceptor.each_step(move |kind| {
            // The first list takes the lock, the second one places the bytes.
            match (kind, counted.load(Ordering::Relaxed)) {
                (OpKind::Execute, 0) => {}
                (OpKind::Execute, 1) => b.writes.write(ino, 100, b"far").expect("written"),
                (_, 2) => drop(b.attributes.setattr(ino, &TRUNCATE).expect("truncated")),
                _ => return,
            }
            counted.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(a.appends.append(ino, b"behind"), Ok(1));
        // The append itself may take no further step.
        let len = read(&a, ino, 0, 200).len();
        let expected = if steps.load(Ordering::Relaxed) == 2 { 103 } else { 0 };
        assert_eq!(len, expected, "it does not grow the file again");
    });
}

#[test]
fn an_append_is_whole_if_the_layout_changes_while_a_write_grows_the_file_within_it() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let (b, changed) = (another(&server, ino), Arc::clone(&server));
        let mut lists = 0;
        interceptor.each_step(move |kind| {
            lists += u32::from(kind == OpKind::Execute);
            match (kind, lists) {
                (OpKind::Execute, 2) => b.writes.write(ino, 5, b"x").expect("written"),
                (OpKind::Execute, 3) => {
                    changed.begin_generation(ino);
                    b.writes.write(ino, 6, b"y").expect("written");
                }
                _ => {}
            }
        });
        assert_eq!(a.appends.append(ino, b"behind it"), Ok(1));
        assert_eq!(read(&a, ino, 0, 100), b"0behind it");
    });
}

#[test]
fn an_append_that_is_whole_is_not_written_again() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        let mut lists = 0;
        interceptor.each_step(move |kind| {
            lists += u32::from(kind == OpKind::Execute);
            match (kind, lists) {
                (OpKind::Execute, 2) => b.writes.write(ino, 3, b"far").expect("written"),
                // Anything after the list that has raised the size.
                (OpKind::Execute, 4) | (OpKind::Read | OpKind::Call, 3) => {
                    lists = 5;
                    b.attributes.setattr(ino, &TRUNCATE).expect("truncated");
                    b.appends.append(ino, &[7; 200]).expect("appended");
                }
                _ => {}
            }
        });
        assert_eq!(a.appends.append(ino, b"behind it"), Ok(1));
        let bytes = read(&a, ino, 0, 300);
        assert!(bytes == b"0behind it" || bytes == [7; 200], "{bytes:?}");
    });
}

#[test]
fn a_failed_append_releases_the_append_lock() {
    both(|server| {
        let (interceptor, a, ino) = with_file(&server);
        let b = another(&server, ino);
        let too_much = vec![1; 300 * BLOCK as usize];
        assert_eq!(a.appends.append(ino, &too_much), Err(Errno::ENOSPC.into()));
        assert_eq!(server.appender(ino), 0);
        interceptor.later(1, OpKind::Execute, || Err(RequestError::Flushed));
        assert_eq!(a.appends.append(ino, b"lost"), Err(RequestError::Flushed.into()));
        assert_eq!(server.appender(ino), 0);
        assert_eq!(b.appends.append(ino, b"b"), Ok(1));
        assert_eq!(read(&a, ino, 0, 10), b"0b");
    });
}
