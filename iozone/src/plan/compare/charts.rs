//! Charts of IOzone's columns: one for cached mounts, one for uncached mounts. No I/O, no locks, no
//! clock.

use super::{
    lineup::{CacheMode, UNCACHED},
    report::Comparison,
};
use crate::{
    harness::sorted,
    plan::run::{
        chart,
        report::{self, Report, entries},
    },
    report::TargetInfo,
    target::Side,
};

/// Returns the name and the SVG of each chart that has data.
pub fn all(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let kept = |name: &str| (CacheMode::of(name) == CacheMode::Pages).then(|| name.to_owned());
    let uncached = |name: &str| {
        let ceiling = (name == "tmpfs").then(|| name.to_owned());
        name.strip_suffix(UNCACHED).map(str::to_owned).or(ceiling)
    };
    [("kept", as_report(comparison, true, kept)), ("uncached", as_report(comparison, false, uncached))]
        .into_iter()
        .filter_map(|(name, report)| Some((name, chart::svg(&report?))))
        .collect()
}

/// Returns the targets that `chosen` renames, as a report of IOzone alone. Returns `None` if it
/// renames only ceilings.
fn as_report(
    comparison: &Comparison,
    reads_are_page_cache_hits: bool,
    chosen: impl Fn(&str) -> Option<String>,
) -> Option<Report> {
    let targets: Vec<TargetInfo> = comparison
        .targets
        .iter()
        .filter(|info| info.side != Side::Variant)
        .filter_map(|info| {
            Some(TargetInfo { name: chosen(&info.name)?, commands: Vec::new(), ..info.into() })
        })
        .collect();
    let results = entries(&comparison.results, &targets, chosen);
    let measured = |info: &TargetInfo| results.iter().any(|entry| entry.target == info.name);
    let targets: Vec<TargetInfo> = targets.into_iter().filter(measured).collect();
    if targets.iter().all(|info| info.ceiling) {
        return None;
    }
    Some(Report {
        format: report::FORMAT,
        setting: comparison.setting.clone(),
        engine: comparison.programs.first().cloned().unwrap_or_default(),
        command: comparison.command.clone(),
        file_size: comparison.size,
        record_sizes: sorted(results.iter().map(|entry| entry.record_size)),
        threads: 1,
        rounds: comparison.rounds,
        reads_are_page_cache_hits,
        targets,
        results,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::compare::report::tests::example;

    #[test]
    fn kept_and_uncached_have_a_chart_each() {
        let mut comparison = example();
        let names =
            |comparison: &Comparison| all(comparison).iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names(&comparison), ["kept"]);
        for name in ["shm", "null"] {
            let mut info = comparison.targets.iter().find(|info| info.name == name).unwrap().clone();
            info.name += UNCACHED;
            comparison.targets.push(info);
            let mut series: Vec<_> =
                comparison.results.iter().filter(|series| series.target == name).cloned().collect();
            series.iter_mut().for_each(|series| series.target += UNCACHED);
            comparison.results.extend(series);
        }
        assert_eq!(names(&comparison), ["kept", "uncached"]);
        for (_, svg) in all(&comparison) {
            measure::testing::assert_well_formed(&svg);
            // Six phases of three targets. Targets without values have no bars.
            assert_eq!(svg.matches("<title>").count(), 18);
            assert!(svg.contains("<title>shm, write: 200 MiB/s, 0.50x of null</title>"), "{svg}");
        }
    }

    #[test]
    fn ceilings_alone_have_none() {
        let mut comparison = example();
        comparison.targets.retain(|info| info.side == Side::Ceiling);
        assert!(all(&comparison).is_empty());
    }
}
