//! Counts the instructions of those parts of the request path that need no device.
//!
//! `ci/iai-compare` compares the counts with `iai.baseline`.

use std::{sync::Arc, time::Duration};

use iai::black_box;
use rdmabox::{
    admission::{Admission, AdmissionPolicy, LatencyWindow, StaticWindow},
    batch::{BatchMode, InFlight, Item, Plan, PlanLimits, plan},
    counted::{merge_queue_16_alone, merge_queue_16_at_once, wire_16_headers},
    polling::{Poller, PollingMode, Retry},
    stats::LatencyRecorder,
    verbs::RemoteAddr,
};

const LIMITS: PlanLimits = PlanLimits {
    mode: BatchMode::Hybrid,
    max_merge: u64::MAX,
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

/// Adds and removes sixteen writes in flight, with an unrelated overlap check after each.
fn in_flight_16_writes() -> usize {
    let mut writes = InFlight::new();
    let items = items(2);
    let handles = items.map(|item| writes.insert(black_box(item.remote), item.len));
    let mut overlaps = 0;
    for (item, handle) in items.iter().zip(handles) {
        let remote = RemoteAddr { addr: item.remote.addr + 4096, ..item.remote };
        overlaps += usize::from(writes.overlaps(black_box(remote), item.len));
        writes.remove(handle);
    }
    overlaps
}

fn poll_1000_times(retry: Retry) -> u32 {
    let mut poller = Poller::new(PollingMode::Adaptive, retry, 16);
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

fn poller_adaptive_1000_polls() -> u32 {
    poll_1000_times(Retry::Fixed(120))
}

fn poller_learning_1000_polls() -> u32 {
    poll_1000_times(Retry::Adapt { max: 120 })
}

/// A thousand requests, up to eight under way.
fn admit_1000(policy: Arc<dyn AdmissionPolicy>) -> u64 {
    let admission = Admission::new(policy);
    for request in 0..1000u64 {
        admission.try_admit(black_box(4096));
        if request >= 8 {
            admission.complete(4096, black_box(Duration::from_micros(10)));
        }
    }
    admission.in_flight()
}

fn admission_static_1000_requests() -> u64 {
    admit_1000(Arc::new(StaticWindow::new(16 * 4096)))
}

fn admission_latency_1000_requests() -> u64 {
    admit_1000(Arc::new(LatencyWindow::default()))
}

fn latency_1000_records() -> u64 {
    let recorder = LatencyRecorder::default();
    for step in 0..1000u64 {
        recorder.record(black_box(Duration::from_nanos(step * step)));
    }
    recorder.snapshot().count()
}

iai::main!(
    plan_setup,
    plan_1,
    plan_16_adjacent,
    plan_16_disjoint,
    plan_16_descending,
    in_flight_16_writes,
    poller_adaptive_1000_polls,
    poller_learning_1000_polls,
    admission_static_1000_requests,
    admission_latency_1000_requests,
    latency_1000_records,
    merge_queue_16_alone,
    merge_queue_16_at_once,
    wire_16_headers
);
