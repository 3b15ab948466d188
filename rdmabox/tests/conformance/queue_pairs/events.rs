//! Tests of completion events: arm, poll once more, wait; and wake.

use std::{sync::Barrier, thread, time::Duration};

use rdmabox::verbs::{Access, CompletionQueue, Progress, WcStatus, WorkCompletion};

use crate::fixture::{Config, Pair, SEND, Setup, Side, WAIT_LIMIT, connect, pattern, read, signaled, write};

conformance! {
    a_completion_after_arming_ends_the_wait,
    a_completion_before_arming_is_found_by_the_poll,
    a_wait_ends_in_time,
    wake_ends_a_wait,
    a_wake_before_the_wait_is_not_lost,
    a_look_leaves_a_wake_to_the_wait,
    arming_gives_one_event,
    a_failure_ends_the_wait,
    the_death_of_the_peer_ends_the_wait,
    nothing_is_lost_in_a_ping_pong,
    sleeping_threads_move_large_requests,
}

const SHORT: Duration = Duration::from_millis(1);

/// Follows the protocol of the trait: takes the next completion, asleep in between.
fn next(cq: &dyn CompletionQueue) -> WorkCompletion {
    let mut out = [WorkCompletion::EMPTY];
    loop {
        if cq.poll(&mut out).expect("poll") == 1 {
            return out[0];
        }
        cq.arm().expect("arm");
        if cq.poll(&mut out).expect("poll") == 1 {
            return out[0];
        }
        assert!(cq.wait(Some(WAIT_LIMIT)).expect("wait"), "the event of a completion was lost");
    }
}

fn one_queue(config: Config) -> Pair {
    Setup::new(config).one_cq().pair()
}

/// Gives each side a thread.
fn on_two_threads<'a>(pair: &'a Pair, a: impl FnOnce(&'a Side) + Send, b: impl FnOnce(&'a Side) + Send) {
    thread::scope(|scope| {
        let other = scope.spawn(|| b(&pair.b));
        a(&pair.a);
        other.join().expect("no panic at the peer");
    });
}

fn a_completion_after_arming_ends_the_wait(config: Config) {
    let pair = one_queue(config);
    let start = Barrier::new(2);
    on_two_threads(
        &pair,
        |a| {
            for id in 0..50 {
                start.wait();
                a.post(&[signaled(id, SEND, &[])]);
                assert_eq!(next(&*a.cq).wr_id, id);
            }
        },
        |b| {
            let mut out = [WorkCompletion::EMPTY];
            for id in 0..50 {
                b.recv(id, &[]);
                b.cq.arm().expect("arm");
                assert_eq!(b.cq.poll(&mut out).expect("poll"), 0);
                start.wait();
                assert!(b.cq.wait(Some(WAIT_LIMIT)).expect("wait"));
                assert_eq!(next(&*b.cq).wr_id, id);
            }
        },
    );
}

fn a_completion_before_arming_is_found_by_the_poll(config: Config) {
    let pair = one_queue(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 64]);
    let mut out = [WorkCompletion::EMPTY];
    pair.a.post(&[signaled(1, write(target.remote(0)), &[local.all()])]);
    // Arming again and again, with a completion at any time before, between or after.
    crate::fixture::until("the completion", || {
        pair.a.cq.arm().expect("arm");
        pair.b.pump();
        (pair.a.cq.poll(&mut out).expect("poll") == 1).then_some(())
    });
    assert_eq!((out[0].wr_id, out[0].status), (1, WcStatus::Success));
}

fn a_wait_ends_in_time(config: Config) {
    let pair = one_queue(config);
    pair.pump();
    pair.a.cq.arm().expect("arm");
    // It may return early, but not for ever.
    while pair.a.cq.wait(Some(SHORT)).expect("wait") {}
    while pair.a.cq.wait(Some(Duration::ZERO)).expect("wait") {}
}

fn wake_ends_a_wait(config: Config) {
    let pair = one_queue(config);
    pair.pump();
    for armed in [false, true, false] {
        if armed {
            pair.a.cq.arm().expect("arm");
        }
        while pair.a.cq.wait(Some(SHORT)).expect("wait") {}
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| pair.a.cq.wait(Some(WAIT_LIMIT)).expect("wait"));
            pair.a.cq.wake();
            assert!(sleeper.join().expect("no panic"));
        });
    }
}

fn a_look_leaves_a_wake_to_the_wait(config: Config) {
    let setup = Setup::new(config);
    let (a, b) = (setup.side(), setup.side());
    // More than a provider may look at one by one.
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let of = |side: &Side| setup.qp(&side.pd, &side.cq, &side.recv_cq);
            let (one, other) = (of(&a), of(&b));
            connect(config, &one, &other);
            (one, other)
        })
        .collect();
    while a.cq.wait(Some(SHORT)).expect("wait") {}
    a.cq.wake();
    assert_eq!(a.cq.poll(&mut [WorkCompletion::EMPTY]).expect("poll"), 0);
    assert!(a.cq.wait(Some(Duration::ZERO)).expect("wait"), "the look has used it up");
    assert!(!a.cq.wait(Some(SHORT)).expect("wait"), "once is enough");
    drop(pairs);
}

fn a_wake_before_the_wait_is_not_lost(config: Config) {
    let pair = one_queue(config);
    pair.pump();
    while pair.a.cq.wait(Some(SHORT)).expect("wait") {}
    pair.a.cq.wake();
    pair.a.cq.wake();
    assert!(pair.a.cq.wait(Some(WAIT_LIMIT)).expect("wait"));
}

