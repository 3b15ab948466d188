//! Tests of the atomics beyond compare-and-swap and fetch-and-add, and of started loads of a word.
//! The atomics are used in every front door, on sessions that have them and on sessions that lack
//! them.

use std::sync::{Arc, mpsc};

use futures::executor::block_on;
use rdmabox::{
    AtomicOp, AtomicOps, Op, OwnedOp, ProviderKind, RemoteAddr, RequestError, Session, across,
    provider::fault::{Faults, Plan},
};

use crate::support::{Fixture, REFUSED, at, base, beside_a_changing_word, on_each_provider, outside};

fn all(operand: u64) -> [AtomicOp; 6] {
    use AtomicOp::{And, Max, Min, Or, Swap, Xor};
    [Swap, And, Or, Xor, Min, Max].map(|op| op(operand))
}

/// Runs a test on each provider that has the atomics.
fn on_each_that_has_them(test: impl Fn(Fixture)) {
    on_each_provider(|f| match f.options.provider {
        Some(ProviderKind::Rdma) => {}
        _ => test(f),
    });
}

/// Runs a test on each provider without the atomics.
fn on_each_without_them(test: impl Fn(Fixture)) {
    on_each_provider(|mut f| {
        if f.options.provider != Some(ProviderKind::Rdma) {
            let mut faults = Faults::none(0);
            faults.no_atomic_ops = true;
            f.options.faults = Some(Arc::new(Plan::new(faults)));
        }
        test(f);
    });
}

/// Makes a request in each way that there is. `expect` gets the outcome of each.
fn every_front_door(
    session: &Session,
    remote: RemoteAddr,
    op: AtomicOp,
    mut expect: impl FnMut(&str, Result<u64, RequestError>),
) {
    expect("blocking", session.fetch_op(remote, op));
    let mut old = 77;
    let outcome = session.execute(&mut [Op::FetchOp { remote, op, old: &mut old }]);
    expect("list", outcome.map(|()| old));
    let mut list = [Op::FetchOp { remote, op, old: &mut old }];
    let outcome = across(&mut [(session, &mut list)]).remove(0);
    expect("across", outcome.map(|()| old));
    expect("started", session.start_fetch_op(remote, op).wait().map_err(RequestError::from));
    expect("awaited", block_on(session.start_fetch_op(remote, op)).map_err(RequestError::from));
    let (send, receive) = mpsc::channel();
    session.fetch_op_then(remote, op, move |old| send.send(old).unwrap());
    expect("called back", receive.recv().unwrap().map_err(RequestError::from));
    let list = || vec![OwnedOp::<Vec<u8>>::FetchOp { remote, op, old: 77 }];
    let old_of = |list: Vec<OwnedOp>| match list[..] {
        [OwnedOp::FetchOp { old, .. }] => old,
        _ => panic!("not the list that was started"),
    };
    let outcome = session.start_execute(list()).wait().map(old_of);
    expect("started list", outcome.map_err(RequestError::from));
    let (send, receive) = mpsc::channel();
    session.execute_then(list(), move |list| send.send(list).unwrap());
    expect("called-back list", receive.recv().unwrap().map(old_of).map_err(RequestError::from));
}

const FRONT_DOORS: u64 = 8;

