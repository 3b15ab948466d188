//! An admission window that adapts to the measured latency of completions.
//!
//! [`LatencyWindow`] applies delay-based congestion control after TIMELY (SIGCOMM 2015) and Swift
//! (SIGCOMM 2020).
//!
//! # Concurrency
//! Any thread may call it. `admit` reads atomics only. `on_complete` takes `state` with
//! `try_lock` and drops its sample if the lock is taken.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use super::{ADMISSION_PAGE, AdmissionPolicy, DEFAULT_WINDOW};

/// Latency up to which the window grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LatencyTarget {
    /// `base + per_page * pages`, where `pages` is the number of 4 KiB pages of the request,
    /// rounded up.
    Fixed {
        /// Latency of an empty request, including acceptable queueing.
        base: Duration,
        /// Additional latency per page.
        per_page: Duration,
    },
    /// Twice the minimum latency of requests of similar size (the same power of two), plus `slack`.
    /// The factor covers variation in long transfers, the slack variation in short transfers.
    Learned {
        /// Acceptable queueing for any size.
        slack: Duration,
    },
}

/// Options of [`LatencyWindow`]. Inconsistent bounds are corrected: `min` to at least one page,
/// `max` to at least `min`, and `start` into the range between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyWindowOptions {
    /// Minimum window in bytes. Default: 64 KiB.
    pub min: u64,
    /// Maximum window in bytes. Default: 64 MiB.
    pub max: u64,
    /// Initial window in bytes. Default: 7 MiB.
    pub start: u64,
    /// Bytes by which one window of quick completions increases the window; five times as many
    /// after five consecutive increases. Default: 16 KiB.
    pub step: u64,
    /// Target latency. Default: [`LatencyTarget::Learned`] with a slack of 100 µs.
    pub target: LatencyTarget,
}

impl Default for LatencyWindowOptions {
    fn default() -> Self {
        LatencyWindowOptions {
            min: 64 << 10,
            max: 64 << 20,
            start: DEFAULT_WINDOW,
            step: 16 << 10,
            target: LatencyTarget::Learned { slack: Duration::from_micros(100) },
        }
    }
}

/// Number of windows of slow completions at the minimum size after which the minimum latencies
/// are forgotten.
const STALE_AFTER: u64 = 16;

/// Number of consecutive increases after which the increases grow, and the factor by which they
/// grow.
const HYPERACTIVE: u64 = 5;

/// A window that adapts to measured latency, after TIMELY (SIGCOMM 2015) and Swift (SIGCOMM
/// 2020).
///
/// A path holds the product of its bandwidth and its unloaded latency. Further bytes wait in a
/// queue of the card, a socket or the peer, which increases latency but not throughput. So the
/// window is controlled by a target latency `T`. For a completion of latency `L`:
///
/// - `L <= T`: its bytes count towards growth. Each full window of such bytes increases the
///   window by a fixed step, provided that requests were waiting for the window. After five
///   consecutive steps the path has become wider, and the steps are five times as large (TIMELY's
///   hyperactive increase).
/// - `L > T`: the window `W` shrinks by `W * 4/5 * (L - T) / L`, by half at most. It does not
///   shrink again before `W` more bytes have completed, because requests posted before the cut
///   measure the old window.
///
/// This is the window form of both papers' rule in integers: `4/5` is TIMELY's beta; the bound
/// and the single cut per round trip are Swift's. Latency gradients are left out, as in Swift.
///
/// Longer requests take longer, so the target depends on the size. [`LatencyTarget::Learned`]
/// uses the minimum latency per size as the latency of the unloaded path. This value is too small
/// after the path becomes permanently slower: every completion is then late, and the window
/// shrinks to its minimum. At the minimum the session causes almost no queueing, so it measures
/// the path itself. If completions are still late after 16 windows, the minimum latencies are
/// measured again.
///
/// On a mapped peer the post itself copies the memory, so the window has little effect.
#[derive(Debug)]
pub struct LatencyWindow {
    options: LatencyWindowOptions,
    window: AtomicU64,
    /// True if a request was refused since the last completion.
    refused: AtomicBool,
    state: Mutex<State>,
}

impl LatencyWindow {
    /// Creates a window of `options.start` bytes.
    pub fn new(options: LatencyWindowOptions) -> LatencyWindow {
        let min = options.min.max(ADMISSION_PAGE);
        let max = options.max.max(min);
        let options = LatencyWindowOptions { min, max, start: options.start.clamp(min, max), ..options };
        LatencyWindow {
            options,
            window: AtomicU64::new(options.start),
            refused: AtomicBool::new(false),
            state: Mutex::new(State::new()),
        }
    }

