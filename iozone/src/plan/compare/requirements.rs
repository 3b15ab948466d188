//! The requirements for ratios, and their verdicts. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

use super::report::Comparison;
use crate::{
    engine::{
        fio::Access,
        job::{CALLERS, Column, FIO, Metric, Pattern},
    },
    sample::Phase::{self, RandomRead, RandomWrite, Read, Reread, Rewrite, Write},
    size::{KIB, MIB},
};

/// A requirement for some columns of a target, relative to another target.
struct Requirement {
    name: &'static str,
    /// Names of the targets; each must meet the requirement.
    of: Names,
    /// Names of the reference targets; it applies to each.
    to: Names,
    metric: Metric,
    phases: &'static [Phase],
    direct: &'static [Access],
    /// Request sizes in bytes; empty for all measured sizes.
    sizes: &'static [u64],
    bound: Bound,
}

/// Bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    Above(f64),
    AtMost(f64),
}

/// The verdict on a requirement in one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the requirement.
    pub name: String,
    /// Name of the judged target.
    pub of: String,
    /// Name of the reference target.
    pub to: String,
    /// Column that the bound applies to.
    pub column: Column,
    /// Ratio of the medians.
    pub ratio: f64,
    /// Such as `>= 0.95`.
    pub needed: String,
    /// The ratio divided by the bound, or the bound divided by the ratio if less is better. Below
    /// one the requirement is not met.
    pub margin: f64,
    /// True if the requirement is met.
    pub met: bool,
}

const WRITES: &[Phase] = &[Write, Rewrite, RandomWrite];
const READS: &[Phase] = &[Read, Reread, RandomRead];
const READ_ONE: Access = FIO[0];
const READ_MANY: Access = FIO[1];
const READERS: Access = CALLERS[0];
const WRITERS: Access = CALLERS[1];

/// rfs without its optimizations: [`PLAINS`](super::lineup::PLAINS).
const PLAIN_NAMES: &[&str] =
    &["tcp-plain-dyn-event", "tcp-plain-dyn-busy", "tcp-plain-pre-event", "tcp-plain-pre-busy"];

/// The requirements. `docs/performance.md` has the same rows; a test compares them.
const REQUIREMENTS: &[Requirement] = &[
    Requirement::at_least("shared memory: as fast as FUSE allows", &["shm"], &["null"], 0.95)
        .phases(WRITES)
        .direct(&FIO),
    Requirement::at_least(
        "shared memory, nothing kept: as fast as FUSE allows",
        &["shm-none"],
        &["null-none"],
        0.95,
    )
    .phases(&Phase::ALL),
    Requirement::at_least("reads from kept pages", &["shm", "tcp"], &["null"], 0.9).phases(READS),
    Requirement::at_least("large requests past the cache: half of memory's speed", &["shm"], &["tmpfs"], 0.5)
        .direct(&FIO)
        .sizes(&[MIB]),
    Requirement::at_least(
        "large requests, nothing kept: half of memory's speed",
        &["shm-none"],
        &["tmpfs"],
        0.5,
    )
    .phases(&Phase::ALL)
    .sizes(&[MIB]),
    Requirement::at_least("TCP: large writes", &["tcp"], &["null"], 0.6)
        .phases(WRITES)
        .sizes(&[128 * KIB, MIB]),
    Requirement::at_least("TCP: large reads that are not cached", &["tcp-none"], &["null-none"], 0.6)
        .phases(READS)
        .sizes(&[128 * KIB, MIB]),
    Requirement::at_most("TCP: latency of a small read", &["tcp"], &["null"], 3.0)
        .metric(Metric::P50)
        .direct(&[READ_ONE])
        .sizes(&[4 * KIB]),
    Requirement::at_least("TCP: many small reads", &["tcp"], &["null"], 0.6)
        .direct(&[READ_MANY])
        .sizes(&[4 * KIB]),
    Requirement::at_least(
        "small writes that the kernel keeps: as fast as FUSE allows",
        &["shm-writeback", "tcp-writeback"],
        &["null-writeback"],
        0.95,
    )
    .phases(&[Write, Rewrite])
    .sizes(&[4 * KIB]),
    Requirement::at_least(
        "GlusterFS: small writes that the kernel keeps",
        &["shm-writeback", "tcp-writeback"],
        &["glusterfs"],
        10.0,
    )
    .phases(&[Write, Rewrite])
    .sizes(&[4 * KIB]),
    Requirement::at_least("GlusterFS: large writes", &["shm", "tcp"], &["glusterfs"], 3.0)
        .phases(&[Write, Rewrite])
        .sizes(&[MIB]),
    Requirement::at_least("GlusterFS: small writes", &["shm", "tcp"], &["glusterfs"], 4.0)
        .phases(&[Write, Rewrite])
        .sizes(&[4 * KIB]),
    Requirement::at_least("GlusterFS: small random writes", &["shm", "tcp"], &["glusterfs"], 5.0)
        .phases(&[RandomWrite])
        .sizes(&[4 * KIB]),
    Requirement::at_least("GlusterFS: O_DIRECT", &["shm", "tcp"], &["glusterfs"], 3.0).direct(&FIO),
    Requirement::at_least("GlusterFS: cached reads", &["shm", "tcp"], &["glusterfs"], 1.1).phases(READS),
    Requirement::at_most("GlusterFS: processor time", &["shm", "tcp"], &["glusterfs"], 1.0 / 3.0)
        .metric(Metric::Cpu)
        .phases(WRITES)
        .direct(&FIO),
    Requirement::above("MooseFS: in everything", &["shm", "tcp"], &["moosefs"], 1.0)
        .phases(&Phase::ALL)
        .direct(&FIO),
    Requirement::above("sshfs: in everything", &["shm", "tcp"], &["sshfs"], 1.0)
        .phases(&Phase::ALL)
        .direct(&FIO),
    Requirement::at_least("what the optimizations give to writes", &["tcp-none"], PLAIN_NAMES, 1.5)
        .phases(WRITES)
        .direct(&[WRITERS]),
    Requirement::at_least("what the optimizations give to reads", &["tcp-none"], PLAIN_NAMES, 2.4)
        .phases(READS)
        .direct(&[READERS]),
];

