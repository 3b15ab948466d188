//! Tests of compare-and-swap and fetch-and-add.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rdmabox::verbs::{
    Access, CompletionQueue, QueuePair, RemoteAddr, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion,
};

use crate::fixture::{Buf, Config, Pair, Setup, connect, pair, signaled, unsignaled, until, write};

conformance! {
    compare_and_swap_stores_only_if_equal,
    fetch_and_add_wraps,
    the_old_value_may_land_anywhere,
    unaligned_words_are_refused,
    atomics_follow_the_writes_before_them,
    adds_of_many_queue_pairs_and_of_the_processor_all_count,
    compare_and_swap_is_a_lock,
}

fn cas(remote: RemoteAddr, compare: u64, swap: u64) -> SendOp {
    SendOp::CompareSwap { remote, compare, swap }
}

fn add(remote: RemoteAddr, add: u64) -> SendOp {
    SendOp::FetchAdd { remote, add }
}

/// Runs one atomic and gives the old value.
fn old(pair: &Pair, op: SendOp, into: &Buf) -> u64 {
    let wc = pair.run(signaled(1, op, &[into.sge(0, 8)]));
    let opcode = match op {
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        _ => WcOpcode::CompSwap,
    };
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, opcode, 8));
    into.word(0)
}

fn compare_and_swap_stores_only_if_equal(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let into = pair.a.local(8);
    let word = target.remote(16);
    assert_eq!(old(&pair, cas(word, 0, u64::MAX), &into), 0);
    assert_eq!(target.word(16), u64::MAX);
    assert_eq!(old(&pair, cas(word, 0, 5), &into), u64::MAX);
    assert_eq!(target.word(16), u64::MAX);
    assert_eq!(old(&pair, cas(word, u64::MAX, 0x0102_0304_0506_0708), &into), u64::MAX);
    assert_eq!(target.word(16), 0x0102_0304_0506_0708);
    assert_eq!((target.word(8), target.word(24)), (0, 0));
}

fn fetch_and_add_wraps(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let into = pair.a.local(8);
    let word = target.remote(56);
    assert_eq!(old(&pair, add(word, 5), &into), 0);
    assert_eq!(old(&pair, add(word, u64::MAX), &into), 5);
    assert_eq!(old(&pair, add(word, u64::MAX - 1), &into), 4);
    assert_eq!(old(&pair, add(word, 0), &into), 2);
    assert_eq!(target.word(56), 2);
}

fn the_old_value_may_land_anywhere(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(8, Access::REMOTE_ALL);
    target.set(0, &7u64.to_ne_bytes());
    let into = pair.a.guarded(32, Access::LOCAL_WRITE);
    let wc = pair.run(signaled(1, add(target.remote(0), 1), &[into.sge(3, 8)]));
    assert_eq!(wc.status, WcStatus::Success);
    let mut expected = [0; 32];
    expected[3..11].copy_from_slice(&7u64.to_ne_bytes());
    assert_eq!(into.contents(), expected);
    into.assert_guards();
}

fn unaligned_words_are_refused(config: Config) {
    for at in [1, 2, 4, 7] {
        for index in 0..2 {
            let pair = pair(config);
            let target = pair.b.guarded(64, Access::REMOTE_ALL);
            let into = pair.a.guarded(8, Access::LOCAL_WRITE);
            let op = [cas(target.remote(at), 0, 1), add(target.remote(at), 1)][index];
            assert_eq!(pair.run(signaled(1, op, &[into.all()])).status, WcStatus::RemInvReqErr);
            target.assert_untouched();
            into.assert_untouched();
        }
    }
}

fn atomics_follow_the_writes_before_them(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(1 << 20, Access::REMOTE_ALL);
    let source = pair.a.local(1 << 20);
    let into = pair.a.local(16);
    for round in 1..50u64 {
        source.set((1 << 20) - 8, &round.to_ne_bytes());
        let (data, first, second) = ([source.all()], [into.sge(0, 8)], [into.sge(8, 8)]);
        pair.a.post(&[
            unsignaled(1, write(target.remote(0)), &data),
            unsignaled(2, cas(target.remote((1 << 20) - 8), round, round + 1000), &first),
            signaled(3, add(target.remote((1 << 20) - 8), 1), &second),
        ]);
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Success));
        assert_eq!((into.word(0), into.word(8)), (round, round + 1000));
        assert_eq!(target.word((1 << 20) - 8), round + 1001);
    }
}

