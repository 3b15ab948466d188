//! Started atomics and started ordered lists: the same effects as the blocking ones, for every way
//! to wait.

use std::sync::{Arc, atomic::Ordering, mpsc};

use futures::executor::block_on;
use rdmabox::{OwnedOp, RequestError, Session};

use crate::support::{
    Fixture, REFUSED, at, base, on_each_provider, on_each_that_posts, outside, pattern, while_full,
};

fn word(f: &Fixture, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    f.memory.read(offset, &mut bytes);
    u64::from_ne_bytes(bytes)
}

#[test]
fn a_started_atomic_returns_the_old_value_in_every_way_to_wait() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        assert_eq!(session.start_fetch_add(base, 5).wait().unwrap(), 0);
        assert_eq!(block_on(session.start_fetch_add(base, u64::MAX)).unwrap(), 5);
        assert_eq!(session.start_compare_swap(base, 4, 1 << 40).wait().unwrap(), 4);
        assert_eq!(block_on(session.start_compare_swap(base, 4, 9)).unwrap(), 1 << 40);
        assert_eq!(word(&f, 0), 1 << 40);
        let (send, receive) = mpsc::channel();
        let other = send.clone();
        session.fetch_add_then(base, 1, move |old| send.send(old.unwrap()).unwrap());
        assert_eq!(receive.recv().unwrap(), 1 << 40);
        session.compare_swap_then(base, (1 << 40) + 1, 7, move |old| other.send(old.unwrap()).unwrap());
        assert_eq!(receive.recv().unwrap(), (1 << 40) + 1);
        assert_eq!(word(&f, 0), 7);
        assert_eq!(session.stats().atomic_requests, 6);
    });
}

#[test]
fn started_atomics_on_one_word_are_ordered_and_none_is_lost() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let started: Vec<_> = (0..100).map(|_| session.start_fetch_add(base, 1)).collect();
        let old: Vec<u64> = started.into_iter().map(|transfer| transfer.wait().unwrap()).collect();
        assert_eq!(old, (0..100).collect::<Vec<u64>>());
        // Reused parts do not mix up the old values of words that are under way at once.
        let started: Vec<_> = (0..64).map(|i| session.start_fetch_add(at(base, 64 + 8 * i), 3)).collect();
        started.into_iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap(), 0));
        let started: Vec<_> =
            (0..64).map(|i| session.start_fetch_add(at(base, 64 + 8 * i), i as u64)).collect();
        started.into_iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap(), 3));
        (0..64).for_each(|i| assert_eq!(word(&f, 64 + 8 * i), 3 + i as u64));
    });
}

#[test]
fn a_failed_atomic_has_no_old_value() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        // An aligned word behind the exported memory.
        let outside = at(outside(base), 4);
        for failed in [session.start_fetch_add(outside, 1), session.start_compare_swap(outside, 0, 1)] {
            let failed = failed.wait().unwrap_err();
            assert_eq!(failed.buffer, None);
            // The second request may be behind the first one.
            assert!(matches!(failed.error, RequestError::Completion(_) | RequestError::Flushed), "{failed}");
        }
        let end = rdmabox::RemoteAddr { addr: u64::MAX, ..base };
        let failed = session.start_fetch_add(end, 1).wait().unwrap_err();
        assert!(matches!(failed.error, RequestError::Invalid(_)), "{failed}");
        // The queue pair is replaced.
        while session.read(base, &mut [0; 8]).is_err() {}
        assert_eq!(session.start_fetch_add(base, 1).wait().unwrap(), 0);
    });
}

/// Returns a list that writes, counts, exchanges and reads its bytes back.
fn list(session: &Session, place: usize, len: usize, seed: usize) -> Vec<OwnedOp> {
    let base = base(session);
    vec![
        OwnedOp::Write { remote: at(base, place), data: pattern(len, seed) },
        OwnedOp::FetchAdd { remote: base, add: 1, old: 0 },
        OwnedOp::CompareSwap { remote: at(base, 8), compare: 0, swap: 1, old: 77 },
        OwnedOp::Read { remote: at(base, place), out: vec![0; len] },
    ]
}

fn check(list: &[OwnedOp], len: usize, seed: usize, count: u64) {
    let [
        OwnedOp::Write { data, .. },
        OwnedOp::FetchAdd { old: counted, .. },
        OwnedOp::CompareSwap { old: swapped, .. },
        OwnedOp::Read { out, .. },
    ] = list
    else {
        panic!("not the list that was started")
    };
    assert!(*data == pattern(len, seed) && out == data);
    assert_eq!((*counted, *swapped), (count, u64::from(count > 0)));
}

