//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use comfy_table::Table;

use super::WAYS;
use crate::{
    plan::run::report::Report,
    report::markdown::{self, figure, right, times},
    sample::{Phase, ratio},
    size,
};

/// Ratios below the rates: the name, and the suffixes of both sides. `None` is tmpfs.
const RATIOS: [(&str, &str, Option<&str>); 4] = [
    ("preload / mount, uncached", "-preload", Some("-none")),
    ("preload / tmpfs", "-preload", None),
    ("native / mount, uncached", "-native", Some("-none")),
    ("native / tmpfs", "-native", None),
];

/// Returns the setting, then one table per provider.
pub(super) fn render(report: &Report, providers: &[String]) -> String {
    let mut text = format!(
        "{}\nMiB/s; flush time counts. The kernel answers the reads of \"mount, cached\" from its pages\n",
        report.setting.head(&report.describe())
    );
    for provider in providers {
        text.push_str(&format!("\n{provider}\n\n{}\n", table(report, provider)));
    }
    text
}

fn table(report: &Report, provider: &str) -> Table {
    let mut table = markdown::table(["record", ""].into_iter().chain(Phase::ALL.map(Phase::name)));
    for &record in &report.record_sizes {
        let mut first = Some(size::show(record));
        let mut row = |name: &str, values: [String; 6]| {
            let cells = [first.take().unwrap_or_default(), name.to_owned()].into_iter().chain(values);
            table.add_row(cells.map(right).collect::<Vec<_>>());
        };
        let rate = |suffix: Option<&str>, phase| {
            let name = suffix.map_or("tmpfs".to_owned(), |suffix| format!("{provider}{suffix}"));
            report.mib_per_s(&name, record, phase)
        };
        for (suffix, ..) in WAYS {
            row(title(suffix), Phase::ALL.map(|phase| figure(rate(Some(suffix), phase))));
        }
        row("tmpfs", Phase::ALL.map(|phase| figure(rate(None, phase))));
        for (name, above, below) in RATIOS {
            let of = |phase| Some((rate(Some(above), phase)?, rate(below, phase)?));
            row(
                name,
                Phase::ALL.map(|phase| times(of(phase).and_then(|(above, below)| ratio(above, below)))),
            );
        }
    }
    table
}

/// Returns the name of a way in tables.
fn title(suffix: &str) -> &'static str {
    match suffix {
        "-native" => "native",
        "-preload" => "preload",
        "-none" => "mount, uncached",
        _ => "mount, cached",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::run::report::tests::example;

    /// Catches a row with the rates of another way.
    #[test]
    fn each_way_is_beside_the_mount_and_tmpfs() {
        let mut report = example();
        for (from, to) in [("shm", "shm-preload"), ("null", "shm-none")] {
            report.targets.iter_mut().filter(|info| info.name == from).for_each(|info| info.name = to.into());
            report.results.iter_mut().filter(|e| e.target == from).for_each(|e| e.target = to.into());
        }
        let text = render(&report, &["shm".to_owned()]);
        let cells = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        assert_eq!(cells(" preload |")[3..5], ["1000", "2000"]);
        assert_eq!(cells(" mount, uncached |")[3], "2000");
        assert_eq!(cells(" native |")[3], "-");
        assert_eq!(cells("preload / mount, uncached")[3], "0.50x");
        assert_eq!(cells("preload / tmpfs")[3], "0.12x");
        assert_eq!(cells("native / tmpfs")[3], "-");
    }
}
