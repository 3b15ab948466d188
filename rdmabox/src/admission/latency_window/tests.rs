use std::{collections::VecDeque, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::admission::Admission;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A link in virtual time that sends requests one after another. Each request completes `delay`
/// after its last byte was sent. The sender always has more requests and posts every admitted
/// request.
struct Link {
    policy: Arc<LatencyWindow>,
    admission: Admission,
    /// Bandwidth in bytes per microsecond.
    rate: u64,
    /// Round trip time in nanoseconds.
    delay: u64,
    now: u64,
    /// Time until which the link is busy, in nanoseconds.
    busy_until: u64,
    /// Completion time, post time and length of each request.
    under_way: VecDeque<(u64, u64, u64)>,
}

/// Result of a run of the link.
#[derive(Debug)]
struct Outcome {
    /// Used share of the link's bandwidth in percent.
    used: u64,
    /// Mean latency in nanoseconds.
    latency: u64,
    /// Mean window in bytes.
    window: u64,
}

impl Link {
    fn new(options: LatencyWindowOptions, rate: u64, delay: Duration) -> Link {
        let policy = Arc::new(LatencyWindow::new(options));
        let admission = Admission::new(policy.clone());
        let delay = delay.as_nanos() as u64;
        Link { policy, admission, rate, delay, now: 0, busy_until: 0, under_way: VecDeque::new() }
    }

    /// Runs until `total` bytes have completed, cycling through `sizes`.
    fn run(&mut self, total: u64, sizes: &[u64]) -> Outcome {
        let (start, mut done, mut latencies, mut windows, mut count) = (self.now, 0, 0, 0, 0);
        let mut sizes = sizes.iter().cycle();
        let mut next = *sizes.next().unwrap();
        while done < total {
            while self.admission.try_admit(next) {
                self.busy_until = self.busy_until.max(self.now) + next * 1000 / self.rate;
                self.under_way.push_back((self.busy_until + self.delay, self.now, next));
                next = *sizes.next().unwrap();
            }
            let (at, posted, bytes) = self.under_way.pop_front().expect("something is always admitted");
            self.now = self.now.max(at);
            self.admission.complete(bytes, Duration::from_nanos(at - posted));
            done += bytes;
            latencies += at - posted;
            windows += self.policy.bytes();
            count += 1;
        }
        let carried = (self.now - start) * self.rate / 1000;
        Outcome { used: done * 100 / carried, latency: latencies / count, window: windows / count }
    }
}

fn fixed(base: u64, per_page: u64) -> LatencyWindowOptions {
    LatencyWindowOptions {
        target: LatencyTarget::Fixed {
            base: Duration::from_nanos(base),
            per_page: Duration::from_nanos(per_page),
        },
        ..LatencyWindowOptions::default()
    }
}

#[test]
fn the_window_finds_the_bandwidth_delay_product() {
    // 1 and 10 GB/s, with bandwidth-delay products below, near and above the initial window.
    for (rate, delay) in [(1000, 200), (1000, 2000), (10_000, 100), (10_000, 700), (10_000, 1500)] {
        let target = delay * 1000 * 5 / 4;
        let mut link = Link::new(fixed(target, 4096 * 1000 / rate), rate, Duration::from_micros(delay));
        link.run(2 << 30, &[16 * KIB]);
        let outcome = link.run(1 << 30, &[16 * KIB]);
        let holds = rate * delay;
        assert!(outcome.used >= 98, "{rate} {delay}: {outcome:?}");
        assert!((holds..holds * 3 / 2).contains(&outcome.window), "{rate} {delay}: {outcome:?}");
        assert!(outcome.latency <= target * 11 / 10 + 16 * KIB * 1000 / rate, "{rate} {delay}: {outcome:?}");
    }
}

#[test]
fn a_window_that_never_shrinks_causes_long_queues() {
    // The same link with an unreachable target: the latency bound of the test above detects the
    // queue.
    let mut link = Link::new(fixed(u64::MAX, 0), 1000, Duration::from_micros(200));
    link.run(2 << 30, &[16 * KIB]);
    let outcome = link.run(1 << 30, &[16 * KIB]);
    assert!(outcome.latency > 100 * 200_000, "{outcome:?}");
}

#[test]
fn the_window_follows_a_link_that_becomes_slower_and_faster() {
    let target = 250_000;
    let mut link = Link::new(fixed(target, 4096), 2000, Duration::from_micros(200));
    let mut windows = Vec::new();
    for rate in [2000, 4000, 2000, 1000, 2000] {
        link.rate = rate;
        link.run(512 * MIB, &[16 * KIB]);
        let outcome = link.run(512 * MIB, &[16 * KIB]);
        assert!(outcome.used >= 97, "{rate}: {outcome:?}");
        assert!(outcome.latency <= target * 12 / 10, "{rate}: {outcome:?}");
        windows.push(outcome.window);
    }
    assert!(windows[1] > windows[0] * 3 / 2 && windows[3] < windows[2] * 2 / 3, "{windows:?}");
    assert!(windows[4].abs_diff(windows[0]) < windows[0] / 10, "{windows:?}");
}

#[test]
fn the_window_learns_the_latency_of_each_size() {
    // A request of 1 MiB takes a millisecond on the wire, ten times the latency of a 4 KiB request.
    let options = LatencyWindowOptions::default();
    let mut link = Link::new(options, 1000, Duration::from_micros(100));
    for sizes in [&[4 * KIB][..], &[MIB], &[4 * KIB, MIB, 64 * KIB]] {
        link.run(512 * MIB, sizes);
        let outcome = link.run(512 * MIB, sizes);
        assert!(outcome.used >= 85, "{sizes:?}: {outcome:?}");
        assert!(outcome.latency < 4_000_000, "{sizes:?}: {outcome:?}");
    }
}

#[test]
fn the_window_learns_the_latency_of_a_permanently_slower_path() {
    let mut link = Link::new(LatencyWindowOptions::default(), 1000, Duration::from_micros(100));
    link.run(64 * MIB, &[16 * KIB]);
    // Ten times the delay exceeds twice the old latency plus the slack.
    link.delay *= 10;
    link.run(256 * MIB, &[16 * KIB]);
    let outcome = link.run(256 * MIB, &[16 * KIB]);
    assert!(outcome.used >= 95, "{outcome:?}");
    assert!(outcome.latency < 3 * link.delay, "{outcome:?}");
}

#[test]
fn requests_longer_than_the_window_still_complete() {
    // No completion is ever quick enough.
    let mut link = Link::new(fixed(0, 0), 1000, Duration::from_micros(100));
    link.run(256 * MIB, &[MIB, 4 * KIB]);
    assert_eq!(link.policy.bytes(), LatencyWindowOptions::default().min);
}

fn policy(min: u64, max: u64, start: u64) -> LatencyWindow {
    LatencyWindow::new(LatencyWindowOptions { min, max, start, step: 16 * KIB, ..fixed(1000, 0) })
}

#[test]
fn the_window_grows_by_a_step_per_window_if_requests_waited() {
    let policy = policy(64 * KIB, MIB, 256 * KIB);
    let quick = |times| (0..times).for_each(|_| policy.on_complete(64 * KIB, Duration::from_nanos(1000)));
    quick(100);
    assert_eq!(policy.bytes(), 256 * KIB, "no request waited");
    assert!(!policy.admit(256 * KIB, 4 * KIB));
    quick(3);
    assert_eq!(policy.bytes(), 256 * KIB);
    quick(1);
    assert_eq!(policy.bytes(), 272 * KIB);
    quick(100);
    assert_eq!(policy.bytes(), 272 * KIB, "one refusal allows growth for one window only");
}

#[test]
fn after_five_steps_the_steps_are_larger_until_the_window_shrinks() {
    let policy = policy(64 * KIB, 64 * MIB, 64 * KIB);
    let mut round = |nanos| {
        let before = policy.bytes();
        policy.admit(u64::MAX, 4 * KIB);
        policy.on_complete(before, Duration::from_nanos(nanos));
        policy.bytes().checked_sub(before).map(|grown| grown / KIB)
    };
    assert_eq!([1000; 7].map(&mut round), [16, 16, 16, 16, 16, 80, 80].map(Some));
    assert_eq!(round(2000), None);
    assert_eq!(round(1000), Some(16));
}

#[test]
fn the_window_shrinks_by_the_excess_once_per_window() {
    let policy = policy(64 * KIB, 8 * MIB, 4 * MIB);
    let slow = |nanos| policy.on_complete(MIB, Duration::from_nanos(nanos));
    // The latency exceeds the target by a quarter of itself: the window shrinks by four fifths of a
    // quarter.
    slow(1333);
    let first = policy.bytes();
    assert_eq!(first, 4 * MIB - 4 * MIB * 4 / 5 * 333 / 1333);
    // Completions of requests posted before the cut do not shrink the window again.
    (0..3).for_each(|_| slow(100_000));
    assert_eq!(policy.bytes(), first);
    slow(100_000);
    assert_eq!(policy.bytes(), first - first / 2, "never by more than half");
}

/// Returns true if a completion shrinks a fresh window that has processed `before`.
fn shrinks(target: LatencyTarget, before: &[(u64, u64)], (bytes, nanos): (u64, u64)) -> bool {
    let policy = LatencyWindow::new(LatencyWindowOptions { target, ..LatencyWindowOptions::default() });
    before.iter().for_each(|&(bytes, nanos)| policy.on_complete(bytes, Duration::from_nanos(nanos)));
    assert_eq!(policy.bytes(), DEFAULT_WINDOW);
    policy.on_complete(bytes, Duration::from_nanos(nanos));
    policy.bytes() < DEFAULT_WINDOW
}

#[test]
fn targets_depend_on_the_size() {
    let nanos = Duration::from_nanos;
    let fixed = LatencyTarget::Fixed { base: nanos(1000), per_page: nanos(100) };
    for (bytes, target) in [(1, 1100), (4096, 1100), (4097, 1200), (10 * 4096, 2000)] {
        assert!(!shrinks(fixed, &[], (bytes, target)));
        assert!(shrinks(fixed, &[], (bytes, target + 1)));
    }
    let learned = LatencyTarget::Learned { slack: nanos(50) };
    let seen = [(4 * KIB, 1200), (4 * KIB, 1000), (64 * KIB, 100_000), (4 * KIB, 1100), (0, 1)];
    for (bytes, target) in [(4 * KIB, 2050), (8 * KIB - 1, 2050), (64 * KIB, 200_050)] {
        assert!(!shrinks(learned, &seen, (bytes, target)));
        assert!(shrinks(learned, &seen, (bytes, target + 1)));
    }
    assert!(!shrinks(learned, &seen, (MIB, 1_000_000_000)), "the first request of a size sets the minimum");
}

#[test]
fn inconsistent_bounds_are_corrected() {
    assert_eq!(policy(0, 0, MIB).bytes(), ADMISSION_PAGE);
    assert_eq!(policy(MIB, 0, 0).bytes(), MIB);
    assert_eq!(policy(0, MIB, u64::MAX).bytes(), MIB);
}

proptest! {
    #[test]
    fn the_window_stays_within_its_bounds_for_any_latency(
        min in prop_oneof![Just(0), 1..MIB, Just(u64::MAX)],
        max in any::<u64>(),
        start in any::<u64>(),
        step in any::<u64>(),
        target in prop_oneof![
            (any::<u64>(), any::<u64>()).prop_map(|(base, page)| LatencyTarget::Fixed {
                base: Duration::from_nanos(base),
                per_page: Duration::from_nanos(page),
            }),
            (0..1_000_000u64).prop_map(|slack| LatencyTarget::Learned { slack: Duration::from_nanos(slack) }),
        ],
        completions in prop::collection::vec(
            (prop_oneof![0..MIB, any::<u64>()], prop_oneof![0..10_000_000u64, any::<u64>()], any::<bool>()),
            0..300,
        ),
    ) {
        let policy = LatencyWindow::new(LatencyWindowOptions { min, max, start, step, target });
        let (min, max) = (policy.options.min, policy.options.max);
        prop_assert!(min >= ADMISSION_PAGE && min <= max);
        for (bytes, nanos, wait) in completions {
            if wait {
                policy.admit(u64::MAX, ADMISSION_PAGE);
            }
            policy.on_complete(bytes, Duration::from_nanos(nanos));
            let window = policy.bytes();
            prop_assert!((min..=max).contains(&window));
            prop_assert!(policy.admit(0, u64::MAX), "any request is admitted when nothing is in flight");
            prop_assert!(policy.admit(min - ADMISSION_PAGE.min(min), ADMISSION_PAGE), "the minimum always fits");
        }
    }
}
