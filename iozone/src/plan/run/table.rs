//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use comfy_table::Table;

use super::report::Report;
use crate::{
    report::{
        REFERENCE,
        markdown::{self, figure, right, times},
    },
    sample::{PAGE_CACHE_NOTE, Phase},
    size,
};

/// Returns the complete output of a run: the setting, then one table per provider with its
/// ceilings. Ceilings alone get one table.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "{}\nMiB/s; flush time counts{}\n",
        report.setting.head(&report.describe()),
        if report.reads_are_page_cache_hits { format!("\n{PAGE_CACHE_NOTE}") } else { String::new() },
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
    let phases = Phase::ALL.map(|phase| phase.heading(report.reads_are_page_cache_hits));
    let mut table = markdown::table(["record", ""].into_iter().chain(phases.iter().map(String::as_str)));
    for &record in &report.record_sizes {
        let mut first = Some(size::show(record));
        let mut row = |name: String, values: [String; 6]| {
            let cells = [first.take().unwrap_or_default(), name].into_iter().chain(values);
            table.add_row(cells.map(right).collect::<Vec<_>>());
        };
        for name in provider.into_iter().chain(ceilings.iter().copied()) {
            let values = Phase::ALL.map(|phase| figure(report.mib_per_s(name, record, phase)));
            row(name.to_owned(), values);
        }
        if let Some(name) = provider.filter(|_| report.has(REFERENCE)) {
            let values = Phase::ALL.map(|phase| times(report.ratio(name, record, phase)));
            row(format!("{name} / {REFERENCE}"), values);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::run::report::tests::example;

    #[test]
    fn a_provider_beside_its_ceilings() {
        assert_eq!(render(&example()), include_str!("../../../tests/golden/table.txt"));
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
    fn missing_values_are_dashes() {
        let mut report = example();
        report.record_sizes.push(4096);
        assert!(render(&report).contains("|  4 KiB |        shm |     - |"), "{}", render(&report));
    }
}
