//! Polling: when to look at a completion queue again, when to arm it, and when to sleep.
//!
//! [`Poller`] is a state machine without I/O; whoever polls a queue owns one. It calls nothing and knows no clock:
//! it is told what a poll found and answers what to do next. The order arm, poll once more, sleep is built into it,
//! so that no mode can leave a completion behind.

mod poller;
mod retry;
mod spin;

use std::{fmt, str::FromStr};

pub use poller::{Poller, Step};
pub use retry::Retry;
pub(crate) use spin::Spin;

/// Polls that find nothing before adaptive polling goes to sleep (`MAX_RETRY` of the paper).
pub const DEFAULT_MAX_RETRY: u32 = 120;

/// Completions taken per poll, and per event in [`PollingMode::EventBatch`].
pub const DEFAULT_BATCH: usize = 16;

/// How completions are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PollingMode {
    /// Polls for ever.
    Busy,
    /// Sleeps after each completion: one completion per event.
    Event,
    /// Takes up to a batch of completions per event, then goes back to events whatever is left.
    EventBatch,
    /// An event starts it; polls batches until a poll finds nothing.
    Hybrid,
    /// As hybrid, but a poll that finds nothing is tried again up to MAX_RETRY times.
    #[default]
    Adaptive,
    /// SCQ(M) of the paper: so many completion queues that all queue pairs share, with a thread each that polls for
    /// ever. Zero counts as one.
    SharedCq(u8),
}

/// The name of [`PollingMode::SharedCq`]; a colon and a number may follow.
const SHARED_CQ: &str = "shared-cq";

impl PollingMode {
    /// All of them, in the order of the definition; one shared queue.
    pub const ALL: [PollingMode; 6] = [
        PollingMode::Busy,
        PollingMode::Event,
        PollingMode::EventBatch,
        PollingMode::Hybrid,
        PollingMode::Adaptive,
        PollingMode::SharedCq(1),
    ];

    /// Shared completion queues, each with a polling thread; None where every queue pair has its own and who waits
    /// polls.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(queues) = text.strip_prefix(SHARED_CQ).and_then(|rest| rest.strip_prefix(':')) {
            return match queues.parse() {
                // Parsing would take a plus sign, too.
                Ok(count @ 1..) if !queues.starts_with('+') => Ok(PollingMode::SharedCq(count)),
                _ => Err(format!(
                    "{queues:?} is no number of shared completion queues: write 1 to {}",
                    u8::MAX
                )),
            };
        }
        PollingMode::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            format!(
                "{text:?} is no polling mode: write busy, event, event-batch, hybrid, adaptive or shared-cq:M"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in PollingMode::ALL.into_iter().chain([PollingMode::SharedCq(4), PollingMode::SharedCq(255)])
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
