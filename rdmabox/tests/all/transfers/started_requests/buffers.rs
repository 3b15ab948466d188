//! Tests of the buffers of started requests: each kind is sent or filled, and comes back.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rdmabox::{BatchMode, Buffer, RecvBuf, RemoteAddr, SendBuf, Session, Slice};

use crate::support::{Fixture, LEN, at, base, on_each_provider, on_each_that_posts, pattern};

fn write_and_look(f: &Fixture, session: &Session, base: RemoteAddr, offset: usize, data: impl SendBuf) {
    let expected = data.bytes().to_vec();
    let place = data.bytes().as_ptr();
    let data = session.start_write(at(base, offset), data).wait().unwrap();
    assert_eq!((data.bytes().as_ptr(), data.bytes()), (place, &expected[..]), "the same buffer");
    let mut found = vec![0; expected.len()];
    f.memory.read(offset, &mut found);
    assert!(found == expected, "{} bytes", expected.len());
}

#[test]
fn every_kind_of_buffer_is_sent_filled_and_given_back() {
    static FOREVER: [u8; 5000] = [7; 5000];
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for (seed, len) in [1, 8, 220, 221, 4096, 4097, 100_000, 1 << 20].into_iter().enumerate() {
            let offset = seed * 8191;
            write_and_look(&f, &session, base, offset, pattern(len, seed));
            write_and_look(&f, &session, base, offset, Arc::<[u8]>::from(pattern(len, seed + 1)));
            let mut buffer = session.buffer(len).unwrap();
            buffer.copy_from_slice(&pattern(len, seed + 2));
            write_and_look(&f, &session, base, offset, buffer);

            let read = session.start_read(at(base, offset), vec![0; len]).wait().unwrap();
            assert!(read == pattern(len, seed + 2));
            let mut buffer = session.buffer(len).unwrap();
            buffer.fill(0);
            let read = session.start_read(at(base, offset), buffer).wait().unwrap();
            assert!(*read == *pattern(len, seed + 2));
        }
        write_and_look(&f, &session, base, 3, &FOREVER[..]);
        write_and_look(&f, &session, base, 5, &FOREVER);
    });
}

#[test]
fn boxes_shared_vectors_arrays_and_handles_of_bytes_are_buffers() {
    fn fill(session: &Session, remote: RemoteAddr, expected: &[u8], buf: impl RecvBuf) {
        let place = buf.bytes().as_ptr();
        let buf = session.start_read(remote, buf).wait().map_err(|failed| failed.error).unwrap();
        assert!(buf.bytes().as_ptr() == place && buf.bytes() == expected);
    }
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for (seed, len) in [8, 220, 4097, 70_000].into_iter().enumerate() {
            let (offset, data) = (seed * 8191, |more| pattern(len, seed + more));
            write_and_look(&f, &session, base, offset, data(0).into_boxed_slice());
            write_and_look(&f, &session, base, offset, Arc::new(data(1)));
            write_and_look(&f, &session, base, offset, Bytes::from(data(2)));
            write_and_look(&f, &session, base, offset, Bytes::from([data(3), data(4)].concat()).slice(len..));
            write_and_look(&f, &session, base, offset, BytesMut::from(&data(5)[..]));
            let remote = at(base, offset);
            fill(&session, remote, &data(5), vec![0; len].into_boxed_slice());
            fill(&session, remote, &data(5), BytesMut::zeroed(len));
            // Halves of one allocation receive at the same time.
            let mut first = BytesMut::zeroed(len);
            let second = first.split_off(len / 2);
            let reads = [(remote, first), (at(base, offset + len / 2), second)];
            let [first, second] = reads.map(|(remote, part)| session.start_read(remote, part));
            let mut whole = first.wait().unwrap();
            whole.unsplit(second.wait().unwrap());
            assert!(whole == data(5));
        }
        write_and_look(&f, &session, base, 0, Box::new([9; 300]));
        write_and_look(&f, &session, base, 0, Arc::new([8; 300]));
        fill(&session, base, &[8; 300], Box::new([0; 300]));
    });
}