#[test]
fn every_front_door_returns_the_old_value() {
    on_each_that_has_them(|f| {
        let session = f.connect();
        assert!(session.supports(AtomicOps::all()));
        let word = at(base(&session), 64);
        for op in all(0x0f0f) {
            let before = session.stats();
            let mut expected = 0xff00;
            f.memory.atomic_u64(64).store(expected, std::sync::atomic::Ordering::SeqCst);
            every_front_door(&session, word, op, |door, old| {
                assert_eq!(old, Ok(expected), "{door} {op:?}");
                expected = op.apply(expected);
                assert_eq!(f.memory.load_u64(64), expected, "{door} {op:?}");
            });
            assert_eq!(session.stats().since(&before).atomic_requests, FRONT_DOORS);
        }
        assert_eq!((f.memory.load_u64(56), f.memory.load_u64(72)), (0, 0));
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
fn what_the_session_lacks_is_refused_before_anything_happens() {
    on_each_without_them(|f| {
        let session = f.connect();
        assert!(session.supports(AtomicOps::empty()));
        let base = base(&session);
        // The queue pairs are up, and the handle of mapped memory has come.
        session.write(base, &[1; 8]).unwrap();
        let before = session.stats();
        for op in all(5) {
            assert!(!session.supports(op.kind()));
            every_front_door(&session, at(base, 64), op, |door, outcome| {
                assert_eq!(outcome, Err(RequestError::Unsupported(op)), "{door}");
            });
            // A list is refused as a whole, wherever the step stands, and comes back.
            let mut olds = [7; 2];
            let [first, last] = &mut olds;
            let list = &mut [
                Op::Write { remote: at(base, 128), data: &[2; 8] },
                Op::FetchAdd { remote: at(base, 72), add: 1, old: first },
                Op::FetchOp { remote: at(base, 64), op, old: last },
            ];
            assert_eq!(session.execute(list), Err(RequestError::Unsupported(op)));
            assert_eq!(across(&mut [(&session, list)]), [Err(RequestError::Unsupported(op))]);
            assert_eq!(olds, [7; 2]);
            let failed = session.start_execute(vec![
                OwnedOp::Write { remote: at(base, 128), data: vec![2; 8] },
                OwnedOp::FetchOp { remote: at(base, 64), op, old: 7 },
            ]);
            let failed = failed.wait().unwrap_err();
            assert_eq!(failed.error, RequestError::Unsupported(op));
            assert!(matches!(failed.buffer.unwrap()[..], [_, OwnedOp::FetchOp { old: 7, .. }]));
        }
        let since = session.stats().since(&before);
        assert_eq!((since.atomic_requests, since.write_requests, since.errors), (0, 0, 0));
        assert_eq!((since.work_requests, since.lane_failures), (0, 0));
        let mut found = [9; 128];
        f.memory.read(64, &mut found);
        assert_eq!(found, [0; 128]);
        // The session goes on, with the atomics that each provider has.
        assert_eq!(session.fetch_add(at(base, 64), 3), Ok(0));
        assert_eq!(session.compare_swap(at(base, 64), 3, 4), Ok(3));
    });
}

#[test]
fn operations_are_steps_of_ordered_lists() {
    on_each_that_has_them(|f| {
        let session = f.connect();
        let base = base(&session);
        let (mut first, mut second, mut third, mut word) = (1, 1, 1, [0; 8]);
        session
            .execute(&mut [
                Op::Write { remote: base, data: &12u64.to_ne_bytes() },
                Op::FetchOp { remote: base, op: AtomicOp::Min(9), old: &mut first },
                Op::FetchAdd { remote: base, add: 1, old: &mut second },
                Op::FetchOp { remote: base, op: AtomicOp::Xor(3), old: &mut third },
                Op::Read { remote: base, out: &mut word },
                Op::Write { remote: base, data: &[0; 8] },
            ])
            .unwrap();
        assert_eq!((first, second, third, u64::from_ne_bytes(word)), (12, 9, 10, 9));
        assert_eq!(f.memory.load_u64(0), 0);
    });
}

#[test]
fn an_unaligned_atomic_is_refused_here_and_breaks_no_lane() {
    on_each_that_has_them(|f| {
        let session = f.connect();
        let (base, swap) = (base(&session), AtomicOp::Swap(9));
        let word = at(base, 4);
        let is_refused = |error| match error {
            RequestError::Invalid(why) => why.contains("multiple of 8"),
            _ => false,
        };
        assert!(is_refused(session.fetch_op(word, swap).unwrap_err()));
        assert!(is_refused(session.fetch_add(word, 1).unwrap_err()));
        assert!(is_refused(session.compare_swap(word, 0, 1).unwrap_err()));
        for started in [
            session.start_fetch_op(word, swap),
            session.start_fetch_add(word, 1),
            session.start_compare_swap(word, 0, 1),
        ] {
            assert!(is_refused(started.wait().unwrap_err().error));
        }
        // The list has no effect at all.
        let mut old = 0;
        let steps = &mut [
            Op::Write { remote: base, data: &[1; 8] },
            Op::FetchAdd { remote: word, add: 1, old: &mut old },
        ];
        assert!(is_refused(session.execute(steps).unwrap_err()));
        let steps = vec![
            OwnedOp::Write { remote: base, data: vec![1; 8] },
            OwnedOp::FetchAdd { remote: word, add: 1, old: 0 },
        ];
        let failed = session.start_execute(steps).wait().unwrap_err();
        assert!(is_refused(failed.error) && failed.buffer.is_some_and(|steps| steps.len() == 2));
        assert_eq!(f.memory.load_u64(0), 0);
        let stats = session.stats();
        assert_eq!((stats.errors, stats.lane_failures), (0, 0));
    });
}

#[test]
fn a_refused_operation_has_no_effect_and_the_session_goes_on() {
    on_each_that_has_them(|f| {
        let session = f.connect();
        let base = base(&session);
        let swap = AtomicOp::Swap(9);
        let wrong = RemoteAddr { rkey: base.rkey ^ 0x100, ..base };
        assert_eq!(session.fetch_op(wrong, swap), Err(REFUSED));
        while session.read(base, &mut [0; 8]).is_err() {}
        let end = RemoteAddr { addr: u64::MAX, ..base };
        assert!(matches!(session.fetch_op(end, swap), Err(RequestError::Invalid(_))));
        let failed = session.start_fetch_op(end, swap).wait().unwrap_err();
        assert!(matches!(failed.error, RequestError::Invalid(_)), "{failed}");
        assert_eq!(f.memory.load_u64(0), 0);
        assert_eq!(session.fetch_op(base, swap), Ok(0));
    });
}

/// Threads raise one word and take tickets of another one, each through its own front door.
#[test]
fn operations_of_several_threads_and_sessions_are_atomic() {
    const EACH: u64 = 300;
    on_each_that_has_them(|f| {
        let sessions = [f.connect(), f.connect()];
        let base = base(&sessions[0]);
        let bases = sessions.each_ref().map(|session| crate::support::base(session));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (session, base) = (&sessions[thread as usize % 2], bases[thread as usize % 2]);
                scope.spawn(move || {
                    let bit = 1 << thread;
                    let old_of = |op| match thread {
                        0 | 1 => session.fetch_op(base, op).unwrap() & bit,
                        _ => session.start_fetch_op(base, op).wait().unwrap() & bit,
                    };
                    for round in 0..EACH {
                        assert_eq!(old_of(AtomicOp::Or(bit)), 0);
                        assert_eq!(old_of(AtomicOp::Xor(bit)), bit);
                        let value = round * 4 + thread;
                        let old = session.fetch_op(at(base, 8), AtomicOp::Max(value)).unwrap();
                        assert!(round == 0 || old >= value - 4);
                    }
                });
            }
        });
        assert_eq!((f.memory.load_u64(0), f.memory.load_u64(8)), (0, 4 * EACH - 1));
        assert_eq!(sessions[0].load_u64(at(base, 8)), Ok(4 * EACH - 1));
    });
}

