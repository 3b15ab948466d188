//! Gains of RDMAbox's profile beside those of the paper. No I/O, no locks, no clock.

use super::profiles::{PROFILES, Profile, RDMABOX};
use crate::{
    plan::run::report::Report,
    sample::{Phase, ratio},
};

/// A difference below this is noise.
const NOISE: f64 = 0.03;

/// The phases that the figure has.
pub(super) const PHASES: [Phase; 2] = [Phase::Write, Phase::Read];

/// How far gains agree with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Each gain is in the paper's range.
    InRange,
    /// Each record size has a gain, of another size than the paper's.
    DirectionOnly,
    /// Only so many record sizes have a gain, of so many.
    Partial(usize, usize),
    /// So many record sizes have no result, of so many.
    Missed(usize, usize),
}

impl Shape {
    /// Returns the shape of gains over all record sizes; `None` is a size without a result.
    fn of(gains: &[Option<f64>], paper: &std::ops::RangeInclusive<f64>) -> Self {
        let all = gains.len();
        let found: Vec<f64> = gains.iter().copied().flatten().collect();
        let gained = found.iter().filter(|gain| **gain > 1.0 + NOISE).count();
        match all - found.len() {
            0 if all == 0 => Self::Missed(0, 0),
            0 if found.iter().all(|gain| paper.contains(gain)) => Self::InRange,
            0 if gained == all => Self::DirectionOnly,
            0 => Self::Partial(gained, all),
            missed => Self::Missed(missed, all),
        }
    }

    /// Returns true if each record size has a gain.
    fn holds(self) -> bool {
        matches!(self, Self::InRange | Self::DirectionOnly)
    }

    /// Returns the words in tables.
    pub(super) fn text(self) -> String {
        match self {
            Self::InRange => "in range".into(),
            Self::DirectionOnly => "direction only".into(),
            Self::Partial(gained, all) => format!("DOES NOT HOLD ({gained} of {all} gain)"),
            Self::Missed(missed, all) => format!("MISSED ({missed} of {all} without a result)"),
        }
    }
}

/// Returns the name of a profile's target.
pub(super) fn target(provider: &str, profile: &Profile) -> String {
    format!("{provider}-{}", profile.name)
}

/// Returns the gain of RDMAbox's profile over another one.
pub(super) fn gain(
    report: &Report,
    provider: &str,
    profile: &Profile,
    record: u64,
    phase: Phase,
) -> Option<f64> {
    let ours = report.mib_per_s(&format!("{provider}-{RDMABOX}"), record, phase)?;
    ratio(ours, report.mib_per_s(&target(provider, profile), record, phase)?)
}

/// Returns the shape of a profile's gains over all record sizes; `None` for RDMAbox itself.
pub(super) fn shape(report: &Report, provider: &str, profile: &Profile, phase: Phase) -> Option<Shape> {
    let gains = profile.gains.as_ref()?;
    let paper = if phase.reads() { &gains.read } else { &gains.write };
    let gain = |record: &u64| gain(report, provider, profile, *record, phase);
    Some(Shape::of(&report.record_sizes.iter().map(gain).collect::<Vec<_>>(), paper))
}

/// Returns true if each profile has results, and is slower than RDMAbox's at all record sizes.
pub(super) fn all_hold(report: &Report, providers: &[String]) -> bool {
    let holds = |provider: &String| {
        let shapes = PHASES
            .iter()
            .flat_map(|phase| PROFILES.iter().filter_map(|profile| shape(report, provider, profile, *phase)));
        shapes.into_iter().all(Shape::holds)
    };
    providers.iter().all(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a gain within the noise that counts, and a range that one gain is outside of.
    #[test]
    fn gains_are_compared_with_a_range() {
        let of =
            |gains: &[f64]| Shape::of(&gains.iter().copied().map(Some).collect::<Vec<_>>(), &(1.5..=2.8));
        assert_eq!(of(&[1.5, 2.0, 2.8]), Shape::InRange);
        assert_eq!(of(&[1.04, 2.0]), Shape::DirectionOnly);
        assert_eq!(of(&[3.0, 2.0]), Shape::DirectionOnly);
        assert_eq!(of(&[1.02, 2.0, 0.9]), Shape::Partial(1, 3));
    }

    /// Catches a check that passes because a profile, or one record size of it, has no result.
    #[test]
    fn a_missing_result_does_not_hold() {
        let of = |gains: &[Option<f64>]| Shape::of(gains, &(1.5..=2.8));
        for (gains, shape) in [
            (&[][..], Shape::Missed(0, 0)),
            (&[None, None], Shape::Missed(2, 2)),
            (&[Some(2.0), None], Shape::Missed(1, 2)),
        ] {
            assert_eq!(of(gains), shape);
            assert!(!shape.holds(), "{shape:?}");
        }
        assert!(of(&[Some(2.0)]).holds());
        // The example has results of other targets only.
        let report = crate::plan::run::report::tests::example();
        assert!(!all_hold(&report, &["tcp".to_owned()]));
    }
}
