//! Results as data, and their three forms. Pure but for [`write()`].

pub mod chart;
pub mod table;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use measure::machine::Machine;
use serde::Serialize;

use crate::{Result, load::Load, metric::Metric, run::Sample, runner::Measured};

/// Version of the JSON form.
pub const FORMAT: u32 = 1;

/// What stands in every output.
pub const SOFTWARE: &str = "software provider: shapes are reported, no figure of RDMA hardware is claimed";

/// A whole result. The JSON form is this, field by field.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// What was measured, with the words "software provider".
    pub title: String,
    /// Always true: neither provider is a network card.
    pub software_provider: bool,
    /// When it began, RFC 3339, UTC.
    pub began: String,
    /// Commit that the program was built from.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// Rounds.
    pub rounds: u32,
    /// What is varied; the first is the x axis of charts.
    pub dimensions: Vec<String>,
    /// The experiment, if it is one.
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
    /// What the paper shows.
    pub paper: String,
    /// What this run shows.
    pub measured: Vec<String>,
}

/// One combination.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Labels, one per dimension.
    pub coordinates: Vec<String>,
    /// Everything that was set.
    pub options: Load,
    /// Median of every metric over the rounds.
    pub median: BTreeMap<&'static str, f64>,
    /// `(largest - smallest) / median` of the requests per second.
    pub spread: Option<f64>,
    /// What each round measured.
    pub rounds: Vec<Sample>,
}

impl Entry {
    /// A metric, over all rounds.
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
    /// The entry at a place.
    pub fn at(&self, coordinates: &[&str]) -> Option<&Entry> {
        self.results.iter().find(|entry| entry.coordinates == coordinates)
    }

    /// The labels of a dimension, in order.
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

    /// What stands for each line of a chart: the labels of all dimensions but the first.
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

    /// The entries of a line, in the order of the first dimension.
    pub fn line(&self, labels: &[&str]) -> Vec<&Entry> {
        self.results.iter().filter(|entry| entry.coordinates.iter().skip(1).eq(labels)).collect()
    }

    /// The JSON form.
    pub fn json(&self) -> String {
        // Numbers, strings and maps with string keys: nothing that can fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Writes JSON, and a chart where there is something to draw, into a directory, which is created.
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
