//! The measured values: throughput of phases, latencies of requests. No I/O, no locks, no clock.

pub use measure::statistics::{median, ratio, spread};
use serde::{Deserialize, Serialize};

/// The phases that IOzone measures with `-i 0 -i 1 -i 2`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Sequential write of a new file.
    Write,
    /// Sequential write of the same file.
    Rewrite,
    /// Sequential read.
    Read,
    /// Sequential read once more.
    Reread,
    /// Read of every record once, in random order.
    RandomRead,
    /// Write of every record once, in random order.
    RandomWrite,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 6] =
        [Self::Write, Self::Rewrite, Self::Read, Self::Reread, Self::RandomRead, Self::RandomWrite];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random read",
            Self::RandomWrite => "random write",
        }
    }

    /// Returns true if the phase reads.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Reread | Self::RandomRead)
    }

    /// Returns the name in tables, with the mark of [`PAGE_CACHE_NOTE`] if the page cache answers
    /// the reads.
    pub fn heading(self, keeps_pages: bool) -> String {
        let mark = if keeps_pages && self.reads() { "*" } else { "" };
        format!("{}{mark}", self.name())
    }
}

/// Explanation of the mark of columns that measure the kernel's page cache.
pub const PAGE_CACHE_NOTE: &str =
    "* page cache hits: the kernel answers from pages that it keeps; no file system is asked, but for sshfs";

/// Throughput in KiB/s of the six phases, in the order of [`Phase::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample(pub [f64; 6]);

impl Sample {
    /// Returns the throughput of one phase in KiB/s.
    pub fn kib_per_s(&self, phase: Phase) -> f64 {
        self.0[phase as usize]
    }
}

/// Latencies of requests, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Latency {
    /// Returns the median of each value; `None` for an empty slice.
    pub fn median(of: &[Self]) -> Option<Self> {
        let number = |number: fn(&Self) -> f64| median(&of.iter().map(number).collect::<Vec<_>>());
        Some(Self { p50: number(|l| l.p50)?, p99: number(|l| l.p99)?, p999: number(|l| l.p999)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_index_their_sample() {
        let sample = Sample([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let values: Vec<f64> = Phase::ALL.iter().map(|p| sample.kib_per_s(*p)).collect();
        assert_eq!(values, sample.0);
    }
}
