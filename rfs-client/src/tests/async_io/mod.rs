//! Tests of asynchronous reads and writes.

mod extending;
mod lost_locks;

use std::{cell::Cell, sync::mpsc, thread};

use rdmabox::Until;

use crate::QueueHint;
use crate::tests::*;

const LEN: usize = 3 * BLOCK as usize;

/// Creates a file of `LEN` bytes, and a client whose started reads and writes are held.
fn with_file(server: &Arc<Fake>) -> (Arc<Interceptor>, Arc<Client>, u64) {
    let interceptor = Interceptor::new(server);
    let c = Client::attach(interceptor.clone(), &AttachOptions::default()).expect("attached");
    // As if the server recalled layouts.
    c.caching.inodes.recalls().begin();
    let ino = create(&c, "f");
    c.writes.write(ino, 0, &pattern(LEN)).expect("written");
    // The size is known from now on.
    assert_eq!(read(&c, ino, 0, LEN + 1), pattern(LEN));
    interceptor.hold();
    (interceptor, Arc::new(c), ino)
}

type Answers = mpsc::Receiver<Result<Vec<u8>, ClientError>>;

/// Starts a read. Returns `None` if it has to block.
fn start(c: &Arc<Client>, ino: u64, offset: u64, len: usize) -> Option<Answers> {
    start_with(c, ino, offset, len, false)
}

/// Starts a read while `more` requests wait.
fn start_with(c: &Arc<Client>, ino: u64, offset: u64, len: usize, more: bool) -> Option<Answers> {
    let next = if more { QueueHint::Waits } else { QueueHint::Nothing };
    let (send, receive) = mpsc::channel();
    let answer = move |data: Result<ReadData<'_>, ClientError>| {
        let bytes = data.map(|data| match data {
            ReadData::Bytes(bytes) => bytes.to_vec(),
            ReadData::Mapped { .. } => panic!("nothing is mapped"),
        });
        send.send(bytes).expect("the receiver listens");
    };
    c.async_io.start_read(ino, offset, len, || next, answer).ok().map(|()| receive)
}

/// Returns when a thread excludes reads and writes of the file.
fn until_one_is_alone(c: &Client, ino: u64) {
    while c.caching.inodes.opened(ino).expect("known").io.try_read().is_some() {
        thread::yield_now();
    }
}

#[test]
fn a_read_that_is_alone_blocks() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    assert!(start(&c, ino, 0, 100).is_none());
    let other = c.async_io.transfers.count();
    let started = start(&c, ino, 0, 100).expect("started");
    drop(other);
    // A started read is in flight until its bytes are here.
    let another = start(&c, ino, 0, 200).expect("started");
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(pattern(LEN)[..100].to_vec()));
    assert_eq!(another.recv().expect("answered"), Ok(pattern(LEN)[..200].to_vec()));
    assert!(start(&c, ino, 0, 100).is_none());
}

#[test]
fn after_many_requests_alone_the_next_one_is_asked_for_rarely() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let asked = Cell::new(0);
    let alone = |count: usize| {
        asked.set(0);
        for _ in 0..count {
            let next = || {
                asked.set(asked.get() + 1);
                QueueHint::Nothing
            };
            assert!(c.async_io.start_read(ino, 0, 100, next, |_| ()).is_err());
        }
        asked.get()
    };
    assert_eq!(alone(16), 16);
    assert_eq!(alone(160), 10);
    // After a request that was not alone, each request asks again.
    let other = c.async_io.transfers.count();
    let started = start(&c, ino, 0, 100).expect("started");
    drop(other);
    interceptor.release(&Ok(()));
    assert!(started.recv().is_ok());
    assert_eq!(alone(16), 16);
}

