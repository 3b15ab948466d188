use std::{collections::VecDeque, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::admission::Admission;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A link in virtual time: requests are sent one after the other, each arrives `delay` after its last byte has left. The
/// sender always has more, and posts whatever is admitted.
struct Link {
    policy: Arc<LatencyWindow>,
    admission: Admission,
    /// Bytes per microsecond.
    rate: u64,
    /// One way there and back again, in nanoseconds.
    delay: u64,
    now: u64,
    /// The link is busy until then.
    busy_until: u64,
    /// Done at, posted at, length.
    under_way: VecDeque<(u64, u64, u64)>,
}

/// What a run of the link came to.
#[derive(Debug)]
struct Outcome {
    /// Share of the link's bandwidth that was used, in percent.
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

    /// Runs until `total` bytes have completed. Sizes come in turn.
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
fn it_finds_what_the_link_holds() {
    // 1 and 10 GB/s, and delays whose product with it lies below, near and above the first window.
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
fn a_window_that_never_shrinks_would_not_pass_that() {
    // The same link with a target that is never reached: the queue is what the bound on latency finds.
    let mut link = Link::new(fixed(u64::MAX, 0), 1000, Duration::from_micros(200));
    link.run(2 << 30, &[16 * KIB]);
    let outcome = link.run(1 << 30, &[16 * KIB]);
    assert!(outcome.latency > 100 * 200_000, "{outcome:?}");
}

#[test]
fn it_follows_a_link_that_becomes_slower_and_faster() {
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
fn it_learns_what_requests_of_each_size_take() {
    // Of 1 MiB each takes a millisecond on the wire alone, ten times what one of 4 KiB takes in all.
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
fn a_path_that_is_slow_for_good_is_learnt_anew() {
    let mut link = Link::new(LatencyWindowOptions::default(), 1000, Duration::from_micros(100));
    link.run(64 * MIB, &[16 * KIB]);
    // Ten times as far: more than twice the old latency and the slack.
    link.delay *= 10;
    link.run(256 * MIB, &[16 * KIB]);
    let outcome = link.run(256 * MIB, &[16 * KIB]);
    assert!(outcome.used >= 95, "{outcome:?}");
    assert!(outcome.latency < 3 * link.delay, "{outcome:?}");
}

#[test]
fn requests_longer_than_the_window_still_move() {
    // Nothing is ever quick enough.
    let mut link = Link::new(fixed(0, 0), 1000, Duration::from_micros(100));
    link.run(256 * MIB, &[MIB, 4 * KIB]);
    assert_eq!(link.policy.bytes(), LatencyWindowOptions::default().min);
}

fn policy(min: u64, max: u64, start: u64) -> LatencyWindow {
    LatencyWindow::new(LatencyWindowOptions { min, max, start, step: 16 * KIB, ..fixed(1000, 0) })
}

#[test]
fn it_grows_by_a_step_per_windows_worth_if_requests_waited_for_it() {
    let policy = policy(64 * KIB, MIB, 256 * KIB);
    let quick = |times| (0..times).for_each(|_| policy.on_complete(64 * KIB, Duration::from_nanos(1000)));
    quick(100);
    assert_eq!(policy.bytes(), 256 * KIB, "nothing waited");
    assert!(!policy.admit(256 * KIB, 4 * KIB));
    quick(3);
    assert_eq!(policy.bytes(), 256 * KIB);
    quick(1);
    assert_eq!(policy.bytes(), 272 * KIB);
    quick(100);
    assert_eq!(policy.bytes(), 272 * KIB, "one refusal is no reason to grow for ever");
}

#[test]
fn after_five_steps_it_takes_larger_ones_until_it_shrinks() {
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
fn it_shrinks_by_the_excess_once_per_windows_worth() {
    let policy = policy(64 * KIB, 8 * MIB, 4 * MIB);
    let slow = |nanos| policy.on_complete(MIB, Duration::from_nanos(nanos));
    // A quarter of the latency is too much: four fifths of a quarter off.
    slow(1333);
    let first = policy.bytes();
    assert_eq!(first, 4 * MIB - 4 * MIB * 4 / 5 * 333 / 1333);
    // What was under way counts once.
    (0..3).for_each(|_| slow(100_000));
    assert_eq!(policy.bytes(), first);
    slow(100_000);
    assert_eq!(policy.bytes(), first - first / 2, "never by more than half");
}

/// True if a completion makes a fresh window shrink that has seen `before`.
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
    assert!(!shrinks(learned, &seen, (MIB, 1_000_000_000)), "the first of its size sets the measure");
}

#[test]
fn bounds_are_put_right() {
    assert_eq!(policy(0, 0, MIB).bytes(), ADMISSION_PAGE);
    assert_eq!(policy(MIB, 0, 0).bytes(), MIB);
    assert_eq!(policy(0, MIB, u64::MAX).bytes(), MIB);
}

proptest! {
    #[test]
    fn it_stays_within_its_bounds_whatever_it_measures(
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
            prop_assert!(policy.admit(0, u64::MAX), "with nothing in flight anything goes");
            prop_assert!(policy.admit(min - ADMISSION_PAGE.min(min), ADMISSION_PAGE), "the minimum always fits");
        }
    }
}
