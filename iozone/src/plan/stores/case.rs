//! The cases of the plan, their requests, and the ratios that they have to reach. No I/O, no locks,
//! no clock.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::load::Pattern;

/// Files and clients that are measured together, over each number of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// One thread on one large file; links are limited.
    OneFile,
    /// Four mounts, with a thread and a file each; links are limited.
    Clients,
    /// Sixteen threads that read blocks of 4 KiB from one file; links are slower still, so that
    /// they are the limit.
    Blocks,
    /// One thread on one file, over loopback without limits.
    Loopback,
}

/// A requirement for a ratio of the rate of several stores to the rate of one store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// The rate is at least this many times that of one store.
    Rate(f64),
    /// The median latency is at most this many times that of one store.
    Latency(f64),
}

impl Case {
    /// All cases, in the order of measurement.
    pub const ALL: [Case; 4] = [Case::OneFile, Case::Clients, Case::Blocks, Case::Loopback];

    /// Returns the title in tables.
    pub fn title(self) -> &'static str {
        match self {
            Case::OneFile => "one file",
            Case::Clients => "4 mounts, a file each",
            Case::Blocks => "one file, 16 threads",
            Case::Loopback => "one file, no limits",
        }
    }

    /// Returns the number of mounts.
    pub fn mounts(self) -> u32 {
        match self {
            Case::Clients => 4,
            _ => 1,
        }
    }

    /// Returns the number of threads on each file.
    pub fn threads(self) -> u64 {
        match self {
            Case::Blocks => 16,
            _ => 1,
        }
    }

    /// Returns true if the links of the stores are limited.
    pub fn is_limited(self) -> bool {
        self != Case::Loopback
    }

    /// Returns the patterns that are measured, in order. The file is written before.
    pub fn patterns(self) -> &'static [Pattern] {
        use Pattern::{RandomRead, RandomRecordRead, RandomRecordWrite, Read, Write};
        match self {
            Case::OneFile | Case::Clients => &[Write, Read, RandomRecordRead, RandomRecordWrite],
            Case::Blocks => &[RandomRead],
            Case::Loopback => &[Write, Read, RandomRecordRead, RandomRecordWrite, RandomRead],
        }
    }

    /// Returns true if the case is measured over this number of stores.
    pub fn has(self, stores: u64) -> bool {
        stores <= 2 || matches!(self, Case::OneFile | Case::Clients | Case::Blocks)
    }

    /// Returns the requirement for a pattern over `stores` stores, if there is one.
    pub fn wanted(self, pattern: Pattern, stores: u64) -> Option<Wanted> {
        match (self, pattern, stores) {
            (Case::OneFile, _, 2) => Some(Wanted::Rate(1.9)),
            (Case::OneFile | Case::Clients, _, 4) => Some(Wanted::Rate(3.6)),
            (Case::Blocks, _, 2) => Some(Wanted::Rate(1.8)),
            (Case::Loopback, Pattern::RandomRead, 2) => Some(Wanted::Latency(1.05)),
            (Case::Loopback, _, 2) => Some(Wanted::Rate(0.8)),
            _ => None,
        }
    }
}

impl Wanted {
    /// Returns true if the ratio is as wanted.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Wanted::Rate(least) => ratio >= least,
            Wanted::Latency(most) => ratio <= most,
        }
    }

    /// Returns the text in tables.
    pub fn show(self) -> String {
        match self {
            Wanted::Rate(least) => format!(">= {least}x"),
            Wanted::Latency(most) => format!("p50 <= {most}x"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a requirement for a case that is not measured over that number of stores.
    #[test]
    fn each_requirement_has_a_measurement() {
        for case in Case::ALL {
            for pattern in case.patterns() {
                let wanted = [2, 4].map(|stores| case.wanted(*pattern, stores).is_some());
                assert!(wanted.contains(&true), "{case:?} {pattern:?}");
                assert!(case.has(4) || !wanted[1], "{case:?} {pattern:?}");
                assert_eq!(case.wanted(*pattern, 1), None);
            }
        }
    }

    #[test]
    fn a_rate_has_a_least_value_and_a_latency_a_greatest() {
        assert!(Wanted::Rate(1.9).is_met(1.9) && !Wanted::Rate(1.9).is_met(1.89));
        assert!(Wanted::Latency(1.05).is_met(0.9) && !Wanted::Latency(1.05).is_met(1.06));
    }
}