/// Catches an io_uring thread that polls while replies wait to go out, and a `/dev/fuse` thread
/// that blocks although it could poll.
#[test]
fn a_thread_polls_while_it_has_no_other_work() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let _other = c.async_io.transfers.count();
    for (next, served) in [
        (QueueHint::Nothing, &[Until::AllDone][..]),
        (QueueHint::PollForReplies, &[Until::AnyDone]),
        (QueueHint::Waits, &[]),
        (QueueHint::Unknown, &[]),
    ] {
        assert!(c.async_io.start_read(ino, 0, 100, || next, |_| ()).is_ok());
        assert_eq!(interceptor.served(), served, "{next:?}");
    }
}

#[test]
fn reads_are_batched_while_requests_wait() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    // No request is in flight that could complete.
    let mut answers = vec![start_with(&c, ino, 0, 100, true).expect("started")];
    assert_eq!(interceptor.held(), 1);
    for offset in [100, 200] {
        answers.push(start_with(&c, ino, offset, 100, true).expect("started"));
        assert_eq!(interceptor.held(), 1);
    }
    answers.push(start(&c, ino, 300, 100).expect("started"));
    assert_eq!(interceptor.held(), 4);
    interceptor.release(&Ok(()));
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.recv().expect("answered"), Ok(pattern(LEN)[100 * i..100 * (i + 1)].to_vec()));
    }
}

/// Catches a first request that leaves alone, and so a second round trip.
#[test]
fn reads_of_a_caller_that_flushes_leave_together() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let start = |offset| {
        let (send, receive) = mpsc::channel();
        let read = c.async_io.prepare_read_alone(ino, offset, 100).expect("prepared");
        read.start(QueueHint::Follows, move |data| send.send(data.map(|_| ())).expect("received"));
        receive
    };
    assert!(!c.async_io.poll(), "nothing is started");
    let answers = [0, 100, 200].map(start);
    assert_eq!(interceptor.held(), 0);
    assert!(!c.async_io.poll(), "nothing is started");
    c.async_io.flush();
    assert_eq!(interceptor.held(), 3);
    assert!(c.async_io.poll());
    assert_eq!(interceptor.served(), [Until::AnyDone]);
    interceptor.release(&Ok(()));
    for answer in answers {
        assert_eq!(answer.recv().expect("answered"), Ok(()));
    }
    assert!(!c.async_io.poll(), "all have completed");
}

/// The outcome of the completed request does not matter.
#[test]
fn a_completion_starts_the_batch() {
    for outcome in [Ok(()), Err(RequestError::Flushed)] {
        let server = Fake::new(256, false);
        let (interceptor, c, ino) = with_file(&server);
        let first = start_with(&c, ino, 0, 100, true).expect("started");
        let second = start_with(&c, ino, 7, 100, true).expect("started");
        assert_eq!(interceptor.held(), 1);
        interceptor.release(&outcome);
        assert_eq!(first.recv().expect("answered"), Ok(pattern(LEN)[..100].to_vec()));
        assert_eq!(interceptor.held(), 1);
        interceptor.release(&Ok(()));
        assert_eq!(second.recv().expect("answered"), Ok(pattern(LEN)[7..107].to_vec()));
        assert_eq!(interceptor.held(), 0);
    }
}

#[test]
fn a_batch_is_limited_in_requests_and_bytes() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    for (len, reads) in [(100, 16), (LEN, 6)] {
        // LEN is 12 KiB, so six of them exceed 64 KiB.
        assert_eq!(len * reads >= 64 << 10, len == LEN);
        let mut answers = vec![start_with(&c, ino, 0, len, true).expect("started")];
        for _ in 1..reads {
            answers.push(start_with(&c, ino, 0, len, true).expect("started"));
            assert_eq!(interceptor.held(), 1);
        }
        answers.push(start_with(&c, ino, 0, len, true).expect("started"));
        assert_eq!(interceptor.held(), 1 + reads);
        interceptor.release(&Ok(()));
        answers.iter().for_each(|answer| {
            assert_eq!(answer.recv().expect("answered"), Ok(pattern(LEN)[..len].to_vec()))
        });
    }
}

