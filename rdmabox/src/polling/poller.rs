//! The state machine behind every polling mode.
//!
//! Owned by one thread at a time. It does not touch a completion queue: the loop around it does.

use super::{PollingMode, Retry, retry::Budget};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Poll again.
    Poll,
    /// Arm the completion queue, then poll again.
    Arm,
    /// Wait for the completion queue's event, call [`Poller::after_wake`], then poll again.
    Sleep,
}

/// Decides between polling, arming and sleeping.
///
/// ```
/// # use rdmabox::polling::{Poller, PollingMode, Step};
/// # fn arm() {}
/// # let mut arrivals = [0, 3, 0, 0].into_iter();
/// # let mut poll = |_batch: usize| arrivals.next().unwrap_or(0);
/// let mut poller = Poller::new(PollingMode::Hybrid, 120, 16);
/// loop {
///     let found = poll(poller.batch_size());
///     match poller.after_poll(found) {
///         Step::Poll => {}
///         Step::Arm => arm(),
///         Step::Sleep => break, // wait, then poller.after_wake()
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Poller {
    mode: PollingMode,
    budget: Budget,
    batch: usize,
    /// Polls since the last completion that found nothing and were tried again.
    retries: u32,
    /// The last step was to arm: a poll that finds nothing now may be followed by sleep.
    armed: bool,
}

impl Poller {
    /// A poller that begins by polling. `retry` matters in adaptive mode only: there a maximum of 0 is event mode, and
    /// one of `u32::MAX` is busy polling. `batch` is the most completions per poll; zero counts as one.
    pub fn new(mode: PollingMode, retry: impl Into<Retry>, batch: usize) -> Poller {
        let retry = retry.into();
        let mode = match (mode, retry.max()) {
            (PollingMode::Adaptive, 0) => PollingMode::Event,
            (PollingMode::Adaptive, u32::MAX) => PollingMode::Busy,
            _ => mode,
        };
        let batch = if mode == PollingMode::Event { 1 } else { batch.max(1) };
        Poller { mode, budget: Budget::new(retry), batch, retries: 0, armed: false }
    }

    /// Most completions to take with the next poll.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// What to do after a poll that took `found` completions. A budget that adapts learns from every poll that it is told
    /// of: it should hear of the last one of a wait, too.
    pub fn after_poll(&mut self, found: usize) -> Step {
        let armed = std::mem::take(&mut self.armed);
        // Completions from before the arming give no event: only an empty queue after it allows sleep.
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
                // The poll that led to the arming was one more.
                self.budget.paid(self.retries.saturating_add(u32::from(armed)));
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

    /// Polls without a completion that adaptive polling tries again at present, not counting occasional probes.
    pub fn budget(&self) -> u32 {
        self.budget.current()
    }

    /// To be called when a wait returned, for whatever reason, and when a new wait for completions begins.
    pub fn after_wake(&mut self) {
        self.retries = 0;
        self.armed = false;
    }
}

#[cfg(test)]
mod tests;
