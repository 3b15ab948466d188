//! Tests of requests that a network card refuses: keys, ranges and access flags, at the peer and
//! locally.
//!
//! Each case checks the status, the state of both ends, and that no byte has changed.

use std::sync::Arc;

use rdmabox::{
    memory::Memory,
    verbs::{Access, AtomicOp, AtomicOps, QpState, RemoteAddr, SendFlags, SendOp, Sge, WcStatus},
};

use crate::fixture::{
    Buf, Config, GUARD, Pair, SEND, Setup, pair, pattern, read, signaled, unsignaled, write,
};

conformance! {
    a_wrong_key,
    the_key_of_a_region_that_is_gone,
    the_key_of_a_successor,
    a_range_past_the_region,
    a_range_that_overflows,
    the_rights_of_the_region,
    a_region_of_another_domain,
    a_refusal_in_the_middle_of_a_list,
    a_refusal_of_an_unsignaled_request_is_reported,
    a_wrong_local_key,
    a_local_range_outside_its_region,
    a_local_key_of_another_domain,
    results_need_local_write,
    sending_needs_no_right,
    one_wrong_element_among_many,
    a_wrong_local_key_behind_unsignaled_requests,
    a_wrong_local_key_behind_a_fence,
}

const LEN: usize = 4096;

/// Returns the one-sided operations with 8 bytes each.
fn operations(remote: RemoteAddr) -> [SendOp; 6] {
    [
        write(remote),
        SendOp::Write { remote, imm: Some(1) },
        read(remote),
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::FetchOp { remote, op: AtomicOp::Xor(1) },
    ]
}

/// Returns the number of operations that the device has, which come first.
fn count(config: Config) -> usize {
    let has_xor = Setup::new(config).side().device.attr().atomic_ops.contains(AtomicOps::XOR);
    if has_xor { 6 } else { 5 }
}

/// Runs every operation on a pair of its own: `target` gives the place, which must be refused.
fn each_is_refused(config: Config, target: impl Fn(&Pair) -> (Buf, RemoteAddr)) {
    for index in 0..count(config) {
        let pair = pair(config);
        let (region, remote) = target(&pair);
        let op = operations(remote)[index];
        assert_refused(&pair, op);
        region.assert_untouched();
    }
}

/// Runs 8 bytes of `op`, which the peer must refuse.
fn assert_refused(pair: &Pair, op: SendOp) {
    let local = pair.a.guarded(8, Access::LOCAL_WRITE);
    let other = pair.b.guarded(64, Access::REMOTE_ALL);
    for id in 20..23 {
        pair.b.recv(id, &[]);
    }
    if matches!(op, SendOp::Send { .. } | SendOp::Write { .. }) {
        local.set(0, &[1; 8]);
    }
    let before = local.contents();
    let (sges, none) = ([local.all()], []);
    pair.a.post(&[
        signaled(1, op, &sges),
        unsignaled(2, write(other.remote(0)), &sges),
        signaled(3, SEND, &none),
    ]);
    for expected in [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)] {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), expected, "{op:?}");
    }
    assert_eq!(pair.a.qp.state(), QpState::Err);
    for id in 20..23 {
        let wc = pair.received(&pair.b);
        assert_eq!(
            (wc.wr_id, wc.status),
            (id, WcStatus::WrFlushErr),
            "{op:?}: the responder's end fails, too"
        );
    }
    assert_eq!(pair.b.qp.state(), QpState::Err);
    assert_eq!(local.contents(), before);
    local.assert_guards();
    other.assert_untouched();
}

fn a_wrong_key(config: Config) {
    for mask in [1, 0x100, 0x1_0000, 0x8000_0000, u32::MAX] {
        each_is_refused(config, |pair| {
            let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
            let remote = RemoteAddr { rkey: region.mr.rkey() ^ mask, ..region.remote(0) };
            (region, remote)
        });
    }
}

fn the_key_of_a_region_that_is_gone(config: Config) {
    each_is_refused(config, |pair| {
        let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
        // It was usable before.
        let local = pair.a.local(8);
        let wc = pair.run(signaled(9, write(region.remote(0)), &[local.all()]));
        assert_eq!(wc.status, WcStatus::Success);
        let remote = region.remote(0);
        let memory = region.memory.clone();
        let again = || pair.b.pd.register(&memory, GUARD as u64, LEN as u64, Access::LOCAL_WRITE);
        (region.replaced(again), remote)
    });
}