/// A program that reads block after block has one read in flight, however soon the next one
/// comes.
#[test]
fn a_reader_that_has_its_bytes_is_alone_with_its_next_read() {
    let server = Fake::new(256, false);
    let (_meddler, c, ino) = with_file(&server);
    let again = |data: ReadData<'_>| {
        assert!(matches!(data, ReadData::Bytes(bytes) if bytes == &pattern(LEN)[..100]));
        start(&c, ino, 100, 100).is_none()
    };
    assert!(c.reads.read(ino, 0, 100, &mut Vec::new(), again).expect("read"));
}

#[test]
fn a_read_that_needs_more_than_bytes_blocks() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let other = c.async_io.transfers.count();
    let len = LEN as u64;
    let last = start(&c, ino, len - 10, 10).expect("started");
    // Past the end, overflow, no bytes, too many bytes, and no such file.
    for (ino, offset, len) in
        [(ino, len - 10, 11), (ino, u64::MAX, 1), (ino, 0, 0), (ino, 0, 1 << 20), (ino + 7, 0, 1)]
    {
        assert!(start(&c, ino, offset, len).is_none(), "{ino} {offset} {len}");
    }
    // A hole.
    c.writes.write(ino, 4 * BLOCK, b"x").expect("written");
    assert!(start(&c, ino, LEN as u64, 10).is_none());
    interceptor.release(&Ok(()));
    assert_eq!(last.recv().expect("answered"), Ok(pattern(LEN)[LEN - 10..].to_vec()));
    c.files.close(ino).expect("closed");
    assert!(start(&c, ino, 0, 10).is_none());
    drop(other);
    let server = Fake::new(256, true);
    let c = Arc::new(client(&server));
    let ino = create(&c, "f");
    c.writes.write(ino, 0, b"x").expect("written");
    let _other = c.async_io.transfers.count();
    assert!(start(&c, ino, 0, 1).is_none());
}

#[test]
fn a_change_of_size_waits_for_started_reads() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let other = c.async_io.transfers.count();
    let started = start(&c, ino, 0, 100).expect("started");
    drop(other);
    let (called, calls) = mpsc::channel();
    interceptor.once(OpKind::Call, move || {
        called.send(()).expect("the receiver listens");
        Ok(())
    });
    thread::scope(|scope| {
        let truncating = scope.spawn(|| c.attributes.setattr(ino, &TRUNCATE).expect("truncated"));
        until_one_is_alone(&c, ino);
        (0..1000).for_each(|_| thread::yield_now());
        assert!(calls.try_recv().is_err(), "it was truncated under a read");
        interceptor.release(&Ok(()));
        assert_eq!(started.recv().expect("answered"), Ok(pattern(LEN)[..100].to_vec()));
        assert_eq!(truncating.join().expect("no panic").size, 0);
        calls.recv().expect("called");
    });
}

#[test]
fn a_failed_read_is_repeated() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let other = c.async_io.transfers.count();
    let started = start(&c, ino, 5, 100).expect("started");
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(started.recv().expect("answered"), Ok(pattern(LEN)[5..105].to_vec()));
    let started = start(&c, ino, 5, 100).expect("started");
    server.die();
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(started.recv().expect("answered"), Err(RequestError::Disconnected.into()));
    drop(other);
}

type Outcomes = mpsc::Receiver<Result<(), ClientError>>;

/// Starts a write. Returns `None` if it has to block.
fn start_write(c: &Arc<Client>, ino: u64, offset: u64, data: &[u8], more: bool) -> Option<Outcomes> {
    let next = if more { QueueHint::Waits } else { QueueHint::Nothing };
    let (send, receive) = mpsc::channel();
    let write = c.async_io.prepare_write(ino, offset, data, || next)?;
    write.start(move |written| send.send(written).expect("the receiver listens"));
    Some(receive)
}

/// Returns the file's contents after a write of `data` at `offset`.
fn with(offset: usize, data: &[u8]) -> Vec<u8> {
    let mut all = pattern(LEN);
    all[offset..offset + data.len()].copy_from_slice(data);
    all
}

