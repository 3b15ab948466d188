//! The table of a figure: a row for each place on the x axis, a column for each line.
//!
//! # Concurrency
//! Plain values.

use serde::Serialize;

use super::definition::{Figure, Point};
use crate::{peer::System, run::Sample};

/// A measured point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// Where it was measured: shm, tcp, or a modelled card.
    pub(crate) device: String,
    pub(crate) point: Point,
    /// Requests per second of all client threads, the median of the rounds.
    pub(crate) rate: f64,
    /// Percentiles of the latency in microseconds.
    pub(crate) latencies: [f64; PERCENTS.len()],
    pub(crate) mean_us: f64,
    /// READs per fetched reply that did not come too early.
    pub(crate) reads_per_reply: f64,
    /// READs per request that came too early.
    pub(crate) early_reads: f64,
}

/// The percentiles of Fig. 5.
const PERCENTS: [f64; 7] = [5.0, 15.0, 50.0, 90.0, 95.0, 99.0, 99.9];

impl Outcome {
    /// Returns the median round of a point.
    pub(crate) fn of_rounds(device: &str, point: &Point, mut rounds: Vec<Sample>) -> Option<Outcome> {
        rounds.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
        let sample = rounds.get(rounds.len() / 2)?;
        Some(Outcome {
            device: device.into(),
            point: point.clone(),
            rate: sample.rate(),
            latencies: PERCENTS.map(|percent| sample.percentile(percent)),
            mean_us: sample.mean(),
            reads_per_reply: sample.reads_per_reply(),
            early_reads: sample.early_reads(),
        })
    }

    /// Returns the line of the figure that the point belongs to.
    fn line(&self) -> String {
        match self.point.figure {
            Figure::Fig8 => format!("{}, F for {}", self.point.system.name(), self.point.fetched_value),
            _ => self.point.system.name().to_owned(),
        }
    }
}

/// The results of a figure on a device.
#[derive(Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a [Outcome]);

impl Table<'_> {
    /// Returns the text for a terminal.
    pub(crate) fn text(&self) -> String {
        let Some(first) = self.0.first() else { return String::new() };
        let figure = first.point.figure;
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        if figure == Figure::Fig5 {
            self.percentiles(&mut table)
        } else {
            self.rates(&mut table)
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
        let threads = if figure == Figure::Fig4 {
            String::new()
        } else {
            format!(", {} client threads", first.point.threads)
        };
        format!("{} ({}{threads})\n{table}\n", figure.title(), first.device)
    }

    fn rates(&self, table: &mut comfy_table::Table) {
        let mut lines: Vec<String> = Vec::new();
        let mut places: Vec<&str> = Vec::new();
        for outcome in self.0 {
            let line = outcome.line();
            if !lines.contains(&line) {
                lines.push(line);
            }
            if !places.contains(&outcome.point.x.as_str()) {
                places.push(&outcome.point.x);
            }
        }
        let at = |place: &str, line: &str| {
            self.0.iter().find(|outcome| outcome.point.x == place && outcome.line() == line)
        };
        let mut header = vec![String::new()];
        header.extend(lines.iter().map(|line| format!("{line}, k/s")));
        // A figure of one system has nothing to compare.
        let compares = lines.iter().any(|line| line == System::ServerReply.name());
        header.extend(compares.then(|| "fetched / sent".to_owned()));
        let compares_writes = lines.iter().any(|line| line == System::ServerWrite.name());
        header.extend(compares_writes.then(|| "fetched / written".to_owned()));
        header.extend(["READs per reply", "early READs"].map(|what| format!("{what}, {}", lines[0])));
        table.set_header(header);
        for place in places {
            let mut row = vec![place.to_owned()];
            row.extend(lines.iter().map(|line| {
                at(place, line).map_or_else(String::new, |found| format!("{:.1}", found.rate / 1000.0))
            }));
            let of = |system: System| at(place, system.name()).map(|found| found.rate);
            let ratio = |other: System| {
                let ratio = of(System::Jakiro).zip(of(other)).map(|(fetched, other)| fetched / other);
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
            };
            row.extend(compares.then(|| ratio(System::ServerReply)));
            row.extend(compares_writes.then(|| ratio(System::ServerWrite)));
            let cells =
                |of: &Outcome| [of.reads_per_reply, of.early_reads].map(|value| format!("{value:.3}"));
            row.extend(at(place, &lines[0]).map_or_else(Default::default, cells));
            table.add_row(row);
        }
    }

    fn percentiles(&self, table: &mut comfy_table::Table) {
        let mut header = vec!["percent".to_owned()];
        header.extend(self.0.iter().map(|outcome| format!("{}, us", outcome.line())));
        table.set_header(header);
        for (i, percent) in PERCENTS.iter().enumerate() {
            let mut row = vec![percent.to_string()];
            row.extend(self.0.iter().map(|outcome| format!("{:.2}", outcome.latencies[i])));
            table.add_row(row);
        }
        let mut row = vec!["mean".to_owned()];
        row.extend(self.0.iter().map(|outcome| format!("{:.2}", outcome.mean_us)));
        table.add_row(row);
    }
}
