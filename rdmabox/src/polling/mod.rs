//! Polling: decides when to poll a completion queue again, when to arm it, and when to sleep.
//!
//! `Poller` is a state machine. The polling loop passes it the result of each poll and executes
//! the step that it returns. The order arm, poll once more, sleep is built in, so no mode can
//! lose a completion.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The thread that polls a queue owns its poller.

mod poller;
mod retry;
mod spin;

use std::{fmt, str::FromStr};

pub(crate) use poller::{Poller, Step};
pub(crate) use retry::Retry;
pub(crate) use spin::Spin;

/// Polls without a completion before adaptive polling sleeps (`MAX_RETRY` of the paper).
pub(crate) const DEFAULT_MAX_RETRY: u32 = 120;

/// How a thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PollingMode {
    /// Polls forever.
    Busy,
    /// Sleeps after each completion: one completion per event.
    Event,
    /// Takes up to one batch of completions per event, then waits for the next event even if
    /// completions are left.
    EventBatch,
    /// Waits for an event, then polls batches until a poll finds nothing.
    Hybrid,
    /// Like `Hybrid`, but repeats a poll that finds nothing up to MAX_RETRY times.
    #[default]
    Adaptive,
    /// SCQ(M) of the paper: all queue pairs share M completion queues, each polled forever by its
    /// own thread. Zero counts as one.
    SharedCq(u8),
}

/// Name of [`PollingMode::SharedCq`], optionally followed by a colon and a number.
const SHARED_CQ: &str = "shared-cq";

impl PollingMode {
    /// All modes in the order of their definition, with one shared queue.
    pub const ALL: &[PollingMode] = &[
        PollingMode::Busy,
        PollingMode::Event,
        PollingMode::EventBatch,
        PollingMode::Hybrid,
        PollingMode::Adaptive,
        PollingMode::SharedCq(1),
    ];

    /// Returns the number of shared completion queues with polling threads. Returns `None` if each
    /// queue pair has its own queue, which the waiting thread polls.
    pub fn shared_queues(self) -> Option<usize> {
        match self {
            PollingMode::SharedCq(queues) => Some(usize::from(queues.max(1))),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            PollingMode::Busy => "busy",
            PollingMode::Event => "event",
            PollingMode::EventBatch => "event-batch",
            PollingMode::Hybrid => "hybrid",
            PollingMode::Adaptive => "adaptive",
            PollingMode::SharedCq(_) => SHARED_CQ,
        }
    }
}

impl fmt::Display for PollingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shared_queues() {
            Some(queues) => f.pad(&format!("{SHARED_CQ}:{queues}")),
            None => f.pad(self.name()),
        }
    }
}

impl FromStr for PollingMode {
    type Err = PollingModeError;

    fn from_str(text: &str) -> Result<Self, PollingModeError> {
        if let Some(queues) = text.strip_prefix(SHARED_CQ).and_then(|rest| rest.strip_prefix(':')) {
            return match queues.parse() {
                // `parse` would also accept a plus sign.
                Ok(count @ 1..) if !queues.starts_with('+') => Ok(PollingMode::SharedCq(count)),
                _ => Err(PollingModeError(format!(
                    "{queues:?} is not a number of shared completion queues: expected 1 to {}",
                    u8::MAX
                ))),
            };
        }
        PollingMode::ALL.iter().copied().find(|mode| mode.name() == text).ok_or_else(|| {
            PollingModeError(format!(
                "{text:?} is not a polling mode: expected busy, event, event-batch, hybrid, adaptive or shared-cq:M"
            ))
        })
    }
}

/// Error of a string that names no [`PollingMode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PollingModeError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_names_round_trip() {
        for mode in
            PollingMode::ALL.iter().copied().chain([PollingMode::SharedCq(4), PollingMode::SharedCq(255)])
        {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("eventbatch".parse::<PollingMode>().is_err());
    }

    #[test]
    fn shared_queues_have_a_number() {
        assert_eq!("shared-cq".parse(), Ok(PollingMode::SharedCq(1)));
        assert_eq!("shared-cq:12".parse(), Ok(PollingMode::SharedCq(12)));
        for text in [
            "shared-cq:",
            "shared-cq:0",
            "shared-cq:256",
            "shared-cq:+1",
            "shared-cq:-1",
            "shared-cq: 1",
            "shared-cq1",
        ] {
            assert!(text.parse::<PollingMode>().is_err(), "{text}");
        }
        assert_eq!(format!("{:>12}|", PollingMode::SharedCq(3)), " shared-cq:3|");
        assert_eq!(PollingMode::SharedCq(0).shared_queues(), Some(1));
        assert_eq!(PollingMode::SharedCq(0).to_string(), "shared-cq:1");
        assert_eq!(PollingMode::Busy.shared_queues(), None);
    }
}
