//! Tests of started requests, for every way to wait. The buffer always returns, the effect equals
//! the effect of blocking calls, and no request depends on an unrelated caller.

mod buffers;
mod order;

use std::{
    sync::{Arc, Weak, mpsc},
    time::Duration,
};

use futures::executor::block_on;
use rdmabox::{ProviderKind, RdmaOptions, RemoteAddr, RequestError, Transfer, provider::rdma};

use crate::support::{
    Fixture, LEN, at, base, on_each_provider, on_each_that_posts, outside, pattern, providers, split,
};

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
