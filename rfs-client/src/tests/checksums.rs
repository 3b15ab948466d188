//! Tests of memory with checksums: reads are verified, and the server carries out writes.

use std::time::Duration;

use rfs_proto::{Recall, WRITE_PART, checksum};

use crate::tests::*;

const B: u64 = BLOCK;

fn both_checked(test: impl Fn(Arc<Fake>)) {
    for mapped in [true, false] {
        test(Fake::checked(256, mapped));
    }
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 | 1).collect()
}

#[test]
fn reads_and_writes_of_all_lengths_and_offsets() {
    both_checked(|server| {
        server.run.store(3, Ordering::Relaxed);
        let client = client(&server);
        let ino = create(&client, "a");
        let mut model: Vec<u8> = Vec::new();
        for (offset, len) in
            [(5, 10), (B - 3, 7), (0, 2 * B), (10 * B + 1, 3 * B), (B, WRITE_PART as u64 + 1), (7, 150_000)]
        {
            let data = pattern(len);
            client.writes.write(ino, offset, &data).unwrap();
            model.resize(model.len().max((offset + len) as usize), 0);
            model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
            for (at, len) in
                [(0, model.len() + 9), (3, 1), (B as usize - 1, 2), (model.len() - 1, 5), (model.len(), 5)]
            {
                let end = (at + len).min(model.len());
                assert!(read(&client, ino, at as u64, len) == model[at.min(end)..end], "{at} {len}");
            }
        }
        client.attributes.setattr(ino, &SetAttr { size: Some(B + 7), ..TRUNCATE }).unwrap();
        client.attributes.setattr(ino, &SetAttr { size: Some(3 * B), ..TRUNCATE }).unwrap();
        model.truncate(B as usize + 7);
        model.resize(3 * B as usize, 0);
        assert!(read(&client, ino, 0, 4 * B as usize) == model);
    });
}

#[test]
fn a_bad_block_is_an_error_and_its_neighbours_are_not() {
    both_checked(|server| {
        let client = client(&server);
        let ino = create(&client, "a");
        client.writes.write(ino, 0, &pattern(3 * B)).unwrap();
        let place = server.place(ino, B + 9);
        server.damage(place, &[0]);
        let found = {
            let mut block = pattern(3 * B)[B as usize..2 * B as usize].to_vec();
            block[9] = 0;
            checksum::check(&block)
        };
        let expected = checksum::check(&pattern(3 * B)[B as usize..2 * B as usize]);
        let bad = ClientError::Bad { ino, offset: B, arena: place / B * B, expected, found };
        for (at, len) in [(B, B), (B + 5, 1), (2 * B - 1, 1), (0, 3 * B)] {
            assert_eq!(try_read(&client, ino, at, len as usize), Err(bad.clone()), "{at} {len}");
        }
        assert_eq!(read(&client, ino, 0, B as usize), pattern(3 * B)[..B as usize]);
        assert_eq!(read(&client, ino, 2 * B, B as usize), pattern(3 * B)[2 * B as usize..]);
        client.writes.write(ino, B, &[7; B as usize]).unwrap();
        assert_eq!(read(&client, ino, B, B as usize), [7; B as usize]);
        // A damaged word is as bad as a damaged block.
        server.set_word(place, server.word(place).opened().closed(1));
        assert!(matches!(try_read(&client, ino, B, 1), Err(ClientError::Bad { expected: 1, .. })));
    });
}

/// A reader waits for a block under write, and reports no error.
#[test]
fn a_block_under_write_is_read_again() {
    let server = Fake::checked(16, false);
    let interceptor = Interceptor::new(&server);
    let client = Client::attach(interceptor.clone(), &AttachOptions::default()).unwrap();
    // As if the server recalled layouts.
    client.caching.inodes.recalls().begin();
    let ino = create(&client, "a");
    client.writes.write(ino, 0, &pattern(B)).unwrap();
    let place = server.place(ino, 0);
    for reads in [0, 1, 2, 5] {
        // Half written.
        server.set_word(place, server.word(place).opened());
        server.damage(place, &[reads as u8 + 50; 99]);
        let finish = Arc::clone(&server);
        interceptor.later(reads, OpKind::Read, move || {
            finish.put(place, &[9; B as usize]);
            Ok(())
        });
        assert_eq!(read(&client, ino, 0, 4), [9; 4], "{reads}");
    }
    // The block changes with each of the first reads, and never matches its word.
    let versions = Arc::clone(&server);
    let mut left: u32 = 8;
    interceptor.each(OpKind::Read, move || {
        left = left.saturating_sub(1);
        match left {
            0 => versions.put(place, &[8; B as usize]),
            1.. => versions.set_word(place, versions.word(place).opened().closed(left)),
        }
    });
    assert_eq!(read(&client, ino, 0, 4), [8; 4]);
}