#[test]
fn a_started_load_returns_the_word_in_every_way_to_wait() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let word = at(base, 4096);
        let before = session.stats();
        f.memory.write(4096, &7u64.to_ne_bytes());
        assert_eq!(session.start_load_u64(word).wait().unwrap(), 7);
        f.memory.write(4096, &u64::MAX.to_ne_bytes());
        assert_eq!(block_on(session.start_load_u64(word)).unwrap(), u64::MAX);
        let (send, receive) = mpsc::channel();
        session.load_u64_then(word, move |word| send.send(word.unwrap()).unwrap());
        assert_eq!(receive.recv().unwrap(), u64::MAX);
        // Many at once, on words beside each other: none merges, and no words mix up.
        (0..64).for_each(|i| f.memory.write(8192 + 8 * i, &(i as u64).to_ne_bytes()));
        let loads: Vec<_> =
            session.together(|| (0..64).map(|i| session.start_load_u64(at(base, 8192 + 8 * i))).collect());
        let loaded: Vec<u64> =
            loads.into_iter().map(|load: rdmabox::Transfer<u64>| load.wait().unwrap()).collect();
        assert!(loaded.into_iter().eq(0..64));
        let since = session.stats().since(&before);
        assert_eq!((since.read_requests, since.atomic_requests, since.merged), (67, 0, 0));

        for offset in [1, 4, 7] {
            let failed = session.start_load_u64(at(base, offset)).wait().unwrap_err();
            assert!(matches!(failed.error, RequestError::Invalid(_)) && failed.buffer.is_none());
        }
        assert_eq!(session.stats().errors, 0);
        let failed = session.start_load_u64(at(outside(base), 4)).wait().unwrap_err();
        assert_eq!((failed.error, failed.buffer), (REFUSED, None));
    });
}

/// Values of a word that a processor of the host changes are never mixed.
#[test]
fn a_started_load_is_whole() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        beside_a_changing_word(&f.memory, 4096, |values| {
            for _ in 0..1000 {
                let loads = [4096; 4].map(|offset| session.start_load_u64(at(base, offset)));
                let loaded = loads.map(|load| load.wait());
                assert!(loaded.iter().all(|one| one.as_ref().is_ok_and(|one| values.contains(one))));
            }
        });
    });
}
