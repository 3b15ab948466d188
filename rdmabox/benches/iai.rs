//! Instruction counts of the pure parts of the request path.

use iai::black_box;
use rdmabox::{
    batch::{BatchMode, Item, Plan, PlanLimits, plan},
    polling::{Poller, PollingMode},
    verbs::RemoteAddr,
};

const LIMITS: PlanLimits = PlanLimits {
    mode: BatchMode::Hybrid,
    max_msg_sz: 1 << 30,
    max_sge: 30,
    max_chain: 64,
    stage_threshold: 128 << 10,
};

/// Sixteen requests `stride` pages apart.
fn items(stride: u64) -> [Item; 16] {
    std::array::from_fn(|i| Item {
        remote: RemoteAddr { addr: 4096 * (1 + i as u64 * stride), rkey: 1 },
        len: 4096,
        sges: 1,
        stageable: true,
    })
}

fn plan_setup() -> (usize, [Item; 16]) {
    let out = Plan::with_capacity(16);
    (black_box(out).doorbells(), black_box(items(1)))
}

fn run(items: &[Item]) -> usize {
    let mut out = Plan::with_capacity(16);
    plan(black_box(items), black_box(&LIMITS), &mut out);
    black_box(&out).doorbells()
}

fn plan_1() -> usize {
    run(&items(1)[..1])
}

fn plan_16_adjacent() -> usize {
    run(&items(1))
}

fn plan_16_disjoint() -> usize {
    run(&items(2))
}

fn plan_16_descending() -> usize {
    let mut items = items(1);
    items.reverse();
    run(&items)
}

fn poller_adaptive_1000_polls() -> u32 {
    let mut poller = Poller::new(PollingMode::Adaptive, 120, 16);
    let mut sleeps = 0;
    for step in 0..1000usize {
        let next = poller.after_poll(black_box(usize::from(step % 64 == 0)));
        if next == rdmabox::polling::Step::Sleep {
            poller.after_wake();
            sleeps += 1;
        }
    }
    sleeps
}

iai::main!(
    plan_setup,
    plan_1,
    plan_16_adjacent,
    plan_16_disjoint,
    plan_16_descending,
    poller_adaptive_1000_polls
);