/// A reader that kept the layout while it waits for a block would delay a truncation by another
/// mount. That mount's server would end the reader's session.
#[test]
fn a_layout_is_given_back_while_a_reader_waits_for_a_block() {
    both_checked(|server| {
        let client = client(&server);
        let ino = create(&client, "a");
        client.writes.write(ino, 0, &pattern(B)).unwrap();
        assert_eq!(read(&client, ino, 0, 1), [1]);
        let place = server.place(ino, 0);
        server.set_word(place, server.word(place).opened());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| try_read(&client, ino, 0, B as usize));
            while client.caching.inodes.opened(ino).unwrap().layout_users.try_write().is_some() {
                std::thread::yield_now();
            }
            client.recalls.layouts.give_layouts_back(
                client.calls.remote.epochs().newest,
                &[Recall::Layout { ino, generation: 0 }],
            );
            // The reader still waits for the block, and gets it.
            server.put(place, &[9; B as usize]);
            assert_eq!(reader.join().unwrap(), Ok(vec![9; B as usize]));
        });
    });
}

/// A block that stays odd is not known to be damaged.
#[test]
fn a_read_fails_if_a_block_stays_under_write() {
    both_checked(|server| {
        let (options, limit) = (AttachOptions::default(), Duration::from_millis(1));
        let client = Client::attach_within(server.clone(), &options, limit).expect("attached");
        let ino = create(&client, "a");
        client.writes.write(ino, 0, &pattern(2 * B)).unwrap();
        let place = server.place(ino, B);
        server.set_word(place, server.word(place).opened());
        let refused = try_read(&client, ino, 0, 2 * B as usize).unwrap_err();
        assert_eq!(refused, ClientError::BeingWritten { ino, offset: B });
    });
}

/// Bytes that the file does not have any more are not bad.
#[test]
fn a_reader_begins_anew_if_the_layout_was_replaced() {
    let server = Fake::checked(16, false);
    let interceptor = Interceptor::new(&server);
    let client = Client::attach(interceptor.clone(), &AttachOptions::default()).unwrap();
    // As if the server recalled layouts.
    client.caching.inodes.recalls().begin();
    let other = self::client(&server);
    let ino = create(&client, "a");
    client.writes.write(ino, 0, &pattern(2 * B)).unwrap();
    other.files.open(ino, true).unwrap();
    // The client knows the layout from here on.
    assert!(read(&client, ino, 0, 2 * B as usize) == pattern(2 * B));
    let place = server.place(ino, B);
    let behind = Arc::clone(&server);
    let other = Arc::new(other);
    let cutter = Arc::clone(&other);
    interceptor.once(OpKind::Read, move || {
        cutter.attributes.setattr(ino, &SetAttr { size: Some(10), ..TRUNCATE }).unwrap();
        behind.damage(place, &[0xff; 40]);
        Ok(())
    });
    assert!(read(&client, ino, 0, 2 * B as usize) == pattern(10));
}

#[test]
fn damaged_writes_are_repeated_and_fail_in_the_end() {
    let server = Fake::checked(16, true);
    let client = client(&server);
    let ino = create(&client, "a");
    for (damaged, outcome) in [(1, Ok(())), (2, Ok(())), (3, Err(Errno::EIO.into()))] {
        server.damaged_on_the_way.store(damaged, Ordering::Relaxed);
        assert_eq!(client.writes.write(ino, 0, &[damaged as u8; 9]), outcome);
        server.damaged_on_the_way.store(0, Ordering::Relaxed);
    }
    assert_eq!(read(&client, ino, 0, 9), [2; 9]);
    // One of many parts arrives damaged.
    server.damaged_on_the_way.store(1, Ordering::Relaxed);
    client.writes.write(ino, 0, &[4; WRITE_PART + 1]).unwrap();
    assert_eq!(read(&client, ino, 0, WRITE_PART + 5), [4; WRITE_PART + 1]);
}

