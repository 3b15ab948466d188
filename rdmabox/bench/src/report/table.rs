//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use comfy_table::{Cell, CellAlignment, Table, presets::ASCII_MARKDOWN};
use measure::statistics;

use super::{
    About, Entry, Report, Row,
    metric::{Metric, show},
};
use crate::{
    run::{
        Sample,
        record::{Latency, RuntimeLatency},
    },
    usage::Usage,
};

/// Returns the complete output of a run.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "{}\n{}\ncommit {}, {}\n",
        report.title,
        report.machine.summary(),
        report.commit,
        report.began
    );
    if let Some(model) = &report.model {
        text.push_str(&format!("modelled card {model}\n"));
    }
    if let Some(about) = &report.experiment {
        text.push_str(&format!("{}\n", about.what));
    }
    if report.rounds > 1 {
        text.push_str(&format!("medians of {} interleaved rounds\n", report.rounds));
    }
    match report.results.as_slice() {
        [only] if report.dimensions.is_empty() => {
            text.push_str(&format!("{}\n\n{}", only.options.summary(), single(only, report.rounds)));
        }
        entries => {
            if let Some(entry) = entries.first() {
                text.push_str(&format!("first of the combinations: {}\n", entry.options.summary()));
            }
            text.push_str(&format!("\n{}\n{}", matrix(report), spreads(report)));
        }
    }
    if let Some(about) = &report.experiment {
        text.push_str(&format!("\nThe paper: {}\n\nHere ({}):\n", about.paper, report.caveat()));
        for line in &about.measured {
            text.push_str(&format!("  {line}\n"));
        }
        if !about.rows.is_empty() {
            text.push_str(&format!("\n{}\n", beside_paper(about)));
        }
    }
    text
}

/// Returns the sections of a page with the results of several experiments on a modelled card. A
/// section has a table of the paper's and the model's values, and the measurements.
pub fn page(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let Some(about) = &report.experiment else { continue };
        text.push_str(&format!("## {}: {}\n\n", about.name, about.what));
        text.push_str(&format!("{}\n\n{}\n\n", about.paper, beside_paper(about)));
        let model = report.model.as_deref().unwrap_or_default();
        text.push_str(&format!(
            "Card {model}; medians of {} rounds; commit {}:\n\n",
            report.rounds, report.commit
        ));
        text.push_str(&format!("{}\n{}\n", matrix(report), spreads(report)));
    }
    text
}

/// Returns a table of the paper's and the model's values, and of those on a provider.
fn beside_paper(about: &About) -> Table {
    let mut table = new_table();
    let provider =
        about.beside.iter().flat_map(|other| [other.name.clone(), format!("shape on {}", other.name)]);
    let header = ["quantity", "paper", "model", "basis", "shape"].map(str::to_owned);
    table.set_header(header.into_iter().chain(provider));
    for Row { what, paper, model, basis, shape, beside } in &about.rows {
        let row = [what.as_str(), paper, model, basis.text(), shape.text()];
        let beside = beside.iter().flat_map(|beside| [beside.value.as_str(), beside.shape.text()]);
        table.add_row(row.into_iter().chain(beside));
    }
    table
}

/// Returns a table with a row per combination.
fn matrix(report: &Report) -> Table {
    let columns: Vec<Metric> = report
        .columns
        .iter()
        .copied()
        .filter(|metric| report.results.iter().any(|entry| entry.get(*metric).is_some()))
        .collect();
    let mut table = new_table();
    let names = report.dimensions.iter().map(String::as_str);
    let spread = (report.rounds > 1).then_some("spread");
    table.set_header(names.chain(columns.iter().map(|m| m.title())).chain(spread).map(right));
    for entry in &report.results {
        let values = columns.iter().map(|metric| show(entry.get(*metric)));
        let spread = spread.map(|_| percent(entry.spread));
        table.add_row(entry.coordinates.iter().cloned().chain(values).chain(spread).map(right));
    }
    table
}

/// Spread of the rounds above which a comparison within the noise proves nothing.
const NOISE: f64 = 0.03;

/// Says how well the rounds repeat; nothing for one round.
fn spreads(report: &Report) -> String {
    let own = spread_of("a combination", report.rounds, &report.results);
    let other = report.experiment.iter().filter_map(|about| about.beside.as_ref());
    let other = other
        .map(|other| spread_of(&format!("a combination on {}", other.name), report.rounds, &other.results));
    std::iter::once(own).chain(other).collect()
}

fn spread_of(what: &str, rounds: u32, results: &[Entry]) -> String {
    let mut all: Vec<f64> = results.iter().filter_map(|entry| entry.spread).collect();
    all.sort_unstable_by(f64::total_cmp);
    let (Some(middle), Some(largest)) = (all.get(all.len() / 2), all.last()) else { return String::new() };
    if rounds < 2 {
        return String::new();
    }
    let above = all.iter().filter(|spread| **spread > NOISE).count();
    let warning =
        if above > 0 { format!("; spread above 3 % in {above} of {}", all.len()) } else { String::new() };
    format!(
        "\nspread of the IOPS of {what}: median {:.1} %, largest {:.1} %{warning}\n",
        middle * 100.0,
        largest * 100.0
    )
}

