//! Tests of started requests, for every way to wait: the buffer always returns, the effect equals
//! that of blocking calls, and no request depends on an unrelated caller.

use std::{
    sync::{Arc, Weak, mpsc},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::executor::block_on;
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use rdmabox::{
    BatchMode, Buffer, ProviderKind, RdmaOptions, RecvBuf, RemoteAddr, RequestError, SendBuf, Session, Slice,
    Transfer, provider::rdma,
};

use crate::support::{
    Fixture, LEN, at, base, on_each_provider, on_each_that_posts, outside, pattern, providers, split,
};

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
fn many_are_waited_for_in_reverse_order() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (count, step) = (64, 30_000);
        let writes: Vec<_> =
            (0..count).map(|i| session.start_write(at(base, i * step), pattern(20_000 + i, i))).collect();
        for (i, transfer) in writes.into_iter().enumerate().rev() {
            let buf = transfer.wait().unwrap();
            assert!(buf == pattern(20_000 + i, i));
        }
        let reads: Vec<_> =
            (0..count).map(|i| session.start_read(at(base, i * step), vec![0; 20_000 + i])).collect();
        for (i, transfer) in reads.into_iter().enumerate().rev() {
            let buf = transfer.wait().unwrap();
            assert!(buf == pattern(20_000 + i, i));
        }
        let stats = session.stats();
        assert_eq!((stats.write_requests, stats.read_requests), (64, 64));
        assert_eq!((stats.errors, session.in_flight().0), (0, 0));
    });
}

#[test]
fn a_transfer_longer_than_the_longest_message_is_several_requests() {
    for provider in providers() {
        let longest = match provider {
            ProviderKind::Rdma => rdma::open(&RdmaOptions::default()).unwrap().attr().max_msg_sz as usize,
            _ => 1 << 30,
        };
        let len = longest + 10_000;
        let mut f = Fixture::with_memory(provider, len + 4096);
        // Long enough for a busy machine.
        f.options.operation_timeout = Duration::from_secs(600);
        let session = f.connect();
        let base = base(&session);
        // Zero pages that were never touched, but for these.
        let mut data = vec![0u8; len];
        let places = [0, longest - 3000, longest, len - 3000];
        for (seed, place) in places.into_iter().enumerate() {
            data[place..place + 3000].copy_from_slice(&pattern(3000, seed));
        }
        let mut data = session.start_write(at(base, 8), data).wait().unwrap();
        assert_eq!(data.len(), len);
        assert_eq!((session.stats().write_requests, session.stats().work_requests), (2, 2));
        let mut found = vec![0; 3000];
        for (seed, place) in places.into_iter().enumerate() {
            f.memory.read(8 + place, &mut found);
            assert!(found == pattern(3000, seed), "{place}");
            data[place..place + 3000].fill(0);
        }
        let data = session.start_read(at(base, 8), data).wait().unwrap();
        assert_eq!(data.len(), len);
        assert_eq!(session.stats().read_requests, 2);
        for (seed, place) in places.into_iter().enumerate() {
            assert!(data[place..place + 3000] == pattern(3000, seed), "{place}");
        }
        let sum = |part: &[u8]| part.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let expected: u64 = (0..places.len()).map(|seed| sum(&pattern(3000, seed))).sum();
        assert_eq!(sum(&data), expected, "and nothing else");
    }
}

