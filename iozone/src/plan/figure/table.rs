//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use std::fmt::Write;

use comfy_table::Table;

use super::{
    profiles::{PROFILES, Profile},
    shape::{PHASES, gain, shape, target},
};
use crate::{
    plan::run::report::Report,
    report::markdown::{self, figure, right, times},
    sample::Phase,
    size,
};

/// Returns the setting, one table per provider and phase, and the profiles.
pub(super) fn render(report: &Report, providers: &[String]) -> String {
    let mut text = format!("{}\n", report.setting.head(&report.describe()));
    text.push_str("MiB/s, and in parentheses the gain of rdmabox; no page cache; flush time counts\n");
    for provider in providers {
        for phase in PHASES {
            // Writing to a string cannot fail, here and below.
            let rows = table(report, provider, phase);
            let _ = write!(text, "\n{provider}, {}\n\n{rows}\n", phase.name());
        }
    }
    for profile in &PROFILES {
        let (name, system, switches) = (profile.name, profile.system, profile.switches.describe());
        let _ = write!(text, "\n{name}: {switches}\n  {system} in the paper. {}.", profile.stated);
        let _ = write!(text, "\n  Assumed: {}.", profile.assumed);
    }
    text.push('\n');
    text
}

fn table(report: &Report, provider: &str, phase: Phase) -> Table {
    let records = report.record_sizes.iter().map(|record| size::show(*record));
    let heading = std::iter::once(String::new()).chain(records).chain(["paper".into(), "shape".into()]);
    let mut table = markdown::table(heading);
    for profile in &PROFILES {
        let cell = |record: &u64| {
            let rate = figure(report.mib_per_s(&target(provider, profile), *record, phase));
            match profile.gains {
                Some(_) => format!("{rate} ({})", times(gain(report, provider, profile, *record, phase))),
                None => rate,
            }
        };
        let shape = shape(report, provider, profile, phase).map_or_else(|| "-".into(), |shape| shape.text());
        let cells = std::iter::once(profile.name.to_owned())
            .chain(report.record_sizes.iter().map(cell))
            .chain([paper(profile, phase), shape]);
        table.add_row(cells.map(right).collect::<Vec<_>>());
    }
    table
}

/// Returns the paper's gain.
fn paper(profile: &Profile, phase: Phase) -> String {
    let Some(gains) = &profile.gains else { return "-".into() };
    let gain = if phase.reads() { &gains.read } else { &gains.write };
    format!("{} to {}x", gain.start(), gain.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::run::report::tests::example;

    /// Catches a ratio that is upside down, and a table with the gains of the other phase.
    #[test]
    fn gains_are_beside_those_of_the_paper() {
        let mut report = example();
        for (from, to) in [("shm", "tcp-verb"), ("null", "tcp-rdmabox")] {
            report.targets.iter_mut().filter(|info| info.name == from).for_each(|info| info.name = to.into());
            report.results.iter_mut().filter(|e| e.target == from).for_each(|e| e.target = to.into());
        }
        let text = render(&report, &["tcp".to_owned()]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.contains(" verb |"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows[0], ["verb", "1000 (2.00x)", "1.5 to 2.8x", "in range"]);
        assert_eq!(rows[1], ["verb", "3000 (2.00x)", "2.4 to 4.8x", "direction only"]);
        assert!(text.contains(" octopus |        - (-) |"), "{text}");
        assert!(text.contains("MISSED (1 of 1 without a result)"), "{text}");
    }
}
