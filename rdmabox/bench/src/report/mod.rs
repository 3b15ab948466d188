//! Results as data and in three output formats. No I/O except [`write()`], no locks, no clock.

pub mod chart;
pub mod metric;
mod row;
pub mod table;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use measure::machine::Machine;
use serde::Serialize;

use crate::{Result, load::Load, run::Sample, sweep::runner::Measured};
use metric::Metric;
pub use row::{Basis, Beside, Row, Shape};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// Note in the output of software providers.
const SOFTWARE: &str = "software provider: shapes are reported, no figure of RDMA hardware is claimed";
/// Note in the output of a modelled card.
const MODEL: &str = "a modelled card: times and rates are the model's, processor time and switches are this machine's, and no \
                     card was measured";
/// Note in the output of devices.
const DEVICE: &str =
    "an RDMA device; if it is Soft-RoCE, processors do its work, and no figure of hardware is claimed";

/// A complete result. The JSON output has the same fields.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Title, with the words "software provider" or "RDMA".
    pub title: String,
    /// True unless RDMA was measured: no other provider is a network card.
    pub software_provider: bool,
    /// Start time, RFC 3339, UTC.
    pub began: String,
    /// Commit that the program was built from.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// Rounds.
    pub rounds: u32,
    /// Names of the varied parameters; the first is the x axis of charts.
    pub dimensions: Vec<String>,
    /// The modelled card and its dilation, if the run used one.
    pub model: Option<String>,
    /// The experiment, if the run is one.
    pub experiment: Option<About>,
    /// One per combination.
    pub results: Vec<Entry>,
    /// Columns of the table.
    #[serde(skip)]
    pub columns: Vec<Metric>,
    /// Panels of the chart.
    #[serde(skip)]
    pub panels: Vec<Metric>,
}

/// An experiment of the paper.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// Its name.
    pub name: String,
    /// The parameters that it varies and its subject.
    pub what: String,
    /// The result of the paper.
    pub paper: String,
    /// The result of this run.
    pub measured: Vec<String>,
    /// The result of this run beside the paper's, on a modelled card.
    pub rows: Vec<Row>,
    /// The provider whose values are beside those of the card.
    pub beside: Option<OtherProvider>,
}

/// A run with the loads of the card over a provider, without the card.
#[derive(Clone, Debug, Serialize)]
pub struct OtherProvider {
    /// Its name.
    pub name: String,
    /// One per combination.
    pub results: Vec<Entry>,
}

/// The result of one combination.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Labels, one per dimension.
    pub coordinates: Vec<String>,
    /// All options.
    pub options: Load,
    /// Median of every metric over the rounds.
    pub median: BTreeMap<&'static str, f64>,
    /// `(largest - smallest) / median` of the requests per second.
    pub spread: Option<f64>,
    /// Samples of the rounds.
    pub rounds: Vec<Sample>,
}

impl Entry {
    /// Returns the median of a metric over all rounds.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.median.get(metric.key()).copied()
    }
}

impl From<Measured> for Entry {
    fn from(measured: Measured) -> Self {
        let Measured { case, samples } = measured;
        let median = |metric: Metric| Some((metric.key(), metric.median(&samples)?));
        Entry {
            coordinates: case.coordinates,
            options: case.load,
            median: Metric::ALL.into_iter().filter_map(median).collect(),
            spread: Metric::OpsPerSecond.spread(&samples),
            rounds: samples,
        }
    }
}

