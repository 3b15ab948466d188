//! Tests of the atomics beyond compare-and-swap and fetch-and-add, on the devices that have them.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdmabox::verbs::{Access, AtomicOp, RemoteAddr, SendOp, WcOpcode, WcStatus};

use crate::{
    fixture::{Config, Side, pair, signaled, unsignaled, write},
    requests::atomics::{Shared, alone, shared},
};

software_conformance! {
    each_operation_returns_the_old_value_and_stores_its_result,
    unaligned_words_are_refused,
    operations_follow_the_writes_before_them,
    bits_of_many_queue_pairs_and_of_the_processor_are_all_kept,
    swapped_values_are_neither_lost_nor_doubled,
    a_maximum_only_grows_and_a_minimum_only_shrinks,
}

const CLIENTS: usize = 3;

/// Returns the rounds of each client, of which mapped memory needs more to take as long.
fn rounds(config: Config) -> u64 {
    if config.is_tcp() { 200 } else { 4000 }
}

fn fetch(remote: RemoteAddr, op: AtomicOp) -> SendOp {
    SendOp::FetchOp { remote, op }
}

fn all(operand: u64) -> [AtomicOp; 6] {
    use AtomicOp::{And, Max, Min, Or, Swap, Xor};
    [Swap, And, Or, Xor, Min, Max].map(|op| op(operand))
}

fn each_operation_returns_the_old_value_and_stores_its_result(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(24, Access::REMOTE_ALL);
    let into = pair.a.guarded(32, Access::LOCAL_WRITE);
    // A signed comparison orders the last two the other way.
    let words = [0, 5, 0b1100, i64::MAX as u64, 1 << 63, u64::MAX];
    for (old, operand) in words.iter().flat_map(|old| words.map(|operand| (*old, operand))) {
        for op in all(operand) {
            target.set(8, &old.to_ne_bytes());
            // The old value may land anywhere.
            let wc = pair.run(signaled(1, fetch(target.remote(8), op), &[into.sge(3, 8)]));
            assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::FetchOp, 8));
            assert_eq!(into.get(3, 8), old.to_ne_bytes(), "{op:?} of {old}");
            assert_eq!(target.word(8), op.apply(old), "{op:?} of {old}");
        }
    }
    assert_eq!((target.word(0), target.word(16)), (0, 0));
    assert_eq!((into.get(0, 3), into.get(11, 21)), (vec![0; 3], vec![0; 21]));
    target.assert_guards();
    into.assert_guards();
}

fn unaligned_words_are_refused(config: Config) {
    for (at, op) in [1, 2, 4, 7, 3, 6].into_iter().zip(all(1)) {
        let pair = pair(config);
        let target = pair.b.guarded(64, Access::REMOTE_ALL);
        let into = pair.a.guarded(8, Access::LOCAL_WRITE);
        let wc = pair.run(signaled(1, fetch(target.remote(at), op), &[into.all()]));
        assert_eq!(wc.status, WcStatus::RemInvReqErr);
        target.assert_untouched();
        into.assert_untouched();
    }
}

fn operations_follow_the_writes_before_them(config: Config) {
    const LEN: usize = 1 << 20;
    let pair = pair(config);
    let target = pair.b.buf(LEN, Access::REMOTE_ALL);
    let source = pair.a.local(LEN);
    let into = pair.a.local(16);
    let word = target.remote(LEN - 8);
    for round in 1..50u64 {
        source.set(LEN - 8, &round.to_ne_bytes());
        let (data, first, second) = ([source.all()], [into.sge(0, 8)], [into.sge(8, 8)]);
        pair.a.post(&[
            unsignaled(1, write(target.remote(0)), &data),
            unsignaled(2, fetch(word, AtomicOp::Swap(round + 1000)), &first),
            signaled(3, fetch(word, AtomicOp::Max(5000)), &second),
        ]);
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Success));
        assert_eq!((into.word(0), into.word(8)), (round, round + 1000));
        assert_eq!(target.word(LEN - 8), 5000);
    }
}

/// Counts a client that has ended, also with a panic.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Runs `client` on each client while a processor of the host repeats `step` without a pause. So a
/// change that is not atomic meets a change by `step`. Panics if a step returns false.
fn beside_a_processor(shared: &Shared, client: impl Fn(&Side) + Sync, mut step: impl FnMut() -> bool) {
    let ended = AtomicUsize::new(0);
    let mut intact = true;
    shared.run(
        |side| {
            let _ended = Ended(&ended);
            client(side);
        },
        || {
            while ended.load(Ordering::Acquire) < CLIENTS {
                intact &= step();
            }
        },
    );
    assert!(intact, "a change of the processor was overwritten");
}

