//! Work of the internal parts of the request path, for `benches/iai.rs`, which counts its
//! instructions (feature `internals`).
//!
//! Only benchmarks and tests use it, and any version may change it.

use std::{hint::black_box, sync::Arc, time::Duration};

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    admission::{Admission, AdmissionPolicy, LatencyWindow, StaticWindow},
    batch::{BatchMode, InFlight, Item, Plan, PlanLimits, plan},
    polling::{Poller, PollingMode, Retry, Step},
    provider::soft::{Header, Opcode},
    runtime::MergeQueue,
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

/// Returns sixteen requests `stride` pages apart.
fn items(stride: u64) -> [Item; 16] {
    std::array::from_fn(|i| Item {
        remote: RemoteAddr { addr: 4096 * (1 + i as u64 * stride), rkey: 1 },
        len: 4096,
        sges: 1,
        stageable: true,
    })
}

/// Makes a plan and requests, without planning: the part of the others that is not theirs.
pub fn plan_setup() -> usize {
    let out = Plan::with_capacity(16);
    black_box(items(1));
    black_box(out).doorbells()
}

fn run(items: &[Item]) -> usize {
    let mut out = Plan::with_capacity(16);
    plan(black_box(items), black_box(&LIMITS), &mut out);
    black_box(&out).doorbells()
}

/// Plans one request. Returns the number of doorbells, as all plans do.
pub fn plan_1() -> usize {
    run(&items(1)[..1])
}

/// Plans sixteen requests, each behind the one before it in memory.
pub fn plan_16_adjacent() -> usize {
    run(&items(1))
}

/// Plans sixteen requests with gaps between them.
pub fn plan_16_disjoint() -> usize {
    run(&items(2))
}

/// Plans sixteen adjacent requests, the last in memory first.
pub fn plan_16_descending() -> usize {
    let mut items = items(1);
    items.reverse();
    run(&items)
}

/// Adds and removes sixteen writes in flight, with an unrelated overlap check after each. Returns
/// the number of overlaps.
pub fn in_flight_16_writes() -> usize {
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
        if next == Step::Sleep {
            poller.after_wake();
            sleeps += 1;
        }
    }
    sleeps
}

/// Decides after a thousand polls, with a fixed number of retries. Returns the number of sleeps.
pub fn poller_adaptive_1000_polls() -> u32 {
    poll_1000_times(Retry::Fixed(120))
}

/// Decides after a thousand polls, with retries by success. Returns the number of sleeps.
pub fn poller_learning_1000_polls() -> u32 {
    poll_1000_times(Retry::Adapt { max: 120 })
}

/// Admits a thousand requests, up to eight under way.
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

/// Admits a thousand requests to a fixed window. Returns the bytes in flight.
pub fn admission_static_1000_requests() -> u64 {
    admit_1000(Arc::new(StaticWindow::new(16 * 4096)))
}

/// Admits a thousand requests to a window by latency. Returns the bytes in flight.
pub fn admission_latency_1000_requests() -> u64 {
    admit_1000(Arc::new(LatencyWindow::default()))
}

/// Records a thousand durations. Returns their number.
pub fn latency_1000_records() -> u64 {
    let recorder = LatencyRecorder::default();
    for step in 0..1000u64 {
        recorder.record(black_box(Duration::from_nanos(step * step)));
    }
    recorder.snapshot().count()
}

/// Pushes sixteen requests one by one; each is taken at once because no other thread uses the
/// queue. Returns their sum.
pub fn merge_queue_16_alone() -> u64 {
    let queue: MergeQueue<u64, Vec<u64>> = MergeQueue::default();
    let mut sum = 0;
    for request in 0..16 {
        queue.push(std::iter::once(black_box(request)));
        queue.flush(|guard| {
            guard.collect(|taken| taken);
            sum += guard.state().drain(..).sum::<u64>();
        });
    }
    sum
}

/// Pushes sixteen requests together and takes them in one batch. Returns their sum.
pub fn merge_queue_16_at_once() -> u64 {
    let queue: MergeQueue<u64, Vec<u64>> = MergeQueue::default();
    let mut sum = 0;
    queue.push((0..16).map(black_box));
    queue.flush(|guard| {
        guard.collect(|taken| taken);
        sum += guard.state().drain(..).sum::<u64>();
    });
    sum
}

/// Encodes and decodes sixteen WRITE headers. Returns the sum of their addresses and lengths.
pub fn wire_16_headers() -> u64 {
    let mut sum = 0;
    for msn in 0..16_u32 {
        let mut header = Header::new(Opcode::Write, black_box(msn));
        header.addr = u64::from(msn << 12).into();
        header.payload_len = 4096.into();
        let bytes = black_box(header.as_bytes());
        if let Ok(read) = Header::read_from_bytes(bytes)
            && Opcode::from_code(read.opcode) == Some(Opcode::Write)
        {
            sum += read.addr.get() + u64::from(read.payload_len.get());
        }
    }
    sum
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn the_counted_functions_process_all_requests() {
        assert_eq!([super::plan_setup(), super::plan_1(), super::plan_16_adjacent()], [0, 1, 1]);
        assert_eq!([super::plan_16_disjoint(), super::plan_16_descending()], [1, 1]);
        assert_eq!(super::in_flight_16_writes(), 0);
        assert_eq!(super::latency_1000_records(), 1000);
        assert_eq!(super::merge_queue_16_alone(), (0..16).sum());
        assert_eq!(super::merge_queue_16_at_once(), (0..16).sum());
        assert_eq!(super::wire_16_headers(), (0..16).map(|msn| (msn << 12) + 4096).sum());
    }
}
