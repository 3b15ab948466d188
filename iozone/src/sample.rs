//! What is measured: phases of a run with their throughput, latencies of requests. Pure.

pub use measure::statistics::{median, ratio, spread};
use serde::{Deserialize, Serialize};

/// What IOzone measures with `-i 0 -i 1 -i 2`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A new file, front to back.
    Write,
    /// The same file again, front to back.
    Rewrite,
    /// The file, front to back.
    Read,
    /// Once more.
    Reread,
    /// Every record once, in random order.
    RandomRead,
    /// Every record once, in random order.
    RandomWrite,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Write, Self::Rewrite, Self::Read, Self::Reread, Self::RandomRead, Self::RandomWrite];

    /// The name in tables.
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

    /// Returns whether the phase reads.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Reread | Self::RandomRead)
    }

    /// Returns its name in tables, with the mark of [`PAGE_CACHE_NOTE`] if the kernel answers it from pages.
    pub fn heading(self, keeps_pages: bool) -> String {
        let mark = if keeps_pages && self.reads() { "*" } else { "" };
        format!("{}{mark}", self.name())
    }
}

/// Explains the mark of columns whose figures are those of the kernel's page cache.
pub const PAGE_CACHE_NOTE: &str =
    "* page cache hits: the kernel answers from pages that it keeps; no file system is asked, but for sshfs";

/// Throughput in KiB/s of the six phases, in the order of [`Phase::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample(pub [f64; 6]);

impl Sample {
    /// Throughput of one phase in KiB/s.
    pub fn kib_per_s(&self, phase: Phase) -> f64 {
        self.0[phase as usize]
    }
}

/// Latencies of requests, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of them take no longer.
    pub p50: f64,
    /// All but one of a hundred.
    pub p99: f64,
    /// All but one of a thousand.
    pub p999: f64,
}

impl Latency {
    /// Number by number; `None` without any.
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