#[test]
fn an_empty_transfer_is_done_and_a_wrapping_one_is_refused() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for offset in [0, 100, LEN] {
            assert_eq!(session.start_write(at(base, offset), Vec::new()).wait(), Ok(Vec::new()));
            assert_eq!(session.start_read(at(base, offset), Vec::new()).wait(), Ok(Vec::new()));
        }
        let wrapping = RemoteAddr { addr: u64::MAX - 7, rkey: base.rkey };
        let refused = |(result, buf): (Result<(), RequestError>, Vec<u8>)| {
            assert!(matches!(result, Err(RequestError::Invalid(_))), "{result:?}");
            assert_eq!(buf, [9; 9]);
        };
        let before = session.stats();
        let transfer = session.start_write(wrapping, vec![9; 9]);
        assert!(transfer.is_done());
        refused(split(transfer.wait()));
        refused(split(session.start_read(wrapping, vec![9; 9]).wait()));
        refused(split(block_on(session.start_write(wrapping, vec![9; 9]))));
        drop(session.start_write(wrapping, vec![9; 9]));
        let (send, receive) = mpsc::channel();
        let second = send.clone();
        session.write_then(wrapping, vec![9; 9], move |outcome| send.send(split(outcome)).unwrap());
        session.read_then(wrapping, vec![9; 9], move |outcome| second.send(split(outcome)).unwrap());
        refused(receive.recv().unwrap());
        refused(receive.recv().unwrap());
        assert_eq!(receive.recv(), Err(mpsc::RecvError), "once each");
        assert_eq!(session.stats().work_requests, before.work_requests);
        assert!(session.is_connected());
    });
}

#[test]
fn a_dropped_transfer_continues_and_drops_its_buffer_at_its_end() {
    on_each_provider(|mut f| {
        f.options.window_bytes = 64 * 1024;
        let session = f.connect();
        let base = base(&session);
        let (count, len) = (48, 50_000);
        let buffers: Vec<Weak<[u8]>> = (0..count)
            .map(|i| {
                let buf: Arc<[u8]> = pattern(len, i).into();
                let weak = Arc::downgrade(&buf);
                drop(session.start_write(at(base, i * len), buf));
                weak
            })
            .collect();
        while buffers.iter().any(|buf| buf.strong_count() > 0) {
            std::thread::yield_now();
        }
        for i in 0..count {
            let mut back = vec![0; len];
            session.read(at(base, i * len), &mut back).unwrap();
            assert!(back == pattern(len, i), "{i}");
        }
        drop(session.start_read(base, vec![0; len]));
        drop(session.start_write(outside(base), vec![0; 8]));
        // A write behind a failed one may be flushed, and can be repeated.
        while let Err(e) = session.write(base, b"still usable") {
            assert_eq!(e, RequestError::Flushed);
        }
        let mut found = [0; 12];
        f.memory.read(0, &mut found);
        assert_eq!(&found, b"still usable");
    });
}

#[test]
fn outstanding_requests_return_their_buffers_at_the_end_of_the_session() {
    on_each_provider(|mut f| {
        // Some are posted, and some wait for the window.
        f.options.window_bytes = 1 << 20;
        for close in [true, false] {
            let session = f.connect();
            let base = base(&session);
            let len = 256 * 1024;
            let writes: Vec<_> =
                (0..40).map(|i| session.start_write(at(base, i % 8 * len), pattern(len, i))).collect();
            let reads: Vec<_> =
                (0..8).map(|i| session.start_read(at(base, (8 + i % 8) * len), vec![0; len])).collect();
            let (send, receive) = mpsc::channel();
            for i in 0..8 {
                let send = send.clone();
                session.write_then(at(base, i * len), pattern(len, i), move |outcome| {
                    let (result, buf) = split(outcome);
                    send.send((result, buf, i)).unwrap();
                });
            }
            drop(send);
            let fine = |result: &Result<(), RequestError>| {
                assert!(matches!(result, Ok(()) | Err(RequestError::Disconnected)), "{result:?}");
            };
            if close {
                session.close(Duration::ZERO);
                let (result, buf) = split(session.start_write(base, vec![1; 8]).wait());
                assert_eq!((result, buf), (Err(RequestError::Disconnected), vec![1; 8]));
                let (result, buf) = split(block_on(session.start_read(base, vec![1; 8])));
                assert_eq!((result, buf), (Err(RequestError::Disconnected), vec![1; 8]));
            }
            drop(session);
            for (i, transfer) in writes.into_iter().enumerate() {
                // A poller may still hold the last completions.
                while !transfer.is_done() {
                    std::thread::yield_now();
                }
                let (result, buf) = split(if i % 2 == 0 { transfer.wait() } else { block_on(transfer) });
                fine(&result);
                assert!(buf == pattern(len, i));
            }
            for transfer in reads {
                let (result, buf) = split(transfer.wait());
                fine(&result);
                assert_eq!(buf.len(), len);
            }
            let mut called: Vec<usize> = receive
                .iter()
                .map(|(result, buf, i)| {
                    fine(&result);
                    assert!(buf == pattern(len, i));
                    i
                })
                .collect();
            called.sort_unstable();
            assert_eq!(called, (0..8).collect::<Vec<_>>(), "each once");
        }
    });
}