/// Returns the contents at the server, without held writes.
fn on_server(server: &Arc<Fake>, ino: u64) -> Vec<u8> {
    let other = client(server);
    other.files.open(ino, false).expect("opened");
    read(&other, ino, 0, LEN + 1)
}

#[test]
fn a_write_that_is_alone_blocks() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    assert!(start_write(&c, ino, 5, b"xyz", false).is_none());
    assert_eq!(on_server(&server, ino), pattern(LEN));
    let other = c.async_io.transfers.count();
    let mut data = *b"xyz";
    let started = start_write(&c, ino, 5, &data, false).expect("started");
    // The write has its own copy of the data.
    data.fill(b'?');
    drop(other);
    // The write counts as in flight, for reads as well.
    let reading = start(&c, ino, 0, 1).expect("started");
    assert!(started.try_recv().is_err());
    assert_eq!(on_server(&server, ino), pattern(LEN));
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!(reading.recv().expect("answered"), Ok(pattern(1)));
    assert_eq!(on_server(&server, ino), with(5, b"xyz"));
    assert!(start_write(&c, ino, 5, b"xyz", false).is_none());
}

#[test]
fn a_blocking_write_counts_as_in_flight() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let (send, receive) = mpsc::channel();
    let another = Arc::clone(&c);
    interceptor.once(OpKind::Write, move || {
        send.send(start_write(&another, ino, 7, b"b", false)).expect("the receiver listens");
        Ok(())
    });
    c.writes.write(ino, 0, b"a").expect("written");
    let started = receive.recv().expect("tried").expect("started");
    interceptor.release(&Ok(()));
    assert_eq!(started.recv().expect("answered"), Ok(()));
}

#[test]
fn reads_and_writes_share_a_batch() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let first = start_with(&c, ino, 0, 100, true).expect("started");
    let write = start_write(&c, ino, 200, b"w", true).expect("started");
    assert_eq!(interceptor.held(), 1);
    let last = start(&c, ino, 300, 100).expect("started");
    assert_eq!(interceptor.held(), 3);
    interceptor.release(&Ok(()));
    assert_eq!(write.recv().expect("answered"), Ok(()));
    assert_eq!(first.recv().expect("answered"), Ok(pattern(LEN)[..100].to_vec()));
    assert_eq!(last.recv().expect("answered"), Ok(pattern(LEN)[300..400].to_vec()));
    // The limit of bytes is the same for writes and reads.
    let mut writes = vec![start_write(&c, ino, 0, &pattern(LEN), true).expect("started")];
    for _ in 0..5 {
        writes.push(start_write(&c, ino, 0, &pattern(LEN), true).expect("started"));
        assert_eq!(interceptor.held(), 1);
    }
    writes.push(start_write(&c, ino, 0, &pattern(LEN), true).expect("started"));
    assert_eq!(interceptor.held(), 7);
    interceptor.release(&Ok(()));
    writes.iter().for_each(|write| assert_eq!(write.recv().expect("answered"), Ok(())));
}

#[test]
fn a_write_that_needs_more_than_bytes_blocks() {
    let server = Fake::new(256, false);
    let (_meddler, c, ino) = with_file(&server);
    let _other = c.async_io.transfers.count();
    let len = LEN as u64;
    // Past the end, overflow, no bytes, too many bytes, and no such file.
    for (ino, offset, data) in [
        (ino, len - 1, &b"xy"[..]),
        (ino, u64::MAX, b"x"),
        (ino, 0, b""),
        (ino, 0, &vec![0; (32 << 10) + 1]),
        (ino + 7, 0, b"x"),
    ] {
        assert!(start_write(&c, ino, offset, data, false).is_none(), "{ino} {offset} {}", data.len());
    }
    // A hole.
    c.writes.write(ino, 4 * BLOCK, b"x").expect("written");
    assert!(start_write(&c, ino, len, b"x", false).is_none());
    assert!(start_write(&c, ino, 4 * BLOCK, b"y", false).is_some());
    // A size that is not certain any more.
    c.caching.inodes.opened(ino).expect("known").file.write().size.distrust();
    assert!(start_write(&c, ino, 0, b"x", false).is_none());
    let server = Fake::new(256, true);
    let c = Arc::new(client(&server));
    let ino = create(&c, "f");
    c.writes.write(ino, 0, b"x").expect("written");
    let _other = c.async_io.transfers.count();
    assert!(start_write(&c, ino, 0, b"y", false).is_none());
}

