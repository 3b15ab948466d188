//! The output. No I/O, no locks, no clock.

use comfy_table::Cell as Field;

use super::{
    meter::Taken,
    step::{Needed, STEPS, Step},
};
use crate::{
    harness::Series,
    report::markdown::{right, table},
    sample::ratio,
};

/// The reference peer.
const PEER: &str = "glusterfs";

/// A row: a step, and the medians of the targets.
struct Row<'a> {
    step: Step,
    /// Medians by target.
    medians: Vec<Option<&'a Taken>>,
}

fn rows<'a>(series: &'a [Series<Step, Taken>], names: &[&str]) -> Vec<Row<'a>> {
    let row = |step| {
        let median = |name: &&str| {
            let found = series.iter().find(|series| series.target == *name && series.column == step);
            found.map(|series| &series.median)
        };
        Row { step, medians: names.iter().map(median).collect() }
    };
    STEPS.into_iter().map(row).filter(|row| row.medians.iter().any(Option::is_some)).collect()
}

fn rate(median: &Taken) -> Option<f64> {
    ratio(median.files as f64, median.seconds)
}

/// Returns the value of a requirement and its verdict. Returns `None` without a requirement or a
/// reference.
fn reached(row: &Row<'_>, names: &[&str], target: usize) -> Option<(String, bool)> {
    let median = row.medians[target]?;
    match row.step.needed(names[target])? {
        Needed::Within(limit) => {
            let took = median.seconds;
            Some((format!("{took:.2} s of {limit} s"), took <= limit))
        }
        Needed::NoCall => {
            let calls: u64 = median.asked.as_ref()?.values().sum();
            Some((format!("{calls} calls"), calls == 0))
        }
        Needed::Times(times) => {
            let peer = names.iter().position(|name| *name == PEER)?;
            let factor = ratio(rate(median)?, rate(row.medians[peer]?)?)?;
            Some((format!("{factor:.1}x of {times}x"), factor >= times))
        }
    }
}

/// Returns the results as Markdown, and true if all requirements are met.
pub fn render(series: &[Series<Step, Taken>], names: &[&str]) -> (String, bool) {
    let rows = rows(series, names);
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
        rates.add_row(line(row.medians.iter().map(|median| show(median.and_then(rate))).collect()));
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
        if row.medians.iter().flatten().any(|median| median.asked.is_some()) {
            any_asked = true;
            asked.add_row(line(
                row.medians.iter().map(|median| median.and_then(calls).unwrap_or_default()).collect(),
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

fn calls(median: &Taken) -> Option<String> {
    let asked = median.asked.as_ref()?;
    let mut by_count: Vec<_> = asked.iter().collect();
    by_count.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
    let each =
        |(name, count): &(&String, &u64)| format!("{name} {:.2}", **count as f64 / median.files as f64);
    // Rare requests, for example of the mount itself, do not count as requests of the files.
    let shown: Vec<String> =
        by_count.iter().filter(|(_, n)| **n * 200 >= median.files as u64).map(each).collect();
    let total: u64 = asked.values().sum();
    Some(if shown.is_empty() { format!("{total} in all") } else { shown.join(", ") })
}

fn show(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rows = Series<Step, Taken>;

    fn series(target: &str, step: usize, files: usize, seconds: &[f64], asked: &[(&str, u64)]) -> Rows {
        let asked = asked.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let round = |seconds: &f64| Taken { files, seconds: *seconds, asked: Some(Clone::clone(&asked)) };
        Series::new(target, STEPS[step], seconds.iter().map(round).collect())
    }

    #[test]
    fn rates_are_medians_and_compared_with_the_peer() {
        let names = ["shm", "tcp", "glusterfs"];
        let mut all_series = vec![
            series("shm", 0, 1000, &[9.0, 0.1, 0.1], &[("create", 1000), ("close", 4)]),
            series("tcp", 0, 1000, &[0.2], &[("create", 2000)]),
            series("glusterfs", 0, 1000, &[1.6], &[]),
            series("shm", 2, 1000, &[0.5], &[("statfs", 3)]),
            series("shm", 8, 1000, &[1.5], &[]),
        ];
        all_series[2].median.asked = None;
        let (text, all) = render(&all_series, &names);
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
        all_series[3].median.asked = Some(Default::default());
        assert!(render(&all_series, &names).1);
        all_series[1].median.seconds = 0.3;
        let (text, all) = render(&all_series, &names);
        assert!(!all && text.contains("5.3x of 8x: below"), "{text}");
    }
}
