//! The state machine of all polling modes.
//!
//! [`Poller`] never accesses a completion queue; the polling loop does.
//!
//! # Concurrency
//! No I/O, no locks, no clock. One thread at a time owns a poller.

use super::{PollingMode, Retry, retry::Budget};

/// Next step of a polling loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Poll again.
    Poll,
    /// Arm the completion queue, then poll again.
    Arm,
    /// Wait for the completion queue's event, call [`Poller::after_wake`], then poll again.
    Sleep,
}

/// Decides between polling, arming and sleeping.
///
/// A loop polls up to [`batch_size`](Poller::batch_size) completions, passes their number to
/// [`after_poll`](Poller::after_poll), and executes the step that it returns.
#[derive(Clone, Debug)]
pub(crate) struct Poller {
    mode: PollingMode,
    budget: Budget,
    batch: usize,
    /// Empty polls since the last completion that were followed by another poll.
    retries: u32,
    /// True if the last step was to arm, so that an empty poll may be followed by sleep.
    armed: bool,
}

impl Poller {
    /// Creates a poller that starts by polling. `retry` applies to adaptive mode only: a maximum of
    /// 0 means event mode, `u32::MAX` means busy polling. `batch` is the maximum number of
    /// completions per poll; zero counts as one.
    pub(crate) fn new(mode: PollingMode, retry: impl Into<Retry>, batch: usize) -> Poller {
        let retry = retry.into();
        let mode = match (mode, retry.max()) {
            (PollingMode::Adaptive, 0) => PollingMode::Event,
            (PollingMode::Adaptive, u32::MAX) => PollingMode::Busy,
            _ => mode,
        };
        let batch = if mode == PollingMode::Event { 1 } else { batch.max(1) };
        Poller { mode, budget: Budget::new(retry), batch, retries: 0, armed: false }
    }

    /// Returns the maximum number of completions for the next poll.
    pub(crate) fn batch_size(&self) -> usize {
        self.batch
    }

    /// Returns the step after a poll that took `found` completions. An adaptive budget learns from
    /// every poll, so callers report also the last poll of a wait.
    pub(crate) fn after_poll(&mut self, found: usize) -> Step {
        let armed = std::mem::take(&mut self.armed);
        // Completions before the arming cause no event, so only an empty poll after it allows
        // sleep.
        if armed && found == 0 {
            if self.mode == PollingMode::Adaptive {
                self.budget.slept();
            }
            return Step::Sleep;
        }
        let again = match self.mode {
            PollingMode::Busy | PollingMode::SharedCq(_) => true,
            PollingMode::Event | PollingMode::EventBatch => false,
            PollingMode::Hybrid => found > 0,
            PollingMode::Adaptive if found > 0 => {
                // Counts the empty poll that led to the arming.
                self.budget.completed(self.retries.saturating_add(u32::from(armed)));
                self.retries = 0;
                true
            }
            PollingMode::Adaptive => {
                let retry = self.retries < self.budget.limit();
                self.retries += u32::from(retry);
                retry
            }
        };
        if again {
            return Step::Poll;
        }
        self.armed = true;
        Step::Arm
    }

    /// Returns the current budget of empty polls in adaptive mode, not counting probes.
    #[cfg(test)]
    pub(crate) fn budget(&self) -> u32 {
        self.budget.current()
    }

    /// Starts a new wait. Callers call it after every return of a wait and before a new wait.
    pub(crate) fn after_wake(&mut self) {
        self.retries = 0;
        self.armed = false;
    }
}

#[cfg(test)]
mod tests;
