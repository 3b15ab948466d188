//! A window that follows the measured latency of completions, by delay-based congestion control after TIMELY
//! (SIGCOMM 2015) and Swift (SIGCOMM 2020): [`LatencyWindow`] has the rule.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use super::{ADMISSION_PAGE, AdmissionPolicy, DEFAULT_WINDOW};

/// The latency up to which the window grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyTarget {
    /// `base + per_page * pages`, with the pages of 4 KiB that the request has begun.
    Fixed {
        /// For a request of no bytes, with the queueing that is acceptable.
        base: Duration,
        /// Added for each page.
        per_page: Duration,
    },
    /// Twice the least latency seen among requests of about the same size (the same power of two), plus `slack`. The
    /// factor leaves room for variation in long transfers, the slack in short ones.
    Learned {
        /// Queueing that is acceptable whatever the size.
        slack: Duration,
    },
}

/// Options of [`LatencyWindow`]. Inconsistent bounds are put right: `min` is a page at least, `max` is `min` at least,
/// and `start` lies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyWindowOptions {
    /// Smallest window in bytes.
    pub min: u64,
    /// Largest window in bytes.
    pub max: u64,
    /// First window in bytes.
    pub start: u64,
    /// Bytes that a window's worth of quick completions adds; five times as many after five times.
    pub step: u64,
    /// Where it is steered.
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

/// Windows' worth of completions at the minimum, all of them too slow, after which least latencies are learnt anew.
const STALE_AFTER: u64 = 16;

/// Steps in a row after which they become larger, and how much larger.
const HYPERACTIVE: u64 = 5;

/// A window that adapts to measured latency, after TIMELY (SIGCOMM 2015) and Swift (SIGCOMM 2020).
///
/// Bytes in flight beyond what the path holds (bandwidth times the latency of an unloaded request) wait in some queue,
/// of the card, of a socket or of the peer, and make latencies longer without making anything faster. So the window is
/// steered towards a latency, the target `T`. For a completion of latency `L`:
///
/// - `L <= T`: its bytes count towards growth. With each window's worth of them the window grows by a fixed step,
///   if it was what requests waited for: an idle session proves nothing about a larger window. After five steps in a
///   row the path has become wider, and steps are five times as large (TIMELY's hyperactive increase).
/// - `L > T`: the window `W` shrinks by `W * 4/5 * (L - T) / L`, by half at most. Then nothing shrinks it again before
///   `W` bytes have completed: they were under way when it was cut, and their latencies tell of the old window.
///
/// This is the window form of both papers' rule (`4/5` is TIMELY's beta, one cut per round trip and the bound are
/// Swift's), in integers. The RDMAbox paper names TIMELY as unfit for its kernel part because of its floating point
/// arithmetic; gradients, which are what it is needed for, are left out, as Swift does.
///
/// Longer requests take longer, hence the target depends on the size. [`LatencyTarget::Learned`] takes the least
/// latency seen for requests of about that size as that of an unloaded path. This goes stale when the path becomes
/// slower for good: every latency is then too long, and the window shrinks to its minimum. There, hardly anything
/// of the session's own is under way, so that what is measured is the path: if the latencies are still too long after
/// 16 windows' worth, the least ones are forgotten and learnt anew.
///
/// Memory of a mapped peer is copied by the post itself. A window changes little there, whatever decides its size.
#[derive(Debug)]
pub struct LatencyWindow {
    options: LatencyWindowOptions,
    window: AtomicU64,
    /// A request had to wait since growth was last looked at.
    refused: AtomicBool,
    state: Mutex<State>,
}

impl LatencyWindow {
    /// A window that begins at `options.start`.
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

    /// Its size at present, in bytes.
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
        // Looked at first: threads that are refused together need not fight for the line.
        if !fits && !self.refused.load(Ordering::Relaxed) {
            self.refused.store(true, Ordering::Relaxed);
        }
        fits
    }

    fn on_complete(&self, bytes: u64, latency: Duration) {
        if bytes == 0 {
            return;
        }
        // While another thread does this, its sample is good enough: a lost one delays a step and no more.
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

/// Size classes: powers of two.
const CLASSES: usize = 64;

/// What one completion after another teaches. Knows no atomics.
#[derive(Debug)]
struct State {
    /// Least nanoseconds by size class; `u64::MAX` where nothing was seen.
    least: [u64; CLASSES],
    /// Bytes of quick completions since the last step.
    quick: u64,
    /// Steps since the window last shrank.
    steps: u64,
    /// Bytes that may complete before it is too long ago that a request had to wait to let the window grow.
    limited: u64,
    /// Bytes to complete before the window may shrink again.
    hold: u64,
    /// Bytes of slow completions at the minimum, none of them quick.
    stuck: u64,
}

impl State {
    fn new() -> State {
        State { least: [u64::MAX; CLASSES], quick: 0, steps: 0, limited: 0, hold: 0, stuck: 0 }
    }

    /// The target for a request of `bytes` that took `nanos`, in nanoseconds.
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

    /// The window after a completion. `limited` says that a request has been refused since the one before.
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