/// Returns the detailed output of one combination.
fn single(entry: &Entry, rounds: u32) -> String {
    let mut numbers = new_table();
    let columns = [
        Metric::Ops,
        Metric::OpsPerSecond,
        Metric::MibPerSecond,
        Metric::Mean,
        Metric::P50,
        Metric::P99,
        Metric::P999,
        Metric::Max,
    ];
    let spread = (rounds > 1).then_some("spread");
    numbers.set_header(columns.iter().map(|m| m.title()).chain(spread).map(right));
    let values = columns.iter().map(|metric| show(entry.get(*metric)));
    numbers.add_row(values.chain(spread.map(|_| percent(entry.spread))).map(right));
    let mut text = format!("{numbers}\n");

    // Values that belong together are shown from the last round only.
    let Some(sample) = entry.rounds.last() else { return text };
    let whose = if rounds > 1 { "last round: " } else { "" };
    text.push_str(&format!("\n{whose}processor time and context switches\n\n{}\n", processes(sample)));
    if let Some(swapped) = sample.swapped {
        text.push_str(&format!(
            "\n{swapped} of {} compare-and-swaps took place; the words agree\n",
            sample.ops
        ));
    }
    if let Some(gaps) = sample.gaps {
        text.push_str(&format!("\n{gaps} gaps, each of which is a voluntary switch of the client\n"));
    }
    text.push_str(&format!(
        "\n{whose}from submission to completion in the runtime\n\n{}\n",
        latencies(sample)
    ));
    text.push_str(&format!(
        "\n{whose}counters of the runtime; at most {} in flight in a session\n\n{}\n",
        byte_size::show(sample.in_flight_peak),
        counters(sample)
    ));
    text
}

fn processes(sample: &Sample) -> Table {
    let mut table = new_table();
    let head = ["", "CPU %", "user s", "system s", "us/op", "voluntary", "involuntary", "switches/op"];
    table.set_header(head.map(right));
    let client = if sample.server.is_some() { "client" } else { "client and servers" };
    for (name, usage) in [(client, Some(&sample.client)), ("servers", sample.server.as_ref())] {
        let Some(usage) = usage else { continue };
        let Usage { user_us, system_us, voluntary_switches, involuntary_switches } = *usage;
        let per_op = |value: f64| show((sample.ops > 0).then(|| value / sample.ops as f64));
        table.add_row(
            [
                name.to_owned(),
                show(statistics::ratio(usage.cpu().as_secs_f64() * 100.0, sample.host_seconds)),
                format!("{:.3}", user_us as f64 / 1e6),
                format!("{:.3}", system_us as f64 / 1e6),
                per_op((user_us + system_us) as f64),
                voluntary_switches.to_string(),
                involuntary_switches.to_string(),
                per_op(usage.switches() as f64),
            ]
            .map(right),
        );
    }
    table
}

/// Returns the runtime's latencies per kind of request.
fn latencies(sample: &Sample) -> Table {
    let mut table = new_table();
    table.set_header(["", "requests", "mean us", "p50 us", "p99 us", "p99.9 us", "max us"].map(right));
    for (kind, RuntimeLatency { count, latency }) in &sample.runtime_latency {
        let Latency { mean_us, p50_us, p99_us, p999_us, max_us } = *latency;
        let numbers = [mean_us, p50_us, p99_us, p999_us, max_us].map(|us| show(Some(us)));
        table.add_row([(*kind).to_owned(), count.to_string()].into_iter().chain(numbers).map(right));
    }
    table
}

/// Returns the counters that are not zero.
fn counters(sample: &Sample) -> Table {
    let mut table = new_table();
    table.set_header(["counter", "value", "per request"].map(right));
    for (name, value) in sample.counters.iter().filter(|(_, value)| **value > 0) {
        let each = (sample.ops > 0).then(|| *value as f64 / sample.ops as f64);
        table.add_row([name.clone(), value.to_string(), show(each)].map(right));
    }
    table
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".into(), |part| format!("{:.0} %", part * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn a_row_per_combination_and_no_column_without_a_value() {
        let text = render(&example());
        assert!(text.contains("| threads |       mode | IOPS | p99 us | spread |"), "{text}");
        assert!(text.contains("|       2 | hybrid <b> | 8000 |   3.00 |    0 % |"), "{text}");
        assert!(!text.contains("server CPU"), "{text}");
        assert!(text.contains("median 0.0 %, largest 0.0 %\n"), "{text}");
        assert!(text.starts_with("rdmabox-bench: a <title> on software providers\nA CPU, 2 cores"), "{text}");
        assert!(text.contains("The paper: something\n\nHere (software provider"), "{text}");
    }

    #[test]
    fn rounds_that_do_not_repeat_are_counted() {
        let mut report = example();
        report.results[1].spread = Some(0.031);
        assert!(spreads(&report).ends_with("largest 3.1 %; spread above 3 % in 1 of 4\n"));
        report.rounds = 1;
        assert_eq!(spreads(&report), "");
    }

    #[test]
    fn one_combination_at_length() {
        let mut report = example();
        (report.dimensions, report.experiment) = (Vec::new(), None);
        report.results.truncate(1);
        let text = render(&report);
        assert!(text.contains("|     1000 | 2000 |"), "{text}");
        // Servers inside the client process are not shown separately.
        assert!(text.contains("| client and servers |  50.0 |  0.150 |    0.100 | 250.0 |"), "{text}");
        assert!(text.contains("doorbells |   250 |       0.250 |"), "{text}");
    }
}