type Names = &'static [&'static str];

impl Requirement {
    const fn new(name: &'static str, of: Names, to: Names, bound: Bound) -> Self {
        Self { name, of, to, metric: Metric::Throughput, phases: &[], direct: &[], sizes: &[], bound }
    }

    const fn at_least(name: &'static str, of: Names, to: Names, bound: f64) -> Self {
        Self::new(name, of, to, Bound::AtLeast(bound))
    }

    const fn above(name: &'static str, of: Names, to: Names, bound: f64) -> Self {
        Self::new(name, of, to, Bound::Above(bound))
    }

    const fn at_most(name: &'static str, of: Names, to: Names, bound: f64) -> Self {
        Self::new(name, of, to, Bound::AtMost(bound))
    }

    const fn metric(self, metric: Metric) -> Self {
        Self { metric, ..self }
    }

    const fn phases(self, phases: &'static [Phase]) -> Self {
        Self { phases, ..self }
    }

    const fn direct(self, direct: &'static [Access]) -> Self {
        Self { direct, ..self }
    }

    const fn sizes(self, sizes: &'static [u64]) -> Self {
        Self { sizes, ..self }
    }

    /// Returns each target with each of its reference targets.
    fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.of.iter().flat_map(|of| self.to.iter().map(|to| (*of, *to)))
    }

    fn columns(&self, comparison: &Comparison) -> Vec<Column> {
        let mut columns = comparison.columns();
        columns.retain(|column| {
            let pattern = match column.pattern {
                Pattern::Iozone(phase) => self.phases.contains(&phase),
                Pattern::Direct(access) => self.direct.contains(&access),
            };
            pattern && (self.sizes.is_empty() || self.sizes.contains(&column.size))
        });
        columns
    }
}

impl Bound {
    /// Formats the bound.
    fn show(self) -> String {
        match self {
            Bound::AtLeast(bound) => format!(">= {bound:.2}"),
            Bound::Above(bound) => format!("> {bound:.2}"),
            Bound::AtMost(bound) => format!("<= {bound:.2}"),
        }
    }

    fn margin(self, ratio: f64) -> f64 {
        match self {
            Bound::AtLeast(bound) | Bound::Above(bound) => ratio / bound,
            Bound::AtMost(_) if ratio <= 0.0 => f64::MAX,
            Bound::AtMost(bound) => bound / ratio,
        }
    }

    fn is_met(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => ratio >= bound,
            Bound::Above(bound) => ratio > bound,
            Bound::AtMost(bound) => ratio <= bound,
        }
    }
}