    /// Returns the current size in bytes.
    pub fn bytes(&self) -> u64 {
        self.window.load(Ordering::Relaxed)
    }
}

impl Default for LatencyWindow {
    fn default() -> Self {
        LatencyWindow::new(LatencyWindowOptions::default())
    }
}

impl AdmissionPolicy for LatencyWindow {
    fn admit(&self, in_flight_bytes: u64, request_bytes: u64) -> bool {
        let fits = in_flight_bytes == 0
            || in_flight_bytes.checked_add(request_bytes).is_some_and(|total| total <= self.bytes());
        // The load comes first, so that refused threads do not compete for the cache line.
        if !fits && !self.refused.load(Ordering::Relaxed) {
            self.refused.store(true, Ordering::Relaxed);
        }
        fits
    }

    fn window(&self) -> u64 {
        self.bytes()
    }

    fn on_complete(&self, bytes: u64, latency: Duration) {
        if bytes == 0 {
            return;
        }
        // If another thread holds the lock, its sample suffices: a lost sample only delays a step.
        let Some(mut state) = self.state.try_lock() else { return };
        let window = self.bytes();
        let limited = self.refused.load(Ordering::Relaxed);
        if limited {
            self.refused.store(false, Ordering::Relaxed);
        }
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let next = state.completed(&self.options, window, bytes, nanos, limited);
        if next != window {
            self.window.store(next, Ordering::Relaxed);
        }
    }
}

/// Number of size classes, which are powers of two.
const CLASSES: usize = 64;

/// State of the control loop, updated by each completion under the lock.
#[derive(Debug)]
struct State {
    /// Minimum latency in nanoseconds by size class; `u64::MAX` before the first sample.
    least: [u64; CLASSES],
    /// Bytes of quick completions since the last increase.
    quick: u64,
    /// Increases since the window last shrank.
    steps: u64,
    /// Bytes that may still complete before the last refusal no longer allows the window to grow.
    limited: u64,
    /// Bytes that must complete before the window may shrink again.
    hold: u64,
    /// Bytes of slow completions at the minimum size since the last quick completion.
    stuck: u64,
}

impl State {
    fn new() -> State {
        State { least: [u64::MAX; CLASSES], quick: 0, steps: 0, limited: 0, hold: 0, stuck: 0 }
    }

    /// Returns the target in nanoseconds for a request of `bytes` that took `nanos`, and records
    /// the latency.
    fn target(&mut self, target: LatencyTarget, bytes: u64, nanos: u64) -> u64 {
        let in_nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        match target {
            LatencyTarget::Fixed { base, per_page } => {
                let pages = bytes.div_ceil(ADMISSION_PAGE);
                in_nanos(base).saturating_add(in_nanos(per_page).saturating_mul(pages))
            }
            LatencyTarget::Learned { slack } => {
                let least = &mut self.least[bytes.max(1).ilog2() as usize];
                *least = (*least).min(nanos);
                least.saturating_mul(2).saturating_add(in_nanos(slack))
            }
        }
    }

    /// Returns the window after a completion. `limited` says that a request was refused since the
    /// previous completion.
    fn completed(
        &mut self,
        options: &LatencyWindowOptions,
        window: u64,
        bytes: u64,
        nanos: u64,
        limited: bool,
    ) -> u64 {
        self.limited = if limited { window } else { self.limited.saturating_sub(bytes) };
        self.hold = self.hold.saturating_sub(bytes);
        let target = self.target(options.target, bytes, nanos);
        if nanos <= target {
            self.stuck = 0;
            if self.limited == 0 {
                return window;
            }
            self.quick = self.quick.saturating_add(bytes);
            if self.quick < window {
                return window;
            }
            self.quick = 0;
            let factor = if self.steps < HYPERACTIVE { 1 } else { HYPERACTIVE };
            self.steps += 1;
            return window.saturating_add(options.step.saturating_mul(factor)).min(options.max);
        }
        if window == options.min {
            self.stuck = self.stuck.saturating_add(bytes);
            if self.stuck / STALE_AFTER >= window {
                self.least.fill(u64::MAX);
                self.stuck = 0;
            }
            return window;
        }
        if self.hold != 0 {
            return window;
        }
        self.hold = window;
        self.quick = 0;
        self.steps = 0;
        let excess = u128::from(window) * 4 / 5 * u128::from(nanos - target) / u128::from(nanos);
        let cut = u64::try_from(excess).unwrap_or(u64::MAX).min(window / 2);
        (window - cut).max(options.min)
    }
}

#[cfg(test)]
mod tests;
