//! Batching: combines requests into work requests, and work requests into doorbells.
//!
//! [`plan()`] turns requests into work requests. [`OpenLanes`] says how many of them one lane
//! takes. [`InFlight`] holds the remote ranges of outstanding requests. Nothing here posts, copies,
//! waits, or allocates in steady state.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The thread that drains a merge queue owns its state and passes it
//! as `&mut`.

mod open_lanes;
mod overlap;
mod plan;

use std::{fmt, str::FromStr};

pub(crate) use open_lanes::{MIN_SHARE, OpenLanes};
pub(crate) use overlap::ranges_overlap;
pub(crate) use overlap::{InFlight, InFlightHandle};
pub(crate) use plan::{Item, Plan, PlanLimits, PlannedWr, part_addresses, plan};

/// Default limit of a merged work request in bytes. At this length the cost of a work request is
/// small against the cost of its data. A block of the preMR pool can still hold it, and the default
/// window still keeps all of the four queue pairs busy.
pub(crate) const DEFAULT_MAX_MERGE: u64 = 1 << 20;

/// How requests that wait together are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BatchMode {
    /// No combination: each request has its own work request and doorbell.
    Single,
    /// Requests that are adjacent in remote memory become one work request; each work request has
    /// its own doorbell.
    Merge,
    /// Each request has its own work request; lists of work requests share a doorbell.
    Doorbell,
    /// Adjacent requests become one work request, and lists of work requests share a doorbell.
    #[default]
    Hybrid,
}

impl BatchMode {
    /// All modes in the order of their definition.
    pub const ALL: &[BatchMode] =
        &[BatchMode::Single, BatchMode::Merge, BatchMode::Doorbell, BatchMode::Hybrid];

    /// Returns true if adjacent requests become one work request.
    pub(crate) fn merges(self) -> bool {
        matches!(self, BatchMode::Merge | BatchMode::Hybrid)
    }

    /// Returns true if several work requests share a doorbell.
    pub(crate) fn chains(self) -> bool {
        matches!(self, BatchMode::Doorbell | BatchMode::Hybrid)
    }

    fn name(self) -> &'static str {
        match self {
            BatchMode::Single => "single",
            BatchMode::Merge => "merge",
            BatchMode::Doorbell => "doorbell",
            BatchMode::Hybrid => "hybrid",
        }
    }
}

impl fmt::Display for BatchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BatchMode {
    type Err = BatchModeError;

    fn from_str(text: &str) -> Result<Self, BatchModeError> {
        let found = BatchMode::ALL.iter().copied().find(|mode| mode.name() == text);
        found.ok_or_else(|| BatchModeError(text.to_owned()))
    }
}

/// Error of a string that names no [`BatchMode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a batching mode: expected single, merge, doorbell or hybrid")]
pub struct BatchModeError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_names_round_trip() {
        for &mode in BatchMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Hybrid".parse::<BatchMode>().is_err());
        assert!("".parse::<BatchMode>().is_err());
    }
}
