//! Phases of a run, their throughput, and medians over rounds. Pure.

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

/// The median; the mean of the middle two if there are two. `None` for no values or values that are not
/// numbers.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 })
}

/// `(largest - smallest) / median`: how far the rounds lie apart. Zero for a single value.
pub fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    (middle > 0.0).then(|| (max - min) / middle)
}

/// `a / b`, where that is a number.
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0 && a.is_finite()).then(|| a / b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN]), None);
        assert_eq!(median(&[5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn spreads_and_ratios() {
        assert_eq!(spread(&[7.0]), Some(0.0));
        assert_eq!(spread(&[8.0, 10.0, 12.0]), Some(0.4));
        assert_eq!(spread(&[0.0]), None);
        assert_eq!(ratio(1.0, 2.0), Some(0.5));
        assert_eq!(ratio(1.0, 0.0), None);
    }

    #[test]
    fn phases_index_their_sample() {
        let sample = Sample([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let values: Vec<f64> = Phase::ALL.iter().map(|p| sample.kib_per_s(*p)).collect();
        assert_eq!(values, sample.0);
    }
}