/// A host with one word that several clients reach, each over a queue pair of its own.
pub(crate) struct Shared {
    cq: Arc<dyn CompletionQueue>,
    pub(crate) word: Buf,
    clients: Vec<crate::fixture::Side>,
    _qps: Vec<Arc<dyn QueuePair>>,
}

pub(crate) fn shared(config: Config, clients: usize) -> Shared {
    let setup = Setup::new(config);
    let host = setup.side();
    let word = host.buf(64, Access::REMOTE_ALL);
    let mut qps = Vec::new();
    let clients = (0..clients)
        .map(|_| {
            let client = setup.side();
            let qp = setup.qp(&host.pd, &host.cq, &host.recv_cq);
            connect(config, &client.qp, &qp);
            qps.push(qp);
            client
        })
        .collect();
    Shared { cq: host.cq.clone(), word, clients, _qps: qps }
}

impl Shared {
    /// Runs `client` on one thread per client, and `processor` on another, while a thread polls the
    /// host.
    pub(crate) fn run(&self, client: impl Fn(&crate::fixture::Side) + Sync, processor: impl FnOnce()) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let host = scope.spawn(|| {
                let mut out = [WorkCompletion::EMPTY; 4];
                while !done.load(Ordering::Acquire) {
                    assert_eq!(self.cq.poll(&mut out).expect("poll"), 0);
                    thread::yield_now();
                }
            });
            let workers: Vec<_> = self.clients.iter().map(|side| scope.spawn(|| client(side))).collect();
            processor();
            let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            done.store(true, Ordering::Release);
            host.join().expect("no panic at the host");
            results.into_iter().for_each(|result| result.expect("no panic at a client"));
        });
    }
}

/// Runs one atomic of a client, whose peer another thread polls.
pub(crate) fn alone(side: &crate::fixture::Side, op: SendOp, sges: &[Sge]) {
    side.post(&[signaled(1, op, sges)]);
    let wc = until("an atomic", || {
        side.pump();
        side.take_send()
    });
    assert_eq!(wc.status, WcStatus::Success);
}

fn adds_of_many_queue_pairs_and_of_the_processor_all_count(config: Config) {
    const CLIENTS: usize = 3;
    const EACH: u64 = 1000;
    let shared = shared(config, CLIENTS);
    let seen = parking_lot::Mutex::new(Vec::new());
    shared.run(
        |side| {
            let into = side.local(8);
            let mut mine = Vec::new();
            for _ in 0..EACH {
                alone(side, add(shared.word.remote(8), 1), &[into.all()]);
                mine.push(into.word(0));
            }
            assert!(mine.is_sorted_by(|a, b| a < b));
            seen.lock().extend(mine);
        },
        || {
            for _ in 0..EACH {
                let old = shared.word.memory.atomic_u64(8).fetch_add(1, Ordering::SeqCst);
                seen.lock().push(old);
            }
        },
    );
    let total = (CLIENTS as u64 + 1) * EACH;
    assert_eq!(shared.word.word(8), total);
    let mut seen = seen.into_inner();
    seen.sort_unstable();
    assert!(seen == (0..total).collect::<Vec<_>>(), "every value was seen once");
}

fn compare_and_swap_is_a_lock(config: Config) {
    const CLIENTS: usize = 3;
    const EACH: u64 = 100;
    let shared = shared(config, CLIENTS);
    let (lock, counter) = (shared.word.remote(0), shared.word.remote(32));
    shared.run(
        |side| {
            let local = side.local(24);
            for _ in 0..EACH {
                loop {
                    alone(side, cas(lock, 0, 1), &[local.sge(0, 8)]);
                    if local.word(0) == 0 {
                        break;
                    }
                    thread::yield_now();
                }
                // A plain read and a plain write: wrong unless the lock works.
                alone(side, SendOp::Read { remote: counter }, &[local.sge(8, 8)]);
                local.set(16, &(local.word(8) + 1).to_ne_bytes());
                alone(side, write(counter), &[local.sge(16, 8)]);
                alone(side, cas(lock, 1, 0), &[local.sge(0, 8)]);
                assert_eq!(local.word(0), 1);
            }
        },
        || {},
    );
    assert_eq!(shared.word.word(32), CLIENTS as u64 * EACH);
    assert_eq!(shared.word.word(0), 0);
}
