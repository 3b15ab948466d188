//! The verdict on a fault, and its line in the table.

use std::fmt;

use seeded_faults::Fault;

#[derive(Debug)]
enum Kind {
    Caught(String),
    Missed,
    Unknown(String),
}

/// The verdict on a fault.
#[derive(Debug)]
pub(crate) struct Verdict {
    fault: Fault,
    kind: Kind,
    seconds: u64,
}

impl Verdict {
    /// Returns a verdict: test `by` found the fault after `seconds`.
    pub(crate) fn caught(fault: Fault, by: String, seconds: u64) -> Verdict {
        Verdict { fault, kind: Kind::Caught(by), seconds }
    }

    /// Returns a verdict: all tests passed despite the fault.
    pub(crate) fn missed(fault: Fault, seconds: u64) -> Verdict {
        Verdict { fault, kind: Kind::Missed, seconds }
    }

    /// Returns a verdict: the tests could not decide. It does not count as caught.
    pub(crate) fn unknown(fault: Fault, why: String) -> Verdict {
        Verdict { fault, kind: Kind::Unknown(why), seconds: 0 }
    }

    /// Returns true if a test found the fault.
    pub(crate) fn is_caught(&self) -> bool {
        matches!(self.kind, Kind::Caught(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {:<26} | {:>4} | ", self.fault.name(), self.seconds)?;
        match &self.kind {
            Kind::Caught(by) => write!(f, "{by} |"),
            Kind::Missed => write!(f, "NOT CAUGHT: {} |", self.fault.what()),
            Kind::Unknown(why) => write!(f, "UNKNOWN: {why} |"),
        }
    }
}
