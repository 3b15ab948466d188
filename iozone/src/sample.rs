//! Phases of a run and their throughput. Pure.

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
}

/// Throughput in KiB/s of the six phases, in the order of [`Phase::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample(pub [f64; 6]);

impl Sample {
    /// Throughput of one phase in KiB/s.
    pub fn kib_per_s(&self, phase: Phase) -> f64 {
        self.0[phase as usize]
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