fn the_key_of_a_successor(config: Config) {
    // Many regions come and go at the same place: an old key never becomes valid for a new one.
    let first = pair(config);
    let memory = Arc::new(Memory::shared("conformance", LEN).expect("memory"));
    let register =
        |pair: &Pair| pair.b.pd.register(&memory, 0, LEN as u64, Access::REMOTE_ALL).expect("register");
    let mut keys = Vec::new();
    for _ in 0..100 {
        keys.push(register(&first).rkey());
    }
    let unique: std::collections::HashSet<u32> = keys.iter().copied().collect();
    assert_eq!(unique.len(), keys.len());
    each_is_refused(config, |pair| {
        let old = pair.b.guarded(LEN, Access::REMOTE_ALL);
        let remote = old.remote(0);
        let memory = old.memory.clone();
        let region =
            old.replaced(|| pair.b.pd.register(&memory, GUARD as u64, LEN as u64, Access::REMOTE_ALL));
        assert_ne!(region.mr.rkey(), remote.rkey);
        (region, remote)
    });
}

fn a_range_past_the_region(config: Config) {
    for at in [LEN - 7, LEN, LEN + 1, LEN + GUARD - 8, 1 << 40] {
        // Aligned for atomics where possible. They are refused either way, with different statuses.
        for index in 0..count(config) {
            if index >= 3 && at % 8 != 0 {
                continue;
            }
            let pair = pair(config);
            let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
            assert_refused(&pair, operations(region.remote(at))[index]);
            region.assert_untouched();
        }
    }
    each_is_refused(config, |pair| {
        let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
        let remote = RemoteAddr { addr: region.mr.addr() - 8, ..region.remote(0) };
        (region, remote)
    });
}

fn a_range_that_overflows(config: Config) {
    for addr in [u64::MAX - 7, 0] {
        each_is_refused(config, |pair| {
            let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
            let remote = RemoteAddr { addr, ..region.remote(0) };
            (region, remote)
        });
    }
    // The last byte of the address space and beyond, for the operations that need no alignment.
    for index in 0..3 {
        let pair = pair(config);
        let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
        assert_refused(&pair, operations(RemoteAddr { addr: u64::MAX, ..region.remote(0) })[index]);
        region.assert_untouched();
    }
}

fn the_rights_of_the_region(config: Config) {
    let needs = [
        Access::REMOTE_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
    ];
    for (index, needs) in needs.into_iter().enumerate().take(count(config)) {
        for access in [Access::REMOTE_ALL - needs, Access::LOCAL_WRITE, Access::empty()] {
            let pair = pair(config);
            let region = pair.b.guarded(LEN, access);
            assert_refused(&pair, operations(region.remote(0))[index]);
            region.assert_untouched();
        }
        let pair = pair(config);
        let region = pair.b.guarded(LEN, needs | Access::LOCAL_WRITE);
        let local = pair.a.local(8);
        pair.b.recv(1, &[]);
        let wc = pair.run(signaled(1, operations(region.remote(0))[index], &[local.all()]));
        assert_eq!(wc.status, WcStatus::Success, "the one right is enough");
        region.assert_guards();
    }
}

fn a_region_of_another_domain(config: Config) {
    each_is_refused(config, |pair| {
        // The queue pair's own domain has a region, too.
        let _own = pair.b.buf(LEN, Access::REMOTE_ALL);
        let pd = pair.b.device.alloc_pd().expect("protection domain");
        let region = pair.b.guarded(LEN, Access::empty());
        let mr = pd.register(&region.memory, GUARD as u64, LEN as u64, Access::REMOTE_ALL).expect("register");
        let remote = RemoteAddr { addr: mr.addr(), rkey: mr.rkey() };
        (Buf { mr, ..region }, remote)
    });
}

