//! The output. No I/O, no locks, no clock.

use comfy_table::Cell as Field;
use measure::statistics::{median, ratio};

use super::{
    cli::Bench,
    run::Cell,
    step::{Needed, STEPS, Step},
};
use crate::markdown::{right, table};

/// The reference peer.
const PEER: &str = "glusterfs";

/// A row: a step, and the cells of the targets.
struct Row<'a> {
    step: Step,
    /// Cells by target.
    cells: Vec<Option<&'a Cell>>,
}

fn rows<'a>(cells: &'a [Cell], targets: usize) -> Vec<Row<'a>> {
    STEPS
        .into_iter()
        .map(|step| Row {
            step,
            cells: (0..targets)
                .map(|target| cells.iter().find(|cell| cell.target == target && cell.step == step))
                .collect(),
        })
        .filter(|row| row.cells.iter().any(Option::is_some))
        .collect()
}

fn seconds(cell: &Cell) -> Option<f64> {
    median(&cell.seconds)
}

fn rate(cell: &Cell) -> Option<f64> {
    seconds(cell).and_then(|seconds| ratio(cell.files as f64, seconds))
}

/// Returns the value of a requirement and its verdict. Returns `None` without a requirement or a
/// reference.
fn reached(row: &Row<'_>, names: &[&str], target: usize) -> Option<(String, bool)> {
    let cell = row.cells[target]?;
    match row.step.needed(names[target])? {
        Needed::Within(limit) => {
            let took = seconds(cell)?;
            Some((format!("{took:.2} s of {limit} s"), took <= limit))
        }
        Needed::NoCall => {
            let calls: u64 = cell.asked.as_ref()?.values().sum();
            Some((format!("{calls} calls"), calls == 0))
        }
        Needed::Times(times) => {
            let peer = names.iter().position(|name| *name == PEER)?;
            let factor = ratio(rate(cell)?, rate(row.cells[peer]?)?)?;
            Some((format!("{factor:.1}x of {times}x"), factor >= times))
        }
    }
}

/// Describes the measurement, the machine and the time.
pub fn head(bench: &Bench, machine: &str, commit: &str, began: &str) -> String {
    let Bench { files, listed, threads, rounds, .. } = bench;
    format!(
        "{files} files, {listed} listed, {threads} thread(s), {rounds} round(s), medians\n{machine}\ncommit {commit}, {began}"
    )
}

/// Returns the results as Markdown, and true if all requirements are met.
pub fn render(cells: &[Cell], names: &[&str]) -> (String, bool) {
    let rows = rows(cells, names.len());
    let mut all = true;
    let mut rates = table(["files per second"].into_iter().chain(names.iter().copied()));
    let mut compared = table(["reached"].into_iter().chain(names.iter().copied()));
    let mut asked = table(["calls per file"].into_iter().chain(names.iter().copied()));
    let (mut any_compared, mut any_asked) = (false, false);
    for row in &rows {
        let line = |values: Vec<String>| {
            std::iter::once(Field::new(row.step.name()))
                .chain(values.into_iter().map(right))
                .collect::<Vec<_>>()
        };
        rates.add_row(line(row.cells.iter().map(|cell| show(cell.and_then(rate))).collect()));
        let verdicts: Vec<_> = (0..names.len()).map(|target| reached(row, names, target)).collect();
        if verdicts.iter().any(Option::is_some) {
            any_compared = true;
            all &= verdicts.iter().flatten().all(|(_, enough)| *enough);
            let text = |verdict: &Option<(String, bool)>| match verdict {
                None => String::new(),
                Some((text, true)) => text.clone(),
                Some((text, false)) => format!("{text}: below"),
            };
            compared.add_row(line(verdicts.iter().map(text).collect()));
        }
        if row.cells.iter().flatten().any(|cell| cell.asked.is_some()) {
            any_asked = true;
            asked.add_row(line(
                row.cells.iter().map(|cell| cell.and_then(calls).unwrap_or_default()).collect(),
            ));
        }
    }
    let mut text = format!("{rates}\n");
    for (table, any) in [(&compared, any_compared), (&asked, any_asked)] {
        if any {
            text.push_str(&format!("\n{table}\n"));
        }
    }
    (text, all)
}

fn calls(cell: &Cell) -> Option<String> {
    let asked = cell.asked.as_ref()?;
    let mut by_count: Vec<_> = asked.iter().collect();
    by_count.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
    let each = |(name, count): &(&String, &u64)| format!("{name} {:.2}", **count as f64 / cell.files as f64);
    // Rare requests, for example of the mount itself, do not count as requests of the files.
    let shown: Vec<String> =
        by_count.iter().filter(|(_, n)| **n * 200 >= cell.files as u64).map(each).collect();
    let total: u64 = asked.values().sum();
    Some(if shown.is_empty() { format!("{total} in all") } else { shown.join(", ") })
}

fn show(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::metadata::cli::Cli;

    fn cell(target: usize, step: usize, files: usize, seconds: &[f64], asked: &[(&str, u64)]) -> Cell {
        let asked = asked.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Cell { target, step: STEPS[step], files, seconds: seconds.to_vec(), asked: Some(asked) }
    }

    #[test]
    fn the_head_describes_the_rates() {
        let bench = Cli::try_parse_from(["x", "--quick"]).unwrap().bench.settled();
        assert_eq!(
            head(&bench, "a machine", "0123456789ab", "2026-11-21T10:00:00Z"),
            "1000 files, 5000 listed, 1 thread(s), 1 round(s), medians\na machine\ncommit 0123456789ab, 2026-11-21T10:00:00Z"
        );
    }

    #[test]
    fn rates_are_medians_and_compared_with_the_peer() {
        let names = ["shm", "tcp", "glusterfs"];
        let mut cells = vec![
            cell(0, 0, 1000, &[9.0, 0.1, 0.1], &[("create", 1000), ("close", 4)]),
            cell(1, 0, 1000, &[0.2], &[("create", 2000)]),
            cell(2, 0, 1000, &[1.6], &[]),
            cell(0, 2, 1000, &[0.5], &[("statfs", 3)]),
            cell(0, 8, 1000, &[1.5], &[]),
        ];
        cells[2].asked = None;
        let (text, all) = render(&cells, &names);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let fields = |name: &str, nth: usize| -> Vec<String> {
            let rows = lines.iter().map(|line| line.split('|').skip(1).map(str::trim).collect::<Vec<_>>());
            let row = rows.filter(|row| row.first() == Some(&name)).nth(nth).unwrap();
            row[1..4].iter().map(|field| (*field).to_owned()).collect()
        };
        assert_eq!(fields("create, one directory", 0), ["10000", "5000", "625"]);
        assert_eq!(fields("create, one directory", 1), ["16.0x of 15x", "8.0x of 8x", ""]);
        assert_eq!(fields("create, one directory", 2), ["create 1.00", "create 2.00", ""]);
        // These requests do not belong to the files, but they are requests.
        assert_eq!(fields("stat again, one directory", 0), ["2000", "-", "-"]);
        assert_eq!(fields("stat again, one directory", 1), ["3 calls: below", "", ""]);
        assert_eq!(fields("stat again, one directory", 2), ["3 in all", "", ""]);
        assert_eq!(fields("ls -l", 1), ["1.50 s of 2 s", "", ""]);
        assert!(!all);
        cells[3].asked = Some(Default::default());
        assert!(render(&cells, &names).1);
        cells[1].seconds = vec![0.3];
        let (text, all) = render(&cells, &names);
        assert!(!all && text.contains("5.3x of 8x: below"), "{text}");
    }
}