impl Report {
    /// Returns a note on the validity of the figures.
    pub fn caveat(&self) -> &'static str {
        match (&self.model, self.software_provider) {
            (Some(_), _) => MODEL,
            (None, true) => SOFTWARE,
            (None, false) => DEVICE,
        }
    }

    /// Returns the entry at the given coordinates.
    pub fn at(&self, coordinates: &[&str]) -> Option<&Entry> {
        self.results.iter().find(|entry| entry.coordinates == coordinates)
    }

    /// Returns the labels of a dimension, in order.
    pub fn labels(&self, dimension: usize) -> Vec<&str> {
        let mut labels: Vec<&str> = Vec::new();
        for entry in &self.results {
            if let Some(label) = entry.coordinates.get(dimension)
                && !labels.contains(&label.as_str())
            {
                labels.push(label);
            }
        }
        labels
    }

    /// Returns the labels of each chart line: those of all dimensions except the first.
    pub fn labels_of_lines(&self) -> Vec<Vec<&str>> {
        let mut lines: Vec<Vec<&str>> = Vec::new();
        for entry in &self.results {
            let line: Vec<&str> = entry.coordinates.iter().skip(1).map(String::as_str).collect();
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }

    /// Returns the entries of a line, in the order of the first dimension.
    pub fn line(&self, labels: &[&str]) -> Vec<&Entry> {
        self.results.iter().filter(|entry| entry.coordinates.iter().skip(1).eq(labels)).collect()
    }

    /// Returns the JSON output.
    pub fn json(&self) -> String {
        // The data is numbers, strings and maps with string keys, so serialization cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Creates a directory and writes JSON and, if there are dimensions, a chart into it.
pub fn write(report: &Report, dir: &Path, stem: &str) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).map_err(measure::Error::io(dir))?;
    let mut written = Vec::new();
    let mut put = |extension: &str, text: &str| {
        let path = dir.join(format!("{stem}.{extension}"));
        fs::write(&path, text).map_err(measure::Error::io(&path))?;
        written.push(path);
        Ok::<(), measure::Error>(())
    };
    put("json", &report.json())?;
    if !report.dimensions.is_empty() {
        put("svg", &chart::svg(report)?)?;
    }
    Ok(written)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        load::OpKind,
        report::metric::tests::sample,
        sweep::{matrix, settings::Settings},
    };

    /// Returns a report of two threads times two modes. A mode and the title need escaping.
    pub(crate) fn example() -> Report {
        let sweep = matrix::parse_sweep("threads=1,2 mode=single,hybrid").unwrap();
        let mut matrix = matrix::Matrix::new(OpKind::Write, &Settings::default(), &sweep, &[]).unwrap();
        for case in &mut matrix.cases {
            if case.coordinates[1] == "hybrid" {
                case.coordinates[1] = "hybrid <b>".into();
            }
        }
        let cases = matrix.cases.into_iter().zip([1000, 2000, 2000, 4000]);
        let measured = cases.map(|(case, ops)| Measured { case, samples: vec![sample(ops), sample(ops)] });
        Report {
            format: FORMAT,
            title: "rdmabox-bench: a <title> on software providers".into(),
            software_provider: true,
            began: "2024-01-02T03:04:05Z".into(),
            commit: "0123456789ab".into(),
            machine: Machine::example(),
            command: "rdmabox-bench write".into(),
            rounds: 2,
            dimensions: matrix.dimensions,
            model: None,
            experiment: Some(About {
                name: "fig0".into(),
                what: "nothing".into(),
                paper: "something".into(),
                measured: vec!["little".into()],
                rows: Vec::new(),
                beside: None,
            }),
            results: measured.map(Entry::from).collect(),
            columns: vec![Metric::OpsPerSecond, Metric::P99, Metric::ServerCpu],
            panels: vec![Metric::OpsPerSecond, Metric::P99, Metric::ServerCpu],
        }
    }

    #[test]
    fn entries_are_found_by_place_and_by_line() {
        let report = example();
        assert_eq!(report.labels(0), ["1", "2"]);
        assert_eq!(report.labels_of_lines(), [["single"], ["hybrid <b>"]]);
        let iops = |entry: &Entry| entry.get(Metric::OpsPerSecond);
        assert_eq!(report.at(&["2", "single"]).and_then(iops), Some(4000.0));
        assert_eq!(
            report.line(&["hybrid <b>"]).into_iter().map(iops).collect::<Vec<_>>(),
            [Some(4000.0), Some(8000.0)]
        );
        assert!(report.at(&["3", "single"]).is_none() && report.line(&["merge"]).is_empty());
    }

    #[test]
    fn files_are_written_and_a_single_load_has_no_chart() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/results");
        let mut report = example();
        let written = write(&report, &out, "run").unwrap();
        assert_eq!(written, [out.join("run.json"), out.join("run.svg")]);
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&written[0]).unwrap()).unwrap();
        assert_eq!(json["results"][3]["median"]["ops_per_second"], 8000.0);
        assert_eq!(json["results"][3]["coordinates"][1], "hybrid <b>");
        report.dimensions.clear();
        assert_eq!(write(&report, &out, "one").unwrap(), [out.join("one.json")]);
    }
}
