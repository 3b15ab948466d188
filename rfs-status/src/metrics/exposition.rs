//! Values in the text format of Prometheus. No I/O, no locks, no clock.

use prometheus::{
    Encoder, TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};

use crate::{
    latency::{BUCKETS, Latency},
    logging::LogCounts,
    process::ProcessStatus,
};

/// The values of labels of a row, and the row's value.
pub type Row<'a> = (Vec<&'a str>, f64);

/// Metrics of a program, in the order in which they are added.
#[derive(Debug)]
pub struct Exposition {
    /// Beginning of each name, such as `rfs_server`.
    prefix: &'static str,
    families: Vec<MetricFamily>,
}

impl Exposition {
    /// Creates an exposition whose names begin with `prefix` and an underscore.
    pub fn new(prefix: &'static str) -> Exposition {
        Exposition { prefix, families: Vec::new() }
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, &[], [(Vec::new(), value)]);
    }

    /// Adds a gauge with a value for each row of labels.
    pub fn gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        rows: impl IntoIterator<Item = Row<'a>>,
    ) {
        let metric = |(values, value): Row<'a>| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            let mut metric = labelled(labels, &values);
            metric.set_gauge(gauge);
            metric
        };
        self.add(name, help, MetricType::GAUGE, rows.into_iter().map(metric).collect());
    }

    /// Adds a counter without labels. Its name ends with `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.counters(name, help, &[], [(Vec::new(), value)]);
    }

    /// Adds a counter with a value for each row of labels. Its name ends with `_total`.
    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        rows: impl IntoIterator<Item = Row<'a>>,
    ) {
        debug_assert!(name.ends_with("_total"), "{name}");
        let metric = |(values, value): Row<'a>| {
            let mut counter = Counter::default();
            counter.set_value(value);
            let mut metric = labelled(labels, &values);
            metric.set_counter(counter);
            metric
        };
        self.add(name, help, MetricType::COUNTER, rows.into_iter().map(metric).collect());
    }

    /// Adds a histogram in seconds for each combination of values of `labels`.
    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        rows: impl IntoIterator<Item = (Vec<&'a str>, Latency)>,
    ) {
        let metric = |(values, latency): (Vec<&'a str>, Latency)| {
            let mut metric = labelled(labels, &values);
            metric.set_histogram(histogram(&latency));
            metric
        };
        self.add(name, help, MetricType::HISTOGRAM, rows.into_iter().map(metric).collect());
    }

    /// Adds the metrics that all programs have.
    pub fn program(&mut self, version: &str, process: &ProcessStatus, log: &LogCounts) {
        self.gauges("info", "Version of the program.", &["version"], [(vec![version], 1.0)]);
        self.gauge("uptime_seconds", "Time since the start.", process.uptime_seconds);
        self.counter("cpu_seconds_total", "Processor time of all threads.", process.cpu_seconds);
        let bytes = process.resident_bytes as f64;
        self.gauge("resident_memory_bytes", "Resident memory, with shared memory.", bytes);
        let bytes = process.shared_bytes as f64;
        self.gauge("shared_memory_bytes", "Part of the resident memory that is shared memory.", bytes);
        self.gauge("threads", "Number of threads.", process.threads as f64);
        self.gauge("open_descriptors", "Number of open descriptors.", process.descriptors as f64);
        self.counters(
            "log_messages_total",
            "Warnings and errors of the log.",
            &["level"],
            [(vec!["error"], log.errors as f64), (vec!["warning"], log.warnings as f64)],
        );
    }

    /// Returns the text.
    pub fn encode(&self) -> String {
        let mut text = Vec::new();
        if let Err(e) = TextEncoder::new().encode(&self.families, &mut text) {
            log::error!("cannot write the metrics: {e}");
        }
        String::from_utf8(text).unwrap_or_default()
    }

    fn add(&mut self, name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) {
        // A family without rows has no place in the format.
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(format!("{}_{name}", self.prefix));
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.families.push(family);
    }
}

/// Returns a metric with these labels, and no value.
fn labelled(names: &[&str], values: &[&str]) -> Metric {
    debug_assert_eq!(names.len(), values.len());
    let pair = |(name, value): (&&str, &&str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    let mut metric = Metric::default();
    metric.set_label(names.iter().zip(values).map(pair).collect());
    metric
}

/// Returns a histogram. The format adds the bucket of all durations.
fn histogram(latency: &Latency) -> Histogram {
    let bucket = |(bound, count): (&f64, &u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(*count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_sample_count(latency.count);
    histogram.set_sample_sum(latency.sum_seconds);
    histogram.set_bucket(BUCKETS.iter().zip(&latency.counts_up_to).map(bucket).collect());
    histogram
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_text_has_the_format_of_prometheus() {
        let mut metrics = Exposition::new("rfs_test");
        metrics.gauges("size_bytes", "Size.", &["export"], [(vec!["a\"b\n"], 4096.0), (vec!["c"], 0.5)]);
        metrics.counter("requests_total", "Requests.", 7.0);
        metrics.gauges("nothing", "No rows.", &["export"], []);
        let up_to = |limit: Duration| if limit < Duration::from_millis(500) { 1 } else { 4 };
        let latency = Latency::new((4, Duration::from_secs(2)), |_| Duration::from_millis(500), up_to);
        metrics.histograms("latency_seconds", "Latency.", &["kind"], [(vec!["read"], latency)]);
        let text = metrics.encode();
        let (head, buckets) = text.split_at(text.find("rfs_test_latency_seconds_bucket").unwrap());
        assert_eq!(
            head,
            "# HELP rfs_test_size_bytes Size.\n\
             # TYPE rfs_test_size_bytes gauge\n\
             rfs_test_size_bytes{export=\"a\\\"b\\n\"} 4096\n\
             rfs_test_size_bytes{export=\"c\"} 0.5\n\
             # HELP rfs_test_requests_total Requests.\n\
             # TYPE rfs_test_requests_total counter\n\
             rfs_test_requests_total 7\n\
             # HELP rfs_test_latency_seconds Latency.\n\
             # TYPE rfs_test_latency_seconds histogram\n"
        );
        let lines: Vec<&str> = buckets.lines().collect();
        assert_eq!(lines.len(), BUCKETS.len() + 3);
        for line in [
            "rfs_test_latency_seconds_bucket{kind=\"read\",le=\"0.000001\"} 1",
            "rfs_test_latency_seconds_bucket{kind=\"read\",le=\"0.2\"} 1",
            "rfs_test_latency_seconds_bucket{kind=\"read\",le=\"0.5\"} 4",
            "rfs_test_latency_seconds_bucket{kind=\"read\",le=\"10\"} 4",
            "rfs_test_latency_seconds_bucket{kind=\"read\",le=\"+Inf\"} 4",
            "rfs_test_latency_seconds_sum{kind=\"read\"} 2",
            "rfs_test_latency_seconds_count{kind=\"read\"} 4",
        ] {
            assert!(lines.contains(&line), "{line}: {lines:?}");
        }
    }
}
