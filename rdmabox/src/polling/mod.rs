//! Polling: when to look at a completion queue again, when to arm it, and when to sleep.
//!
//! [`Poller`] is a state machine without I/O; whoever polls a queue owns one. It calls nothing and knows no clock:
//! it is told what a poll found and answers what to do next. The order arm, poll once more, sleep is built into it,
//! so that no mode can leave a completion behind.

mod poller;

use std::{fmt, str::FromStr};

pub use poller::{Poller, Step};

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
}

impl PollingMode {
    /// All of them, in the order of the definition.
    pub const ALL: [PollingMode; 5] = [
        PollingMode::Busy,
        PollingMode::Event,
        PollingMode::EventBatch,
        PollingMode::Hybrid,
        PollingMode::Adaptive,
    ];

    fn name(self) -> &'static str {
        match self {
            PollingMode::Busy => "busy",
            PollingMode::Event => "event",
            PollingMode::EventBatch => "event-batch",
            PollingMode::Hybrid => "hybrid",
            PollingMode::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for PollingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PollingMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        PollingMode::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            format!("{text:?} is no polling mode: write busy, event, event-batch, hybrid or adaptive")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in PollingMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("eventbatch".parse::<PollingMode>().is_err());
    }
}