fn a_refusal_in_the_middle_of_a_list(config: Config) {
    let pair = Setup::new(config).queues(32, 32).pair();
    let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
    let source = pair.a.filled(&pattern(1, 64 * 10));
    let sges: Vec<[Sge; 1]> = (0..10).map(|i| [source.sge(64 * i, 64)]).collect();
    let bad = RemoteAddr { rkey: !region.mr.rkey(), ..region.remote(0) };
    let list: Vec<_> = (0..10)
        .map(|i| {
            let remote = if i == 4 { bad } else { region.remote(64 * i) };
            // Unsignaled on both sides of the refused one.
            let make = if i % 2 == 1 { unsignaled } else { signaled };
            make(i as u64, write(remote), &sges[i])
        })
        .collect();
    pair.a.post(&list);
    let mut expected = vec![(0, WcStatus::Success), (2, WcStatus::Success), (4, WcStatus::RemAccessErr)];
    expected.extend((5..10).map(|id| (id, WcStatus::WrFlushErr)));
    for expected in expected {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), expected);
    }
    pair.assert_quiet();
    assert!(region.get(0, 256) == source.get(0, 256), "earlier requests were executed");
    assert!(region.get(256, LEN - 256) == [0; LEN - 256], "later requests were not executed");
    region.assert_guards();
}

fn a_refusal_of_an_unsignaled_request_is_reported(config: Config) {
    let pair = pair(config);
    let region = pair.b.guarded(LEN, Access::REMOTE_READ);
    let local = pair.a.local(8);
    let sges = [local.all()];
    pair.a
        .post(&[unsignaled(1, read(region.remote(0)), &sges), unsignaled(2, write(region.remote(0)), &sges)]);
    let wc = pair.sent(&pair.a);
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RemAccessErr));
    pair.assert_quiet();
    region.assert_untouched();
}

/// Catches a failure that is never reported. No request asks the peer to acknowledge the unsignaled
/// requests before it, and the requests behind it do not leave.
fn a_wrong_local_key_behind_unsignaled_requests(config: Config) {
    let pair = pair(config);
    let region = pair.b.guarded(LEN, Access::REMOTE_WRITE);
    let source = pair.a.filled(&pattern(1, 64));
    let good = [source.all()];
    let bad = [Sge { lkey: !source.mr.lkey(), ..source.all() }];
    let to = |index: usize| write(region.remote(64 * index));
    pair.a.post(&[
        unsignaled(1, to(0), &good),
        unsignaled(2, to(1), &good),
        unsignaled(3, to(2), &bad),
        signaled(4, to(3), &good),
    ]);
    for expected in [(3, WcStatus::LocProtErr), (4, WcStatus::WrFlushErr)] {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), expected);
    }
    pair.assert_quiet();
    assert_eq!(pair.a.qp.state(), QpState::Err);
    assert!(region.get(0, 128) == [source.get(0, 64), source.get(0, 64)].concat(), "the earlier ones");
    assert!(region.get(128, LEN - 128) == [0; LEN - 128], "no later one");
    region.assert_guards();
}

/// Catches a request behind the wrong one that is executed: both waited for the fence.
fn a_wrong_local_key_behind_a_fence(config: Config) {
    let pair = pair(config);
    let region = pair.b.guarded(LEN, Access::REMOTE_ALL);
    let (source, out) = (pair.a.filled(&pattern(1, 64)), pair.a.local(64));
    let (good, fetched) = ([source.all()], [out.all()]);
    let bad = [Sge { lkey: !source.mr.lkey(), ..source.all() }];
    let to = |index: usize| write(region.remote(64 * index));
    pair.a.post(&[
        signaled(1, read(region.remote(0)), &fetched),
        unsignaled(2, to(0), &good).with_flags(SendFlags::FENCE),
        unsignaled(3, to(1), &bad),
        signaled(4, to(2), &good),
    ]);
    for expected in [(1, WcStatus::Success), (3, WcStatus::LocProtErr), (4, WcStatus::WrFlushErr)] {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), expected);
    }
    pair.assert_quiet();
    assert!(region.get(0, 64) == source.get(0, 64), "the one before it");
    assert!(region.get(64, LEN - 64) == [0; LEN - 64], "no later one");
    region.assert_guards();
}

