//! Tests of started writes past the end of a file.

use super::*;

/// Creates a file of one byte, in a block of its own.
fn one_byte(c: &Client, name: &str) -> u64 {
    let ino = create(c, name);
    c.writes.write(ino, 0, b"x").expect("written");
    ino
}

fn size(server: &Fake, ino: u64) -> u64 {
    server.size_and_time(ino).0
}

/// Returns the contents at the server.
fn contents(server: &Arc<Fake>, ino: u64) -> Vec<u8> {
    let other = client(server);
    other.files.open(ino, false).expect("opened");
    read(&other, ino, 0, 100)
}

/// Catches a size that rises before the bytes are there, and a call or a second list.
#[test]
fn a_started_write_past_the_end_raises_the_size_in_its_list() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    assert!(start_write(&c, ino, 1, b"yz", false).is_none(), "a write that is alone blocks");
    let _other = c.async_io.transfers.count();
    let before = (server.calls(), server.lists.load(Ordering::Relaxed));
    let mut data = *b"yz";
    let started = start_write(&c, ino, 1, &data, false).expect("started");
    // The write has its own copy of the data.
    data.fill(b'?');
    assert!(started.try_recv().is_err());
    assert_eq!(size(&server, ino), 1);
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!((server.calls(), server.lists.load(Ordering::Relaxed)), (before.0, before.1 + 1));
    assert_eq!(contents(&server, ino), b"xyz");
    // The size is known now, and the next write raises it from there.
    let inside = start_write(&c, ino, 0, b"abc", false).expect("started");
    let next = start_write(&c, ino, 3, b"d", false).expect("started");
    interceptor.release(&Ok(()));
    assert_eq!((inside.recv().expect("answered"), next.recv().expect("answered")), (Ok(()), Ok(())));
    assert_eq!(contents(&server, ino), b"abcd");
}

#[test]
fn writes_that_extend_several_files_are_under_way_at_once() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let files: Vec<u64> = (0..8).map(|name| one_byte(&c, &format!("{name}"))).collect();
    let start = |(number, ino): (usize, &u64)| {
        start_write(&c, *ino, 1, b"yz", number < files.len() - 1).expect("started")
    };
    let _other = c.async_io.transfers.count();
    let answers: Vec<_> = files.iter().enumerate().map(start).collect();
    assert_eq!(interceptor.held(), 8);
    assert!(c.counters().contains(&("started_peak", 8)), "{:?}", c.counters());
    interceptor.release(&Ok(()));
    answers.iter().for_each(|answer| assert_eq!(answer.recv().expect("answered"), Ok(())));
    files.iter().for_each(|ino| assert_eq!(contents(&server, *ino), b"xyz"));
}

#[test]
fn a_write_past_the_end_without_space_blocks() {
    let server = Fake::new(256, false);
    let (_interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    let _other = c.async_io.transfers.count();
    for (offset, len) in [(BLOCK, 1), (BLOCK - 1, 2), (u64::MAX - 1, 1), (1, 0), (1, (32 << 10) + 1)] {
        assert!(start_write(&c, ino, offset, &vec![1; len], false).is_none(), "{len} at {offset}");
    }
    c.files.close(ino).expect("closed");
    assert!(start_write(&c, ino, 1, b"y", false).is_none(), "the file is closed");
}

/// Catches a size that covers bytes which are not there.
#[test]
fn a_failed_write_past_the_end_raises_the_size_only_with_its_repetition() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    let _other = c.async_io.transfers.count();
    let started = start_write(&c, ino, 1, b"yz", false).expect("started");
    let (at_server, (send, sizes)) = (Arc::clone(&server), mpsc::channel());
    interceptor.once(OpKind::Execute, move || {
        send.send(size(&at_server, ino)).expect("the receiver listens");
        Ok(())
    });
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!(sizes.recv().expect("repeated"), 1);
    assert_eq!(contents(&server, ino), b"xyz");
    let started = start_write(&c, ino, 3, b"!", false).expect("started");
    server.die();
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(started.recv().expect("answered"), Err(RequestError::Disconnected.into()));
    assert_eq!(size(&server, ino), 3);
}

/// The second list raises the size only: it must not undo a write that came after the bytes.
#[test]
fn a_write_past_the_end_follows_a_size_that_another_client_raised() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    let another = client(&server);
    another.files.open(ino, true).expect("opened");
    let _other = c.async_io.transfers.count();
    let started = start_write(&c, ino, 3, b"cd", false).expect("started");
    another.writes.write(ino, 1, b"ab").expect("written");
    interceptor.release(&Ok(()));
    assert!(started.try_recv().is_err());
    assert_eq!((size(&server, ino), interceptor.held()), (3, 1));
    another.writes.write(ino, 4, b"D").expect("written");
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!(contents(&server, ino), b"xabcD");
    // A larger size stays.
    let started = start_write(&c, ino, 5, b"e", false).expect("started");
    another.writes.write(ino, 6, b"fg").expect("written");
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!(contents(&server, ino), b"xabcDefg");
}

/// The raises of one file take effect one after the other, and none is lost.
#[test]
fn two_started_writes_past_the_end_of_one_file_both_count() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    let _other = c.async_io.transfers.count();
    let answers = [(1, b"yz"), (3, b"ab")].map(|(at, data)| start_write(&c, ino, at, data, false));
    interceptor.release(&Ok(()));
    assert_eq!((size(&server, ino), interceptor.held()), (3, 1));
    interceptor.release(&Ok(()));
    for answer in answers {
        assert_eq!(answer.expect("started").recv().expect("answered"), Ok(()));
    }
    assert_eq!(contents(&server, ino), b"xyzab");
}

/// A truncation by another client begins a new layout, in which the write starts over.
#[test]
fn a_write_past_the_end_that_a_truncation_overtook_is_repeated() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    let _other = c.async_io.transfers.count();
    let started = start_write(&c, ino, 1, b"yz", false).expect("started");
    let another = client(&server);
    another.files.open(ino, true).expect("opened");
    another.attributes.setattr(ino, &TRUNCATE).expect("truncated");
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!(contents(&server, ino), b"\0yz");
}

/// The truncation must not free space that the list still writes to.
#[test]
fn a_truncation_waits_for_a_started_write_past_the_end() {
    let server = Fake::new(256, false);
    let (interceptor, c, _) = with_file(&server);
    let ino = one_byte(&c, "g");
    let other = c.async_io.transfers.count();
    let started = start_write(&c, ino, 1, b"yz", false).expect("started");
    drop(other);
    thread::scope(|scope| {
        let truncating = scope.spawn(|| c.attributes.setattr(ino, &TRUNCATE).expect("truncated"));
        until_one_is_alone(&c, ino);
        (0..1000).for_each(|_| thread::yield_now());
        assert_eq!(size(&server, ino), 1, "it was truncated under a write");
        interceptor.release(&Ok(()));
        assert_eq!(started.recv().expect("answered"), Ok(()));
        assert_eq!(truncating.join().expect("no panic").size, 0);
    });
    assert_eq!(contents(&server, ino), b"");
}