#[test]
fn appends_with_checksums_come_one_behind_the_other() {
    both_checked(|server| {
        let (one, two) = (client(&server), client(&server));
        let ino = create(&one, "a");
        two.files.open(ino, true).unwrap();
        let mut model = Vec::new();
        for (turn, len) in [(0, 10), (1, 5000), (0, WRITE_PART + 10), (1, 1)] {
            let client = if turn == 0 { &one } else { &two };
            let data = pattern(len as u64);
            assert_eq!(client.appends.append(ino, &data), Ok(model.len() as u64));
            model.extend_from_slice(&data);
            assert_eq!(server.appender(ino), 0);
        }
        assert!(read(&one, ino, 0, model.len() + 1) == model);
    });
}

/// A plain write comes in between.
#[test]
fn an_append_begins_anew_if_the_end_moved() {
    let server = Fake::checked(64, false);
    let interceptor = Interceptor::new(&server);
    let client = Client::attach(interceptor.clone(), &AttachOptions::default()).unwrap();
    let other = self::client(&server);
    let ino = create(&client, "a");
    other.files.open(ino, true).unwrap();
    interceptor.once(OpKind::Call, move || {
        // A thread has one call at a time.
        std::thread::spawn(move || other.writes.write(ino, 0, b"between").unwrap()).join().unwrap();
        Ok(())
    });
    assert_eq!(client.appends.append(ino, b"!"), Ok(7));
    assert_eq!(read(&client, ino, 0, 99), b"between!");
}

#[test]
fn checksums_can_be_required() {
    let insists = AttachOptions { needs_checksums: true, ..AttachOptions::default() };
    assert!(Client::attach(Fake::checked(16, true), &insists).is_ok());
    let refused = Client::attach(Fake::new(16, true), &insists).map(drop);
    assert_eq!(refused.unwrap_err(), ClientError::Unchecked);
}

/// The file is cut during a write of several parts. The parts that were in place are written
/// again.
#[test]
fn a_truncation_in_the_middle_of_a_long_write_leaves_no_gap() {
    for append in [false, true] {
        let server = Fake::checked(256, false);
        let interceptor = Interceptor::new(&server);
        let client = Client::attach(interceptor.clone(), &AttachOptions::default()).unwrap();
        let other = self::client(&server);
        let ino = create(&client, "a");
        other.files.open(ino, true).unwrap();
        client.writes.write(ino, 0, b"there is something to be cut").unwrap();
        let data = pattern(3 * WRITE_PART as u64 + 5);
        // The client asks for space first. Two parts are in place.
        interceptor.later(3, OpKind::Call, move || {
            let cut = move || other.attributes.setattr(ino, &TRUNCATE).map(drop);
            std::thread::spawn(cut).join().unwrap().unwrap();
            Ok(())
        });
        match append {
            false => client.writes.write(ino, 0, &data).unwrap(),
            // The file has another end now.
            true => assert_eq!(client.appends.append(ino, &data), Ok(0)),
        }
        assert!(read(&client, ino, 0, data.len() + 1) == data, "{append}");
    }
}

/// Parts of a failed write behind the end of the file would show up when the file grows.
#[test]
fn a_long_write_that_begins_in_a_bad_block_leaves_no_bytes_behind_the_end() {
    let server = Fake::checked(256, false);
    let client = client(&server);
    let ino = create(&client, "a");
    client.writes.write(ino, 0, &pattern(B + 100)).unwrap();
    server.damage(server.place(ino, B + 9), &[0]);
    let data = pattern(3 * WRITE_PART as u64);
    assert_eq!(client.writes.write(ino, B + 50, &data), Err(Errno::EIO.into()));
    let len = data.len() as u64;
    client.attributes.setattr(ino, &SetAttr { size: Some(len), ..TRUNCATE }).unwrap();
    assert!(read(&client, ino, 2 * B, data.len()).iter().all(|&byte| byte == 0));
}
