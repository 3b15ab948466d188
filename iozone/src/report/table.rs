//! Tables for a terminal that are Markdown at the same time. Pure.

use comfy_table::{Cell, CellAlignment, Table, presets::ASCII_MARKDOWN};

use super::{REFERENCE, Report};
use crate::{sample::Phase, size};

/// Everything that is printed at the end of a run: how it was measured, then one table per provider with the
/// ceilings beside it. Ceilings alone get one table.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "{}\n{}\ncommit {}, {}\nMiB/s; flush time counts\n",
        report.setting(),
        report.machine.summary(),
        report.commit,
        report.began,
    );
    let ceilings: Vec<&str> =
        report.targets.iter().filter(|info| info.ceiling).map(|info| info.name.as_str()).collect();
    let mut providers = report.targets.iter().filter(|info| !info.ceiling).peekable();
    if providers.peek().is_none() {
        text.push_str(&format!("\n{}\n", table(report, None, &ceilings)));
    }
    for provider in providers {
        let rows = table(report, Some(&provider.name), &ceilings);
        text.push_str(&format!("\n{}: {}\n\n{rows}\n", provider.name, provider.title));
    }
    for info in report.targets.iter().filter(|info| info.ceiling) {
        text.push_str(&format!("\n{}: {}", info.name, info.title));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn table(report: &Report, provider: Option<&str>, ceilings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    let heading = ["record", ""].into_iter().chain(Phase::ALL.map(Phase::name));
    table.set_header(heading.map(right));
    for &record in &report.record_sizes {
        let mut first = Some(size::show(record));
        let mut row = |name: String, values: [String; 6]| {
            let cells = [first.take().unwrap_or_default(), name].into_iter().chain(values);
            table.add_row(cells.map(right).collect::<Vec<_>>());
        };
        for name in provider.into_iter().chain(ceilings.iter().copied()) {
            let values = Phase::ALL.map(|phase| throughput(report.mib_per_s(name, record, phase)));
            row(name.to_owned(), values);
        }
        if let Some(name) = provider.filter(|_| report.has(REFERENCE)) {
            let values = Phase::ALL.map(|phase| ratio(report.ratio(name, record, phase)));
            row(format!("{name} / {REFERENCE}"), values);
        }
    }
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn throughput(value: Option<f64>) -> String {
    match value {
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
        None => "-".into(),
    }
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}x"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn a_provider_beside_its_ceilings() {
        assert_eq!(render(&example()), include_str!("../../tests/golden/table.txt"));
    }

    #[test]
    fn ceilings_alone() {
        let mut report = example();
        report.targets.remove(0);
        let text = render(&report);
        assert_eq!(text.matches("record").count(), 1);
        assert!(!text.contains("shm"));
        assert!(text.contains("| 64 KiB |  null |"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let mut report = example();
        report.record_sizes.push(4096);
        assert!(render(&report).contains("|  4 KiB |        shm |     - |"), "{}", render(&report));
    }

    #[test]
    fn small_numbers_keep_a_decimal() {
        assert_eq!(throughput(Some(99.94)), "99.9");
        assert_eq!(throughput(Some(2251.4)), "2251");
        assert_eq!(ratio(Some(0.456)), "0.46x");
    }
}