/// Runs `op` with elements that this side must refuse.
fn assert_locally_refused(pair: &Pair, op: SendOp, sges: &[Sge]) {
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let fine = pair.a.filled(&[1; 8]);
    let good = [fine.all()];
    pair.b.recv(20, &[target.all()]);
    pair.a.post(&[signaled(1, op, sges), unsignaled(2, write(target.remote(0)), &good)]);
    for expected in [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)] {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), expected, "{op:?}");
    }
    assert_eq!(pair.a.qp.state(), QpState::Err);
    target.assert_untouched();
}

/// Checks that this side refuses each operation, SEND included, with elements from `sges`.
fn each_is_locally_refused(config: Config, sges: impl Fn(&Pair) -> (Vec<Sge>, Buf)) {
    let count = count(config);
    for index in 0..=count {
        let pair = pair(config);
        let region = pair.b.guarded(64, Access::REMOTE_ALL);
        let (sges, local) = sges(&pair);
        let op = if index == count { SEND } else { operations(region.remote(0))[index] };
        assert_locally_refused(&pair, op, &sges);
        region.assert_untouched();
        local.assert_untouched();
    }
}

fn a_wrong_local_key(config: Config) {
    each_is_locally_refused(config, |pair| {
        let local = pair.a.guarded(8, Access::LOCAL_WRITE);
        (vec![Sge { lkey: !local.mr.lkey(), ..local.all() }], local)
    });
    each_is_locally_refused(config, |pair| {
        let local = pair.a.guarded(8, Access::LOCAL_WRITE);
        let gone = local.all();
        let memory = local.memory.clone();
        (vec![gone], local.replaced(|| pair.a.pd.register(&memory, GUARD as u64, 8, Access::LOCAL_WRITE)))
    });
}

fn a_local_range_outside_its_region(config: Config) {
    for shift in [1i64, -1, 8, 1 << 40] {
        each_is_locally_refused(config, |pair| {
            let local = pair.a.guarded(8, Access::LOCAL_WRITE);
            let all = local.all();
            (vec![Sge { addr: all.addr.wrapping_add_signed(shift), ..all }], local)
        });
    }
    each_is_locally_refused(config, |pair| {
        let local = pair.a.guarded(8, Access::LOCAL_WRITE);
        (vec![Sge { addr: u64::MAX - 3, ..local.all() }], local)
    });
}

fn a_local_key_of_another_domain(config: Config) {
    each_is_locally_refused(config, |pair| {
        let _own = pair.a.local(8);
        let pd = pair.a.device.alloc_pd().expect("protection domain");
        let local = pair.a.guarded(8, Access::empty());
        let mr = pd.register(&local.memory, GUARD as u64, 8, Access::LOCAL_WRITE).expect("register");
        let local = Buf { mr, ..local };
        (vec![local.all()], local)
    });
}

fn results_need_local_write(config: Config) {
    // READ and atomics write into local memory.
    for index in 2..count(config) {
        let pair = pair(config);
        let region = pair.b.guarded(64, Access::REMOTE_ALL);
        let local = pair.a.guarded(8, Access::empty());
        assert_locally_refused(&pair, operations(region.remote(0))[index], &[local.all()]);
        region.assert_untouched();
        local.assert_untouched();
    }
}

fn sending_needs_no_right(config: Config) {
    let pair = pair(config);
    let region = pair.b.buf(8, Access::REMOTE_ALL);
    let local = pair.a.buf(8, Access::empty());
    local.set(0, &[3; 8]);
    assert_eq!(pair.run(signaled(1, write(region.remote(0)), &[local.all()])).status, WcStatus::Success);
    pair.b.recv(1, &[region.all()]);
    assert_eq!(pair.run(signaled(2, SEND, &[local.all()])).status, WcStatus::Success);
    assert_eq!(region.contents(), [3; 8]);
}

fn one_wrong_element_among_many(config: Config) {
    for op in [write as fn(RemoteAddr) -> SendOp, read] {
        let pair = pair(config);
        let region = pair.b.guarded(64, Access::REMOTE_ALL);
        let local = pair.a.guarded(64, Access::LOCAL_WRITE);
        let mut sges: Vec<Sge> = (0..8).map(|i| local.sge(i * 8, 8)).collect();
        sges[7].lkey = !sges[7].lkey;
        assert_locally_refused(&pair, op(region.remote(0)), &sges);
        region.assert_untouched();
        local.assert_untouched();
    }
}