#[test]
fn room_held_by_unawaited_transfers_is_given_back() {
    on_each_provider(|mut f| {
        for (queue_pairs, window) in [(1, 4096), (1, 40_000), (4, 40_000)] {
            (f.options.queue_pairs, f.options.window_bytes) = (queue_pairs, window);
            let session = f.connect();
            let base = base(&session);
            let transfers: Vec<_> =
                (0..64).map(|i| session.start_write(at(base, i * 12_000), pattern(10_000, i))).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| session.write(at(base, 1 << 20), &pattern(10_000, 99)).unwrap());
                scope.spawn(|| session.read(at(base, 1 << 21), &mut vec![0; 10_000]).unwrap());
                scope.spawn(|| session.fetch_add(at(base, 3 << 20), 1).unwrap());
            });
            let mut found = vec![0; 10_000];
            f.memory.read(1 << 20, &mut found);
            assert!(found == pattern(10_000, 99));
            for (i, transfer) in transfers.into_iter().enumerate() {
                transfer.wait().unwrap();
                f.memory.read(i * 12_000, &mut found);
                assert!(found == pattern(10_000, i));
            }
            // The largest request goes alone.
            assert!(session.in_flight().1 <= window.max(12_288), "{:?}", session.in_flight());
        }
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

/// Steps of the property test.
#[derive(Clone, Debug)]
enum Step {
    Start { offset: usize, len: usize },
    Write { offset: usize, len: usize },
    Read { offset: usize, len: usize, front_door: u8 },
    WaitFor(usize),
}

const AREA: usize = 24_000;

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..AREA, prop_oneof![0..64usize, 1..9000usize]);
    prop_oneof![
        6 => range().prop_map(|(offset, len)| Step::Start { offset, len: len.min(AREA - offset) }),
        1 => range().prop_map(|(offset, len)| Step::Write { offset, len: len.min(AREA - offset) }),
        1 => (range(), 0..3u8).prop_map(|((offset, len), front_door)| {
            Step::Read { offset, len: len.min(AREA - offset), front_door }
        }),
        2 => any::<usize>().prop_map(Step::WaitFor),
    ]
}

fn wait_for(transfer: Transfer<Vec<u8>>, how: usize) -> Result<(), TestCaseError> {
    let outcome = match how % 2 {
        0 => transfer.wait(),
        _ => block_on(transfer),
    };
    prop_assert_eq!(split(outcome).0, Ok(()));
    Ok(())
}

