//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use comfy_table::Cell;

use super::{
    check::{MIN_RATIO, Verdict},
    reading::Reading,
    report::Scaling,
    series::Series,
};
use crate::{
    load::Pattern,
    report::{
        markdown::{figure, latency, right, table, times},
        show_rounds,
    },
    size::{self, MIB},
};

/// Describes the measurement, the machine and the time.
pub fn head(scaling: &Scaling) -> String {
    let (rounds, size) = (show_rounds(scaling.rounds), size::show(scaling.bytes));
    scaling.setting.head(&format!("{rounds}; {size} in all files of a point together"))
}

/// Returns the tables of a series: rates, latencies and memory.
pub fn series(scaling: &Scaling, series: Series) -> String {
    let mut parts = vec![rates(scaling, series)];
    parts.extend(series.patterns().into_iter().map(|pattern| latencies(scaling, series, pattern)));
    parts.push(memory(scaling, series));
    parts.join("\n\n")
}

/// Returns the text after all series: points with lower rates, and skipped points.
pub fn foot(scaling: &Scaling) -> String {
    let mut parts = Vec::new();
    if !scaling.verdicts.is_empty() {
        parts.push(verdicts(&scaling.verdicts));
    }
    let mut notes: Vec<String> =
        scaling.targets.iter().map(|info| format!("{}: {}", info.name, info.title)).collect();
    notes.extend(scaling.left_out.iter().cloned());
    parts.push(notes.join("\n"));
    parts.join("\n\n")
}

/// Returns the complete output.
pub fn render(scaling: &Scaling) -> String {
    let mut parts = vec![head(scaling)];
    for which in scaling.series() {
        parts.push(format!("{}: {}", which.name(), which.title()));
        parts.push(series(scaling, which));
    }
    parts.push(foot(scaling));
    parts.join("\n\n") + "\n"
}

/// Returns the names of the targets.
fn names(scaling: &Scaling) -> Vec<&str> {
    scaling.targets.iter().map(|info| info.name.as_str()).collect()
}

/// Returns a table with a row per load; `cells` returns the other cells of the row.
fn rows(
    scaling: &Scaling,
    series: Series,
    heading: impl IntoIterator<Item = String>,
    cells: impl Fn(u64) -> Vec<String>,
) -> String {
    let mut table = table(std::iter::once(series.name().to_owned()).chain(heading));
    for load in scaling.loads(series) {
        table.add_row(std::iter::once(series.show(load)).chain(cells(load)).map(right));
    }
    table.to_string()
}

fn rates(scaling: &Scaling, series: Series) -> String {
    let names = names(scaling);
    let columns: Vec<(Pattern, &str)> = series
        .patterns()
        .into_iter()
        .flat_map(|pattern| names.iter().map(move |name| (pattern, *name)))
        .collect();
    let heading = columns.iter().map(|(pattern, name)| format!("{}, {name}", short(*pattern)));
    let unit = series.patterns()[0].unit();
    let cells = |load| {
        let rate = |(pattern, name): &(Pattern, &str)| {
            figure(scaling.median(series, *pattern, name, load).map(|median| median.rate))
        };
        columns.iter().map(rate).collect()
    };
    format!("{unit}\n\n{}", rows(scaling, series, heading, cells))
}

/// Returns a short name, which leaves space for more columns.
fn short(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Write => "write",
        Pattern::Read => "read",
        Pattern::RandomRead => "random",
        other => other.name(),
    }
}

fn latencies(scaling: &Scaling, series: Series, pattern: Pattern) -> String {
    let names = names(scaling);
    let cells = |load| {
        let of =
            |name: &&str| latency(scaling.median(series, pattern, name, load).map(|median| median.latency));
        names.iter().map(of).collect()
    };
    let heading = names.iter().map(|name| (*name).to_owned());
    format!(
        "{}: latency in us, p50 / p99 / p99.9\n\n{}",
        pattern.name(),
        rows(scaling, series, heading, cells)
    )
}

/// Returns memory after the last pattern; for empty files, also the memory per file.
fn memory(scaling: &Scaling, series: Series) -> String {
    let names = names(scaling);
    let pattern = series.patterns()[2];
    let cells = |load| {
        let of = |name: &&str| {
            let median = scaling.median(series, pattern, name, load);
            median.map_or_else(|| "-".into(), |median| resident(series, load, median))
        };
        names.iter().map(of).collect()
    };
    let heading = names.iter().map(|name| (*name).to_owned());
    let each = match series {
        Series::Count => "; bytes for each file, of the clients and of the server",
        _ => "",
    };
    format!(
        "resident memory in MiB after the load: clients / server / lent by the server{each}\n\n{}",
        rows(scaling, series, heading, cells)
    )
}

fn resident(series: Series, load: u64, median: &Reading) -> String {
    let mib = |bytes: u64| figure(Some(bytes as f64 / MIB as f64));
    let resident = median.resident;
    let all = [resident.client.own, resident.servers.own, resident.servers.shared].map(mib).join(" / ");
    let (client, server) = median.grown();
    // With few files, other memory would dominate the memory per file.
    match series == Series::Count && load >= 1000 {
        true => format!("{all}; {} / {}", client / load, server / load),
        false => all,
    }
}

fn verdicts(verdicts: &[Verdict]) -> String {
    let heading = ["series", "", "", "worst at", "of the peak at", "ratio", "null there", ""];
    let mut table = table(heading);
    for verdict in verdicts {
        table.add_row([
            Cell::new(verdict.series.name()),
            Cell::new(verdict.pattern.name()),
            Cell::new(&verdict.target),
            right(verdict.series.show(verdict.load)),
            right(verdict.series.show(verdict.peak_load)),
            right(times(Some(verdict.ratio))),
            right(times(verdict.null)),
            Cell::new(if verdict.met { "" } else { "BELOW" }),
        ]);
    }
    format!(
        "the point of each series that is farthest below what less load gave; {MIN_RATIO} is the least\n\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scaling::report::tests::example;

    #[test]
    fn everything_in_order() {
        assert_eq!(render(&example()), include_str!("../../../tests/golden/scaling.txt"));
    }

    #[test]
    fn missing_values_are_dashes() {
        let mut scaling = example();
        scaling.curves.retain(|curve| curve.series == Series::Threads);
        scaling.curves.retain(|curve| curve.target != "null" || curve.pattern != Pattern::Write);
        scaling.verdicts.clear();
        let text = render(&scaling);
        assert!(!text.contains("count") && !text.contains("BELOW"), "{text}");
        assert!(text.contains("|       1 |        100 |           - |"), "{text}");
    }
}
