//! Charts of IOzone's columns: one for cached mounts, one for uncached mounts. No I/O, no locks, no
//! clock.

use super::{
    column::Pattern,
    lineup::{Keeps, Side, UNCACHED},
    report::Comparison,
};
use crate::report::{self, Entry, REFERENCE, Report, chart};

/// Returns the name and the SVG of each chart that has data.
pub fn all(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let kept = |name: &str| (Keeps::of(name) == Keeps::Pages).then(|| name.to_owned());
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
    let mut results = Vec::new();
    for series in &comparison.results {
        let (Pattern::Iozone(phase), Some(target)) = (series.column.pattern, chosen(&series.target)) else {
            continue;
        };
        results.push(Entry {
            target,
            record_size: series.column.size,
            phase,
            kib_per_s: series.rounds.iter().map(|reading| reading.mib_per_s * 1024.0).collect(),
            median_kib_per_s: series.median.mib_per_s * 1024.0,
            spread: series.spread,
            ratio_to_null: None,
        });
    }
    let null: Vec<Entry> = results.iter().filter(|entry| entry.target == REFERENCE).cloned().collect();
    for entry in &mut results {
        let same = |other: &&Entry| other.record_size == entry.record_size && other.phase == entry.phase;
        entry.ratio_to_null = null
            .iter()
            .find(same)
            .and_then(|null| measure::statistics::ratio(entry.median_kib_per_s, null.median_kib_per_s));
    }
    let measured = |name: &str| results.iter().any(|entry| entry.target == name);
    let targets: Vec<report::TargetInfo> = comparison
        .targets
        .iter()
        .filter(|info| info.side != Side::Variant)
        .filter_map(|info| {
            let name = chosen(&info.name).filter(|name| measured(name))?;
            let ceiling = info.side == Side::Ceiling;
            Some(report::TargetInfo { name, title: info.title.clone(), ceiling, commands: Vec::new() })
        })
        .collect();
    if targets.iter().all(|info| info.ceiling) {
        return None;
    }
    let mut record_sizes: Vec<u64> = results.iter().map(|entry| entry.record_size).collect();
    record_sizes.sort_unstable();
    record_sizes.dedup();
    Some(Report {
        format: report::FORMAT,
        began: comparison.began.clone(),
        commit: comparison.commit.clone(),
        machine: comparison.machine.clone(),
        engine: comparison.programs.first().cloned().unwrap_or_default(),
        command: comparison.command.clone(),
        file_size: comparison.size,
        record_sizes,
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
    use crate::compare::report::tests::example;

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