fn arming_gives_one_event(config: Config) {
    let pair = one_queue(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 64]);
    let sges = [local.all()];
    let mut out = [WorkCompletion::EMPTY; 4];
    for _ in 0..3 {
        pair.a.cq.arm().expect("arm");
        pair.a.post(&[
            signaled(1, write(target.remote(0)), &sges),
            signaled(2, write(target.remote(0)), &sges),
        ]);
        let mut found = 0;
        crate::fixture::until("both completions", || {
            pair.b.pump();
            found += pair.a.cq.poll(&mut out[..1]).expect("poll");
            (found == 2).then_some(())
        });
        if config.progress == Progress::Engine {
            assert!(pair.a.cq.wait(Some(WAIT_LIMIT)).expect("wait"), "the event was not used up by polling");
            // No further event was requested.
            pair.a.post(&[signaled(3, write(target.remote(0)), &sges)]);
            pair.until("the bytes", || (target.contents() == [1; 64]).then_some(()));
            assert!(!pair.a.cq.wait(Some(Duration::from_millis(50))).expect("wait"));
        } else {
            pair.a.post(&[signaled(3, write(target.remote(0)), &sges)]);
        }
        assert_eq!(pair.sent(&pair.a).wr_id, 3);
        while pair.a.cq.wait(Some(Duration::ZERO)).expect("wait") {}
    }
}

fn a_failure_ends_the_wait(config: Config) {
    let pair = one_queue(config);
    on_two_threads(
        &pair,
        |a| {
            let local = a.local(8);
            let nowhere = rdmabox::verbs::RemoteAddr { addr: 0, rkey: u32::MAX };
            a.post(&[signaled(1, write(nowhere), &[local.all()])]);
            assert_eq!(next(&*a.cq).status, WcStatus::RemAccessErr);
        },
        |b| {
            b.recv(5, &[]);
            let wc = next(&*b.cq);
            assert_eq!((wc.wr_id, wc.status), (5, WcStatus::WrFlushErr));
        },
    );
}

fn the_death_of_the_peer_ends_the_wait(config: Config) {
    let pair = one_queue(config);
    let start = Barrier::new(2);
    on_two_threads(
        &pair,
        |a| {
            start.wait();
            a.qp.to_error();
        },
        |b| {
            b.recv(5, &[]);
            b.cq.arm().expect("arm");
            start.wait();
            let wc = next(&*b.cq);
            assert_eq!((wc.wr_id, wc.status), (5, WcStatus::WrFlushErr));
        },
    );
}

fn nothing_is_lost_in_a_ping_pong(config: Config) {
    const ROUNDS: u64 = 10_000;
    let pair = one_queue(config);
    /// Takes completions until a message has arrived and the own one is sent.
    fn exchange(side: &Side, sent: &mut u64, received: &mut u64, needs: (u64, u64)) {
        while *sent < needs.0 || *received < needs.1 {
            let wc = next(&*side.cq);
            assert_eq!(wc.status, WcStatus::Success);
            let count = if wc.wr_id < 1 << 32 { &mut *sent } else { &mut *received };
            assert_eq!(wc.wr_id & 0xffff_ffff, *count);
            *count += 1;
        }
    }
    for side in [&pair.a, &pair.b] {
        side.recv(1 << 32, &[]);
        side.recv((1 << 32) + 1, &[]);
    }
    on_two_threads(
        &pair,
        |a| {
            let (mut sent, mut received) = (0, 0);
            for round in 0..ROUNDS {
                a.post(&[signaled(round, SEND, &[])]);
                exchange(a, &mut sent, &mut received, (round + 1, round + 1));
                a.recv((1 << 32) + round + 2, &[]);
            }
        },
        |b| {
            let (mut sent, mut received) = (0, 0);
            for round in 0..ROUNDS {
                exchange(b, &mut sent, &mut received, (round, round + 1));
                b.post(&[signaled(round, SEND, &[])]);
                b.recv((1 << 32) + round + 2, &[]);
            }
            exchange(b, &mut sent, &mut received, (ROUNDS, ROUNDS));
        },
    );
}

fn sleeping_threads_move_large_requests(config: Config) {
    const LEN: usize = 4 << 20;
    let pair = one_queue(config);
    let (at_a, at_b) = (pair.a.buf(LEN, Access::REMOTE_ALL), pair.b.buf(LEN, Access::REMOTE_ALL));
    let body = |side: &Side, remote: &crate::fixture::Buf, seed| {
        let data = pattern(seed, LEN);
        let (source, back) = (side.filled(&data), side.local(LEN));
        side.recv(99, &[]);
        // The message of a peer that is done may come at any time.
        let mut arrived = false;
        let mut next_sent = || loop {
            let wc = next(&*side.cq);
            assert_eq!(wc.status, WcStatus::Success);
            if wc.wr_id != 99 {
                return (wc.wr_id, arrived);
            }
            arrived = true;
        };
        for round in 0..5 {
            let (from, to) = ([source.all()], [back.all()]);
            side.post(&[
                signaled(2 * round, write(remote.remote(0)), &from),
                signaled(2 * round + 1, read(remote.remote(0)), &to),
            ]);
            assert_eq!((next_sent().0, next_sent().0), (2 * round, 2 * round + 1));
        }
        assert!(back.contents() == data);
        // The side that is ready first keeps progressing until its peer is ready.
        side.post(&[signaled(50, SEND, &[])]);
        let (id, arrived) = next_sent();
        assert_eq!(id, 50);
        if !arrived {
            assert_eq!(next(&*side.cq).wr_id, 99);
        }
    };
    on_two_threads(&pair, |a| body(a, &at_b, 1), |b| body(b, &at_a, 2));
}
