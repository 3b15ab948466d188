//! Detects points where a larger load has a lower rate. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

use super::{report::Curve, series::Series};
use crate::{
    load::Pattern,
    report::{REFERENCE, TargetInfo},
    sample::ratio,
};

/// Required minimum of the rate, relative to the best rate at a smaller load.
pub const MIN_RATIO: f64 = 0.8;

/// The point of a curve with the lowest rate relative to the best rate at a smaller load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Series in which more load gave less.
    pub series: Series,
    /// Pattern of the requests in it.
    pub pattern: Pattern,
    /// Name of the target.
    pub target: String,
    /// The load of the point.
    pub load: u64,
    /// The rate of the point.
    pub rate: f64,
    /// The smaller load with the highest rate.
    pub peak_load: u64,
    /// The rate at `peak_load`.
    pub peak: f64,
    /// Rate of this load, divided by the highest rate of the series.
    pub ratio: f64,
    /// The ratio of the null file system at the same two loads.
    pub null: Option<f64>,
    /// True if the ratio is at least [`MIN_RATIO`].
    pub met: bool,
}

impl Verdict {
    /// Returns one line about the point.
    pub fn describe(&self) -> String {
        format!(
            "{}, {}, {}: {:.2} at {} of what {} gave",
            self.series.name(),
            self.pattern.name(),
            self.target,
            self.ratio,
            self.series.show(self.load),
            self.series.show(self.peak_load)
        )
    }
}

/// Returns a verdict for each curve that has two points and is not of a ceiling.
pub fn judge(curves: &[Curve], targets: &[TargetInfo]) -> Vec<Verdict> {
    let is_ceiling = |name: &str| targets.iter().any(|info| info.name == name && info.ceiling);
    let judged = curves.iter().filter(|curve| !is_ceiling(&curve.target));
    judged
        .filter_map(|curve| {
            let mut verdict = worst(curve)?;
            let same = |other: &&Curve| (other.series, other.pattern) == (curve.series, curve.pattern);
            let null = curves.iter().filter(same).find(|other| other.target == REFERENCE);
            verdict.null =
                null.and_then(|null| ratio(rate_at(null, verdict.load)?, rate_at(null, verdict.peak_load)?));
            Some(verdict)
        })
        .collect()
}

fn rate_at(curve: &Curve, load: u64) -> Option<f64> {
    curve.points.iter().find(|point| point.load == load).map(|point| point.median.rate)
}

fn worst(curve: &Curve) -> Option<Verdict> {
    let mut worst: Option<Verdict> = None;
    let (first, rest) = curve.points.split_first()?;
    let mut peak = first;
    for point in rest {
        let share = ratio(point.median.rate, peak.median.rate)?;
        if worst.as_ref().is_none_or(|worst| share < worst.ratio) {
            worst = Some(Verdict {
                series: curve.series,
                pattern: curve.pattern,
                target: curve.target.clone(),
                load: point.load,
                rate: point.median.rate,
                peak_load: peak.load,
                peak: peak.median.rate,
                ratio: share,
                null: None,
                met: share >= MIN_RATIO,
            });
        }
        if point.median.rate > peak.median.rate {
            peak = point;
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scaling::{
        reading::Reading,
        report::{
            Sample,
            tests::{example, reading},
        },
    };

    fn curve(rates: &[f64]) -> Curve {
        let sample = |(n, rate): (usize, &f64)| Sample {
            load: 1 << n,
            rounds: vec![],
            median: Reading { rate: *rate, ..reading(1.0) },
            spread: None,
        };
        Curve {
            series: Series::Threads,
            pattern: Pattern::Write,
            target: "shm".into(),
            points: rates.iter().enumerate().map(sample).collect(),
        }
    }

    #[test]
    fn a_point_is_compared_with_the_best_smaller_load() {
        let worst = |rates: &[f64]| worst(&curve(rates)).map(|w| (w.load, w.peak_load, w.ratio, w.met));
        assert_eq!(worst(&[100.0, 200.0, 150.0, 190.0]), Some((4, 2, 0.75, false)));
        assert_eq!(worst(&[100.0, 90.0, 80.0]), Some((4, 1, 0.8, true)));
        // A smaller load may have a lower rate.
        assert_eq!(worst(&[10.0, 100.0]), Some((2, 1, 10.0, true)));
        assert_eq!(worst(&[10.0]), None);
        assert_eq!(worst(&[]), None);
        // A rate of zero was not measured.
        assert_eq!(worst(&[0.0, 1.0]), None);
    }

    #[test]
    fn ceilings_are_shown_but_not_judged() {
        let scaling = example();
        assert_eq!(scaling.verdicts.len(), 6);
        let below: Vec<_> = scaling.verdicts.iter().filter(|verdict| !verdict.met).collect();
        assert_eq!(below.len(), 1);
        assert_eq!((below[0].pattern, below[0].load, below[0].ratio), (Pattern::Write, 4, 0.75));
        assert_eq!(below[0].null, Some(2.0));
        assert!(!scaling.passes());
    }
}