/// Returns a verdict for every requirement, target and column that both targets have.
pub fn judge(comparison: &Comparison) -> Vec<Verdict> {
    judge_by(REQUIREMENTS, comparison)
}

fn judge_by(requirements: &[Requirement], comparison: &Comparison) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for requirement in requirements {
        let columns = requirement.columns(comparison);
        for (of, to) in requirement.pairs() {
            verdicts.extend(columns.iter().filter_map(|&column| {
                let ratio = comparison.ratio(of, to, column, requirement.metric)?;
                Some(Verdict {
                    name: requirement.name.to_owned(),
                    of: of.to_owned(),
                    to: to.to_owned(),
                    column,
                    ratio,
                    needed: requirement.bound.show(),
                    margin: requirement.bound.margin(ratio),
                    met: requirement.bound.is_met(ratio),
                })
            }));
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::compare::report::tests::example;

    #[test]
    fn bounds() {
        for (bound, ratio, met, margin) in [
            (Bound::AtLeast(2.0), 2.0, true, 1.0),
            (Bound::AtLeast(2.0), 1.0, false, 0.5),
            (Bound::Above(1.0), 1.0, false, 1.0),
            (Bound::AtMost(3.0), 3.0, true, 1.0),
            (Bound::AtMost(3.0), 6.0, false, 0.5),
            (Bound::AtMost(3.0), 0.0, true, f64::MAX),
        ] {
            assert_eq!((bound.is_met(ratio), bound.margin(ratio)), (met, margin), "{bound:?} {ratio}");
        }
        assert_eq!(Bound::AtMost(1.0 / 3.0).show(), "<= 0.33");
    }

    #[test]
    fn columns_of_both_targets_are_judged_separately() {
        let requirements = [
            Requirement::at_least("half", &["shm", "tcp"], &["null"], 0.5)
                .phases(&[Write])
                .direct(&[READ_ONE]),
            Requirement::at_most("latency", &["shm"], &["null"], 1.9)
                .metric(Metric::P50)
                .direct(&[READ_ONE])
                .sizes(&[4096]),
            Requirement::above("elsewhere", &["shm"], &["null"], 1.0).phases(READS).sizes(&[MIB]),
            Requirement::above("not there", &["shm"], &["glusterfs"], 1.0).phases(READS),
        ];
        let verdicts: Vec<_> = judge_by(&requirements, &example())
            .into_iter()
            .map(|verdict| (verdict.name, verdict.column.pattern, verdict.ratio, verdict.met))
            .collect();
        let direct = Pattern::Direct(READ_ONE);
        assert_eq!(
            verdicts,
            [
                ("half".to_owned(), Pattern::Iozone(Write), 0.5, true),
                ("half".to_owned(), direct, 0.5, true),
                ("latency".to_owned(), direct, 2.0, false),
            ]
        );
    }

    /// Returns the first four cells of each row of the document's table: requirement, target,
    /// reference, bound.
    fn documented() -> Vec<String> {
        let text = include_str!("../../../../docs/performance.md");
        let rows = text.lines().skip_while(|line| !line.starts_with("| required | of | to |"));
        rows.skip(2)
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.split('|').skip(1).take(4).map(str::trim).collect::<Vec<_>>().join(" | "))
            .collect()
    }

    #[test]
    fn the_document_requires_the_same() {
        let required: Vec<String> = REQUIREMENTS
            .iter()
            .flat_map(|requirement| {
                let row =
                    |(of, to)| format!("{} | {of} | {to} | {}", requirement.name, requirement.bound.show());
                requirement.pairs().map(row)
            })
            .collect();
        assert_eq!(documented(), required);
    }

    #[test]
    fn plain_names_are_those_of_the_lineup() {
        use crate::plan::compare::lineup::{PLAIN, PLAINS};
        assert_eq!(PLAIN_NAMES, PLAINS.map(|(name, ..)| format!("{PLAIN}{name}")));
    }

    #[test]
    fn each_requirement_has_a_unique_name_and_a_target() {
        let mut names: Vec<_> = REQUIREMENTS.iter().map(|requirement| requirement.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REQUIREMENTS.len());
        for requirement in REQUIREMENTS {
            let columns = requirement.phases.len() + requirement.direct.len();
            assert!(
                columns > 0 && !requirement.of.is_empty() && !requirement.to.is_empty(),
                "{}",
                requirement.name
            );
        }
    }
}
