//! Batching: which requests become one work request, and which work requests go out with one doorbell.
//!
//! Pure logic: [`plan()`] turns requests into work requests, [`InFlight`] knows the ranges that are under way.
//! Everything here takes `&mut` where it keeps state; whoever drains a merge queue owns it. Nothing here posts,
//! copies or waits, and in steady state nothing allocates.

mod overlap;
mod plan;

use std::{fmt, str::FromStr};

pub(crate) use overlap::ranges_overlap;
pub use overlap::{InFlight, InFlightHandle};
pub use plan::{Item, Plan, PlanLimits, PlannedWr, plan};

/// How requests that are waiting together are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum BatchMode {
    /// Not at all: one work request and one doorbell each.
    Single,
    /// Runs that are adjacent in remote memory become one work request; each has its own doorbell.
    Merge,
    /// A work request each, linked into lists that cost one doorbell.
    Doorbell,
    /// Adjacent runs merge, and what remains is linked into lists that cost one doorbell.
    #[default]
    Hybrid,
}

impl BatchMode {
    /// All of them, in the order of the definition.
    pub const ALL: [BatchMode; 4] =
        [BatchMode::Single, BatchMode::Merge, BatchMode::Doorbell, BatchMode::Hybrid];

    /// True if adjacent requests become one work request.
    pub fn merges(self) -> bool {
        matches!(self, BatchMode::Merge | BatchMode::Hybrid)
    }

    /// True if several work requests go out with one doorbell.
    pub fn chains(self) -> bool {
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        BatchMode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("{text:?} is no batching mode: write single, merge, doorbell or hybrid"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in BatchMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Hybrid".parse::<BatchMode>().is_err());
        assert!("".parse::<BatchMode>().is_err());
    }
}
