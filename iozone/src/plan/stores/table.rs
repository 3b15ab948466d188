//! The table for terminals, which is also Markdown. No I/O, no locks, no clock.

use comfy_table::Cell;

use super::{
    case::Wanted,
    report::{Point, Report, Row},
};
use crate::{
    report::{
        markdown::{figure, right, table, times},
        show_rounds,
    },
    sample::ratio,
    target::Pool,
};

/// The measurements of another command.
pub const ELSEWHERE: &str = "draining a store while users work, and the first use of an added store: `ci/trials/reliability \
                             --over tcp pool` measures them";

/// Describes the measurement, the machine and the time.
pub fn head(report: &Report) -> String {
    report.setting.head(&format!("{}; {}", show_rounds(report.rounds), report.about))
}

/// Returns the complete output.
pub fn render(report: &Report) -> String {
    format!("{}\n\n{}\n\n{}\n", head(report), rows(report), foot(report))
}

/// Returns the notes below the table.
pub fn foot(report: &Report) -> String {
    format!(
        "the memory of the server is the first store; p50: the median latency in us, where it is wanted\n\
         requirements missed: {}\n{ELSEWHERE}",
        missed(report).len()
    )
}

fn rows(report: &Report) -> String {
    let more: Vec<u64> = report.stores.iter().copied().filter(|stores| *stores > 1).collect();
    let rates = report.stores.iter().map(|stores| format!("MiB/s, {}", Pool::name_of(*stores)));
    let ratios = more.iter().flat_map(|stores| [format!("{stores} : 1"), "wanted".to_owned()]);
    let heading = ["files".to_owned(), "requests".to_owned()].into_iter().chain(rates).chain(ratios);
    let mut table = table(heading.chain(["met".to_owned()]));
    for row in &report.rows {
        let rate = |stores: &u64| right(shown_rate(row, *stores));
        let ratio = |stores: &u64| {
            let point = row.at(*stores);
            let wanted = point.and_then(|point| point.wanted).map_or("-".to_owned(), Wanted::show);
            [right(times(point.and_then(|point| point.ratio))), right(wanted)]
        };
        let cells = [Cell::new(row.case.title()), Cell::new(row.pattern.name())].into_iter();
        let cells = cells.chain(report.stores.iter().map(rate)).chain(more.iter().flat_map(ratio));
        table.add_row(cells.chain([Cell::new(met(row))]));
    }
    table.to_string()
}

/// Returns the rate at a point, with the latency where a requirement concerns it.
fn shown_rate(row: &Row, stores: u64) -> String {
    let Some(point) = row.at(stores) else { return "-".into() };
    let rate = figure(Some(point.median.mib_per_s));
    let latency = row.points.iter().any(|point| matches!(point.wanted, Some(Wanted::Latency(_))));
    match latency {
        true => format!("{rate} (p50 {})", figure(Some(point.median.latency.p50))),
        false => rate,
    }
}

/// Returns "yes" if all requirements of the row are met, "no" if one is missed.
fn met(row: &Row) -> &'static str {
    let judged: Vec<bool> = row.points.iter().filter_map(|point: &Point| point.met).collect();
    match (judged.is_empty(), judged.contains(&false)) {
        (true, _) => "-",
        (_, true) => "no",
        (_, false) => "yes",
    }
}

/// Returns a line for each requirement that is missed.
pub fn missed(report: &Report) -> Vec<String> {
    let points = report.rows.iter().flat_map(|row| row.points.iter().map(move |point| (row, point)));
    let missed = points.filter(|(_, point)| point.met == Some(false));
    missed
        .map(|(row, point)| {
            let one = row.at(1).and_then(|one| ratio(point.median.mib_per_s, one.median.mib_per_s));
            let ratio = times(point.ratio.or(one));
            let wanted = point.wanted.map(Wanted::show).unwrap_or_default();
            let (files, pattern) = (row.case.title(), row.pattern.name());
            format!(
                "{files}, {pattern}: {} give {ratio} of one store, {wanted} is wanted",
                Pool::name_of(point.stores)
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::stores::report::tests::example;

    /// Catches a column under the heading of another one, and a row that is judged wrongly.
    #[test]
    fn each_row_has_its_ratios_and_requirements() {
        let text = render(&example());
        let row = |start: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(start)).expect(start);
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let heading = row("| ").join("; ");
        assert_eq!(
            heading,
            "files; requests; MiB/s, 1 store; MiB/s, 2 stores; MiB/s, 4 stores; 2 : 1; wanted; 4 : 1; wanted; met"
        );
        let write = row("| one file              | sequential write").join("; ");
        assert_eq!(write, "one file; sequential write; 90.0; 176; 346; 1.95x; >= 1.9x; 3.85x; >= 3.6x; yes");
        let small = row("| one file, no limits   | 4 KiB").join("; ");
        let expected = "one file, no limits; 4 KiB random read, O_DIRECT; 90.0 (p50 20.0); 176 (p50 22.0); -; 1.10x; p50 \
                        <= 1.05x; -; -; no";
        assert_eq!(small, expected);
        assert!(text.contains("\nrequirements missed: 1\n") && text.contains("--over tcp pool"), "{text}");
    }

    #[test]
    fn missed_requirements_are_named() {
        assert_eq!(
            missed(&example()),
            [
                "one file, no limits, 4 KiB random read, O_DIRECT: 2 stores give 1.10x of one store, p50 <= 1.05x is \
              wanted"
            ]
        );
    }

    /// Catches a missing point that is shown as zero.
    #[test]
    fn missing_values_are_dashes() {
        let mut report = example();
        report.rows.truncate(1);
        report.rows[0].points.remove(1);
        let text = rows(&report);
        assert!(text.contains("|           90.0 |               - |"), "{text}");
    }
}