#[test]
fn a_started_list_comes_back_filled_in_every_way_to_wait() {
    on_each_provider(|f| {
        let session = f.connect();
        for (seed, len) in [1, 300, 5000, 100_000].into_iter().enumerate() {
            let count = 3 * seed as u64;
            let new = |i: usize| list(&session, 4096 + seed, len, 3 * seed + i);
            check(&session.start_execute(new(0)).wait().unwrap(), len, 3 * seed, count);
            check(&block_on(session.start_execute(new(1))).unwrap(), len, 3 * seed + 1, count + 1);
            let (send, receive) = mpsc::channel();
            session.execute_then(new(2), move |list| send.send(list.unwrap()).unwrap());
            check(&receive.recv().unwrap(), len, 3 * seed + 2, count + 2);
        }
        let none = Vec::<OwnedOp>::new();
        assert_eq!(session.start_execute(none).wait().unwrap(), []);
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
fn registered_buffers_can_be_steps() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let buffer = |byte| {
            let mut buffer = session.buffer(4096).unwrap();
            buffer.fill(byte);
            buffer
        };
        let list = session.start_execute(vec![
            OwnedOp::Write { remote: base, data: buffer(9) },
            OwnedOp::Read { remote: base, out: buffer(0) },
        ]);
        let list = list.wait().unwrap();
        assert!(matches!(&list[1], OwnedOp::Read { out, .. } if **out == [9; 4096]));
    });
}

#[test]
fn a_started_list_that_fails_comes_back_and_its_later_steps_do_not_run() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let failed = session.start_execute(vec![
            OwnedOp::Write { remote: base, data: vec![1; 8] },
            OwnedOp::Write { remote: outside(base), data: vec![2; 8] },
            OwnedOp::FetchAdd { remote: at(base, 64), add: 1, old: 0 },
        ]);
        let failed = failed.wait().unwrap_err();
        assert_eq!((failed.error, failed.buffer.map(|list| list.len())), (REFUSED, Some(3)));
        assert_eq!((word(&f, 0), word(&f, 64)), (u64::from_ne_bytes([1; 8]), 0));

        let many = vec![OwnedOp::FetchAdd { remote: base, add: 1, old: 0 }; 65];
        let failed = session.start_execute::<Vec<u8>>(many).wait().unwrap_err();
        assert_eq!(failed.error, RequestError::ListTooLong { steps: 65, limit: 64 });
        assert_eq!(failed.buffer.unwrap().len(), 65);
    });
}

#[test]
fn a_started_list_is_one_chain_and_leaves_with_the_requests_before_it() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        let before = session.stats();
        let (write, list) = session.together(|| {
            let write = session.start_write(at(base, 512), vec![1; 64]);
            let list = session.start_execute(vec![
                OwnedOp::FetchAdd { remote: base, add: 1, old: 0 },
                OwnedOp::Read { remote: at(base, 512), out: vec![0; 64] },
            ]);
            assert_eq!(session.stats().doorbells, before.doorbells, "nothing is posted yet");
            (write, list)
        });
        let list = list.wait().unwrap();
        write.wait().unwrap();
        let stats = session.stats();
        assert_eq!(stats.doorbells - before.doorbells, 2);
        assert!(matches!(&list[1], OwnedOp::Read { out, .. } if out.len() == 64));
    });
}

#[test]
fn a_list_that_a_callback_starts_runs_after_the_write_that_it_overlaps() {
    on_each_that_posts(|mut f| {
        let len = 1 << 20;
        f.options.queue_pairs = 1;
        f.options.window_bytes = len as u64;
        let session = f.connect();
        let base = base(&session);
        let place = at(base, 64);
        let (_, (list, word)) = while_full(&session, place, len, move |session| {
            let list = session.start_execute(vec![
                OwnedOp::Read { remote: place, out: vec![1; 8] },
                OwnedOp::Write { remote: place, data: vec![2; 8] },
            ]);
            (list, session.start_fetch_add(place, 1))
        });
        let list = list.wait().unwrap();
        assert!(matches!(&list[0], OwnedOp::Read { out, .. } if *out == [0; 8]));
        assert_eq!(word.wait().unwrap(), u64::from_ne_bytes([2; 8]));
    });
}

#[test]
fn dropped_atomics_and_lists_go_on() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for _ in 0..50 {
            drop(session.start_fetch_add(base, 1));
            drop(session.start_execute::<Vec<u8>>(vec![OwnedOp::FetchAdd { remote: base, add: 1, old: 0 }]));
        }
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let told = Arc::clone(&done);
        session.fetch_add_then(base, 0, move |old| told.store(old == Ok(100), Ordering::SeqCst));
        while !done.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(word(&f, 0), 100);
    });
}