#[test]
fn a_started_write_publishes_its_time() {
    let server = Fake::new(256, false);
    let (_meddler, c, ino) = with_file(&server);
    c.attributes.setattr(ino, &SetAttr { mtime: Some(SetTime::At(5)), ..SetAttr::default() }).expect("set");
    assert_eq!(read(&c, ino, 0, LEN + 1), pattern(LEN));
    let before = server.size_and_time(ino).1;
    let _other = c.async_io.transfers.count();
    assert!(start_write(&c, ino, 0, b"x", false).is_some());
    // The first write after a set time publishes its time at once.
    assert_ne!(server.size_and_time(ino).1, before);
}

/// The space of a failed write stays in use until the repetition, because the write may still
/// take effect.
#[test]
fn a_truncation_waits_for_the_repetition_of_a_write() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let other = c.async_io.transfers.count();
    let started = start_write(&c, ino, 5, b"xyz", false).expect("started");
    drop(other);
    let (repeats, repeated) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let (at_server, known) = (Arc::clone(&server), pattern(LEN));
    interceptor.once(OpKind::Write, move || {
        repeats.send(()).expect("the receiver listens");
        goes_on.recv().expect("told");
        assert_eq!(on_server(&at_server, ino), known);
        Ok(())
    });
    thread::scope(|scope| {
        let truncating = scope.spawn(|| c.attributes.setattr(ino, &TRUNCATE).expect("truncated"));
        until_one_is_alone(&c, ino);
        interceptor.release(&Err(RequestError::Flushed));
        repeated.recv().expect("repeated");
        (0..1000).for_each(|_| thread::yield_now());
        assert!(!truncating.is_finished());
        go_on.send(()).expect("it waits");
        assert_eq!(started.recv().expect("answered"), Ok(()));
        assert_eq!(truncating.join().expect("no panic").size, 0);
    });
}

#[test]
fn a_failed_write_is_repeated_or_reported() {
    let server = Fake::new(256, false);
    let (interceptor, c, ino) = with_file(&server);
    let other = c.async_io.transfers.count();
    let started = start_write(&c, ino, 5, b"xyz", false).expect("started");
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(started.recv().expect("answered"), Ok(()));
    assert_eq!(on_server(&server, ino), with(5, b"xyz"));
    let started = start_write(&c, ino, 5, b"abc", false).expect("started");
    server.die();
    interceptor.release(&Err(RequestError::Flushed));
    assert_eq!(started.recv().expect("answered"), Err(RequestError::Disconnected.into()));
    drop(other);
}

/// The write reads the record if the size is not certain, or has fallen, and finds its bytes
/// outside the file.
#[test]
fn a_started_write_that_a_truncation_overtook_is_repeated() {
    for looks in [false, true] {
        let server = Fake::new(256, false);
        let (interceptor, c, ino) = with_file(&server);
        let other = c.async_io.transfers.count();
        let started = start_write(&c, ino, 5, b"xyz", false).expect("started");
        drop(other);
        let another = client(&server);
        another.files.open(ino, true).expect("opened");
        another.attributes.setattr(ino, &TRUNCATE).expect("truncated");
        let inode = c.caching.inodes.opened(ino).expect("known");
        if looks {
            assert_eq!(c.records.look(&inode).expect("looked").size, 0);
        } else {
            inode.file.write().size.distrust();
        }
        interceptor.release(&Ok(()));
        assert_eq!(started.recv().expect("answered"), Ok(()));
        assert_eq!(on_server(&server, ino), b"\0\0\0\0\0xyz", "{looks}");
    }
}