/// Checks that no change is lost while each party sets, clears and flips a bit of its own. A change
/// that overwrites a concurrent one shows in the next old value.
fn bits_of_many_queue_pairs_and_of_the_processor_are_all_kept(config: Config) {
    let shared = shared(config, CLIENTS);
    let place = shared.word.remote(8);
    let bits = Mutex::new((0..CLIENTS).map(|index| 1u64 << index).collect::<Vec<_>>());
    let (word, own, mut set) = (shared.word.memory.atomic_u64(8), 1 << 63, false);
    beside_a_processor(
        &shared,
        |side| {
            let bit = bits.lock().pop().expect("one for each client");
            let into = side.local(8);
            let old_of = |op| {
                alone(side, fetch(place, op), &[into.all()]);
                into.word(0) & bit
            };
            for _ in 0..rounds(config) {
                assert_eq!(old_of(AtomicOp::Or(bit)), 0);
                assert_eq!(old_of(AtomicOp::And(!bit)), bit);
                assert_eq!(old_of(AtomicOp::Xor(bit)), 0);
                assert_eq!(old_of(AtomicOp::Xor(bit)), bit);
            }
            assert_eq!(old_of(AtomicOp::Or(bit)), 0);
        },
        || {
            let was_set = word.fetch_xor(own, Ordering::SeqCst) & own != 0;
            set = !set;
            was_set != set
        },
    );
    assert_eq!(shared.word.word(8) & !own, (1 << CLIENTS) - 1);
}

fn swapped_values_are_neither_lost_nor_doubled(config: Config) {
    const EACH: u64 = 500;
    let shared = shared(config, CLIENTS);
    let place = shared.word.remote(16);
    let seen = Mutex::new(Vec::new());
    let firsts = Mutex::new((0..CLIENTS as u64).map(|index| 1 + index * EACH).collect::<Vec<_>>());
    // The processor's values follow those of the clients.
    let (word, mut last, mut olds) = (shared.word.memory.atomic_u64(16), CLIENTS as u64 * EACH, Vec::new());
    beside_a_processor(
        &shared,
        |side| {
            let first = firsts.lock().pop().expect("one for each client");
            let into = side.local(8);
            let mut own = Vec::new();
            for value in first..first + EACH {
                alone(side, fetch(place, AtomicOp::Swap(value)), &[into.all()]);
                own.push(into.word(0));
            }
            seen.lock().extend(own);
        },
        || {
            if olds.len() < 1_000_000 {
                last += 1;
                olds.push(word.swap(last, Ordering::SeqCst));
            }
            true
        },
    );
    let mut seen = seen.into_inner();
    seen.extend(olds);
    seen.push(shared.word.word(16));
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..=last), "each value left the word once");
}

fn a_maximum_only_grows_and_a_minimum_only_shrinks(config: Config) {
    let each = rounds(config);
    let shared = shared(config, CLIENTS);
    let (high, low) = (shared.word.remote(0), shared.word.remote(8));
    shared.word.set(8, &u64::MAX.to_ne_bytes());
    let firsts = Mutex::new((0..CLIENTS as u64).collect::<Vec<_>>());
    let words = [0, 8].map(|at| shared.word.memory.atomic_u64(at));
    let mut reached = 0;
    beside_a_processor(
        &shared,
        |side| {
            let first = firsts.lock().pop().expect("one for each client");
            let into = side.local(8);
            let old_of = |remote, op| {
                alone(side, fetch(remote, op), &[into.all()]);
                into.word(0)
            };
            let (mut highest, mut lowest) = (0, u64::MAX);
            for value in (0..each).map(|round| first + round * CLIENTS as u64) {
                let old = old_of(high, AtomicOp::Max(value));
                assert!(old >= highest, "{old} after {highest}");
                highest = old.max(value);
                let old = old_of(low, AtomicOp::Min(u64::MAX - value));
                assert!(old <= lowest, "{old} after {lowest}");
                lowest = old.min(u64::MAX - value);
            }
        },
        || {
            // Ahead of the clients, so that each of them keeps the value that it finds.
            let before = reached;
            reached += 1;
            words[0].fetch_max(reached, Ordering::SeqCst) >= before
                && words[1].fetch_min(u64::MAX - reached, Ordering::SeqCst) <= u64::MAX - before
        },
    );
    let last = reached.max(each * CLIENTS as u64 - 1);
    assert_eq!((shared.word.word(0), shared.word.word(8)), (last, u64::MAX - last));
}