fn run(session: &Session, f: &Fixture, base: RemoteAddr, steps: &[Step]) -> Result<(), TestCaseError> {
    session.write(base, &vec![0; AREA]).unwrap();
    let mut model = vec![0u8; AREA];
    let mut outstanding: Vec<Transfer<Vec<u8>>> = Vec::new();
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Start { offset, len } => {
                let data = pattern(len, seed + 1);
                model[offset..offset + len].copy_from_slice(&data);
                outstanding.push(session.start_write(at(base, offset), data));
            }
            Step::Write { offset, len } => {
                let data = pattern(len, seed + 1);
                model[offset..offset + len].copy_from_slice(&data);
                prop_assert_eq!(session.write(at(base, offset), &data), Ok(()));
            }
            Step::WaitFor(which) if !outstanding.is_empty() => {
                let transfer = outstanding.remove(which % outstanding.len());
                wait_for(transfer, which)?;
            }
            Step::WaitFor(_) => {}
            Step::Read { offset, len, front_door } => {
                for transfer in outstanding.drain(..) {
                    wait_for(transfer, seed)?;
                }
                let buf = vec![0; len];
                let (result, found) = match front_door {
                    0 => split(session.start_read(at(base, offset), buf).wait()),
                    1 => split(block_on(session.start_read(at(base, offset), buf))),
                    _ => {
                        let mut buf = buf;
                        (session.read(at(base, offset), &mut buf), buf)
                    }
                };
                prop_assert_eq!(result, Ok(()));
                prop_assert!(found == model[offset..offset + len], "read of {}+{}", offset, len);
            }
        }
    }
    for transfer in outstanding.into_iter().rev() {
        wait_for(transfer, steps.len())?;
    }
    let mut found = vec![0; AREA];
    f.memory.read(0, &mut found);
    prop_assert!(found == model, "at the end");
    prop_assert_eq!(session.in_flight().0, 0);
    Ok(())
}

#[test]
fn overlapping_started_writes_take_effect_in_the_order_of_their_start() {
    on_each_provider(|mut f| {
        for &batch in BatchMode::ALL {
            for queue_pairs in [1, 4] {
                f.options.batch = batch;
                f.options.queue_pairs = queue_pairs;
                f.options.window_bytes = 16 * 1024;
                let session = f.connect();
                let base = base(&session);
                let config = Config {
                    cases: 24,
                    max_shrink_iters: 200,
                    failure_persistence: None,
                    ..Config::default()
                };
                let steps = prop::collection::vec(step(), 1..60);
                if let Err(e) = TestRunner::new(config).run(&steps, |steps| run(&session, &f, base, &steps)) {
                    panic!("{batch}, {queue_pairs} queue pairs: {e}");
                }
            }
        }
    });
}

#[test]
fn requests_started_together_are_one_list() {
    on_each_that_posts(|mut f| {
        f.options.queue_pairs = 1;
        let session = f.connect();
        let base = base(&session);
        f.memory.write(0, &pattern(LEN, 3));
        let before = session.stats();
        let transfers: Vec<Transfer<Vec<u8>>> = session.together(|| {
            let starts = (0..8).map(|i| session.start_read(at(base, i * 8192), vec![0; 4096]));
            let transfers: Vec<_> = starts.collect();
            assert_eq!(session.stats().doorbells, before.doorbells, "all of them first");
            transfers
        });
        let after = session.stats();
        assert_eq!((after.work_requests - before.work_requests, after.doorbells - before.doorbells), (8, 1));
        for (i, transfer) in transfers.into_iter().enumerate() {
            let read = transfer.wait().unwrap();
            assert!(read == pattern(LEN, 3)[i * 8192..][..4096]);
        }
        // A request that is waited for is posted at once, with those started before it.
        session.together(|| {
            let started = session.start_read(at(base, 0), vec![0; 4096]);
            assert!(started.wait().unwrap() == pattern(LEN, 3)[..4096]);
            let started = session.start_read(at(base, 9), vec![0; 4096]);
            assert!(block_on(started).unwrap() == pattern(LEN, 3)[9..][..4096]);
        });
        let started = session.together(|| {
            let started = session.start_read(at(base, 0), vec![0; 4096]);
            let mut read = vec![0; 100];
            session.read(at(base, 5), &mut read).unwrap();
            assert!(read == pattern(LEN, 3)[5..105]);
            started
        });
        assert!(started.wait().unwrap() == pattern(LEN, 3)[..4096]);
    });
}