/// A request of a part moves that part only, and one of a registered buffer needs no copy and no
/// registration.
#[test]
fn a_part_of_a_buffer_is_a_buffer() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        f.memory.write(0, &[7; 64 << 10]);
        let data = pattern(3000, 1);
        let part = Slice::new(data.clone(), 1000..2000);
        let part = session.start_write(at(base, 500), part).wait().unwrap();
        assert_eq!(part.into_inner(), data);
        let mut found = vec![0; 1002];
        f.memory.read(499, &mut found);
        assert!(found[1..1001] == data[1000..2000] && found[0] == 7 && found[1001] == 7);

        let part = session.start_read(base, Slice::new(vec![1; 3000], 1000..)).wait().unwrap();
        let back = part.into_inner();
        assert!(back[..1000] == [1; 1000] && back[1000..1500] == [7; 500]);
        assert!(back[1500..2500] == data[1000..2000]);

        let mut own = session.allocate(64 << 10).unwrap();
        own.fill(3);
        let mut pooled = session.buffer(64 << 10).unwrap();
        pooled.fill(4);
        let before = session.stats();
        for (buffer, value) in [(own, 3), (pooled, 4)] {
            let write = session.start_write(base, buffer.slice(5000..30_000)).wait().unwrap();
            let mut part = write.into_inner().slice(..25_000);
            part.fill(0);
            let part = session.start_read(base, part).wait().unwrap();
            assert_eq!(part.len(), 25_000);
            let buffer = part.into_inner();
            assert!(buffer.len() == 64 << 10 && buffer.iter().all(|byte| *byte == value));
        }
        let stats = session.stats();
        for counter in ["registrations", "pre_mr_bytes", "dyn_mr_bytes"] {
            assert_eq!(stats.get(counter), before.get(counter), "{counter}");
        }
    });
}

#[test]
fn a_shared_buffer_can_be_in_many_requests_at_once() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let data: Arc<[u8]> = pattern(10_000, 1).into();
        let transfers: Vec<_> =
            (0..32).map(|i| session.start_write(at(base, i * 20_000), Arc::clone(&data))).collect();
        for (i, transfer) in transfers.into_iter().enumerate() {
            transfer.wait().unwrap();
            let mut found = vec![0; 10_000];
            f.memory.read(i * 20_000, &mut found);
            assert!(found[..] == data[..]);
        }
        assert_eq!(Arc::strong_count(&data), 1, "nothing keeps it");
    });
}

#[test]
fn registered_buffers_are_neither_copied_nor_registered() {
    on_each_that_posts(|mut f| {
        f.options.batch = BatchMode::Hybrid;
        let session = f.connect();
        let base = base(&session);
        // Below and above the threshold, and above the inline limit.
        for len in [300, 4096, 8192, 1 << 20] {
            let before = session.stats();
            let mut buffer = session.buffer(len).unwrap();
            buffer.copy_from_slice(&pattern(len, len));
            let buffer = session.start_write(base, buffer).wait().unwrap();
            let buffer = session.start_read(base, buffer).wait().unwrap();
            session.write(at(base, LEN / 2), &buffer).unwrap();
            let since = session.stats().since(&before);
            assert_eq!(since.registered_bytes, 3 * len as u64);
            assert_eq!((since.pre_mr_bytes, since.dyn_mr_bytes, since.inline_bytes), (0, 0, 0));
            assert_eq!((since.registrations, since.work_requests), (0, 3));
            let mut found = vec![0; len];
            f.memory.read(LEN / 2, &mut found);
            assert!(found == pattern(len, len));
        }
    });
}

#[test]
fn a_buffer_of_any_length_is_registered_once() {
    on_each_that_posts(|mut f| {
        f.options.batch = BatchMode::Hybrid;
        let session = f.connect();
        let base = base(&session);
        let len = (1 << 20) + 4097;
        let before = session.stats();
        let mut buffer = session.allocate(len).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0));
        for round in 0..5 {
            buffer.copy_from_slice(&pattern(len, round));
            let back = session.start_write(base, buffer).wait().unwrap();
            buffer = back;
            // Parts of it are in registered memory, too.
            session.read(at(base, 4097), &mut buffer[..5000]).unwrap();
            assert!(buffer[..5000] == pattern(len, round)[4097..9097]);
        }
        let since = session.stats().since(&before);
        assert_eq!((since.registrations, since.cache_hits, since.work_requests), (1, 10, 10));
        assert_eq!(since.registered_bytes, 5 * (len as u64 + 5000));
        assert_eq!((since.pre_mr_bytes, since.dyn_mr_bytes), (0, 0));
        drop(buffer);
        // Unrelated memory is mapped at the old address now.
        let other = vec![9; len];
        session.write(base, &other).unwrap();
        assert_eq!(session.stats().since(&before).cache_hits, 10);
    });
}

#[test]
fn the_pool_gives_what_it_has_and_takes_it_back() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        assert!(session.buffer((1 << 20) + 1).is_none());
        for _ in 0..3 {
            let held: Vec<Buffer> = std::iter::from_fn(|| session.buffer(1 << 20)).collect();
            assert_eq!(held.len(), 8, "all of the pool's 8 MiB");
            // Nothing is left to stage with: requests go on all the same.
            session.write(base, &pattern(3000, 1)).unwrap();
            let mut back = vec![0; 3000];
            session.read(base, &mut back).unwrap();
            assert!(back == pattern(3000, 1));
            assert_eq!(session.fetch_add(at(base, 4096), 0), Ok(0));
            let transfers: Vec<_> = held
                .into_iter()
                .enumerate()
                .map(|(i, buffer)| session.start_write(at(base, (i % 4) << 20), buffer))
                .collect();
            for transfer in transfers {
                transfer.wait().unwrap();
            }
            session.write(base, &[0; 8]).unwrap();
        }
    });
}
