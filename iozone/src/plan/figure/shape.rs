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
}

impl Shape {
    /// Returns the shape of gains; `None` if there are none.
    fn of(gains: &[f64], paper: &std::ops::RangeInclusive<f64>) -> Option<Self> {
        let gained = gains.iter().filter(|gain| **gain > 1.0 + NOISE).count();
        Some(match gains.len() {
            0 => return None,
            _ if gains.iter().all(|gain| paper.contains(gain)) => Self::InRange,
            all if gained == all => Self::DirectionOnly,
            all => Self::Partial(gained, all),
        })
    }

    /// Returns the words in tables.
    pub(super) fn text(self) -> String {
        match self {
            Self::InRange => "in range".into(),
            Self::DirectionOnly => "direction only".into(),
            Self::Partial(gained, all) => format!("DOES NOT HOLD ({gained} of {all} gain)"),
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
    Shape::of(&report.record_sizes.iter().filter_map(gain).collect::<Vec<_>>(), paper)
}

/// Returns true if each profile is slower than RDMAbox's at all record sizes.
pub(super) fn all_hold(report: &Report, providers: &[String]) -> bool {
    let holds = |provider: &String| {
        let shapes = PHASES
            .iter()
            .flat_map(|phase| PROFILES.iter().filter_map(|profile| shape(report, provider, profile, *phase)));
        shapes.into_iter().all(|shape| !matches!(shape, Shape::Partial(..)))
    };
    providers.iter().all(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a gain within the noise that counts, and a range that one gain is outside of.
    #[test]
    fn gains_are_compared_with_a_range() {
        let of = |gains: &[f64]| Shape::of(gains, &(1.5..=2.8));
        assert_eq!(of(&[1.5, 2.0, 2.8]), Some(Shape::InRange));
        assert_eq!(of(&[1.04, 2.0]), Some(Shape::DirectionOnly));
        assert_eq!(of(&[3.0, 2.0]), Some(Shape::DirectionOnly));
        assert_eq!(of(&[1.02, 2.0, 0.9]), Some(Shape::Partial(1, 3)));
        assert_eq!(of(&[]), None);
    }
}
