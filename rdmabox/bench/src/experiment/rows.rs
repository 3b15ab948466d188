//! The results of the modelled card beside the paper's. No I/O, no locks, no clock.

use crate::report::{Entry, Report, Row, metric::Metric};

/// Relative noise that a comparison allows.
const NOISE: f64 = 0.03;

fn row(what: impl Into<String>, paper: &str, model: String, basis: &'static str, holds: bool) -> Row {
    Row { what: what.into(), paper: paper.into(), model, basis, holds }
}

fn predicted(what: impl Into<String>, paper: &str, model: String, holds: bool) -> Row {
    row(what, paper, model, "predicted", holds)
}

fn calibrated(what: impl Into<String>, paper: &str, model: String, holds: bool) -> Row {
    row(what, paper, model, "calibrated", holds)
}

/// Returns a relative change as a percentage.
fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn value(report: &Report, place: &[&str], metric: Metric) -> f64 {
    report.at(place).and_then(|entry| entry.get(metric)).unwrap_or(f64::NAN)
}

fn ratio(report: &Report, metric: Metric, of: &[&str], over: &[&str]) -> f64 {
    value(report, of, metric) / value(report, over, metric)
}

/// The threads and the IOPS of a line's best entry, and the last entry.
struct Peak<'a> {
    threads: &'a str,
    iops: f64,
    mean: f64,
    last: &'a Entry,
}

fn iops(entry: &Entry) -> f64 {
    entry.get(Metric::OpsPerSecond).unwrap_or(0.0)
}

fn peak<'a>(report: &'a Report, line: &[&str]) -> Option<Peak<'a>> {
    let entries = report.line(line);
    let best = entries.iter().copied().max_by(|a, b| iops(a).total_cmp(&iops(b)))?;
    let (threads, last) = (best.coordinates.first()?.as_str(), *entries.last()?);
    Some(Peak { threads, iops: iops(best), mean: best.get(Metric::Mean).unwrap_or(f64::NAN), last })
}

/// Threads at the peak, and how far IOPS fall behind it.
pub(super) fn fig1(report: &Report) -> Vec<Row> {
    let Some(peak) = peak(report, &[]) else { return Vec::new() };
    let last = iops(peak.last) / peak.iops;
    let latency = peak.last.get(Metric::Mean).unwrap_or(f64::NAN) / peak.mean;
    vec![
        calibrated("threads at the peak", "4", peak.threads.into(), peak.threads == "4"),
        calibrated("IOPS with 16 threads over the peak", "less", percent(last), last < 1.0 - NOISE),
        predicted("mean latency with 16 threads over the peak's", "more", percent(latency), latency > 1.0),
    ]
}

/// Later and higher peak with four queue pairs; the window.
pub(super) fn fig8(report: &Report) -> Vec<Row> {
    let lines = report.labels_of_lines();
    let peaks: Option<Vec<Peak<'_>>> = lines.iter().map(|line| peak(report, line)).collect();
    let Some([one, one_window, four, four_window, hybrid, hybrid_window]) =
        peaks.and_then(|peaks| <[Peak<'_>; 6]>::try_from(peaks).ok())
    else {
        return Vec::new();
    };
    let later = matches!(four.threads, "7" | "8");
    let mut rows = vec![
        calibrated("1 QP: threads at the peak", "4", one.threads.into(), one.threads == "4"),
        calibrated("4 QPs: threads at the peak", "7", four.threads.into(), later),
        predicted("4 QPs over 1 QP: best IOPS", "more", percent(four.iops / one.iops), four.iops > one.iops),
    ];
    let pairs = [("1 QP, single", one, one_window), ("4 QPs, single", four, four_window)];
    for (name, without, with) in pairs {
        let kept = iops(with.last) / without.iops;
        let what = format!("{name}: IOPS with 16 threads and the window over the peak without");
        rows.push(predicted(what, "not less", percent(kept), kept > 1.0 - NOISE));
        let best = with.iops / without.iops;
        let what = format!("{name}: best IOPS with the window over without");
        rows.push(predicted(what, "up to +29.9 %", percent(best), best > 1.0 - NOISE));
    }
    let best = hybrid_window.iops / hybrid.iops;
    let what = "4 QPs, hybrid: best IOPS with the window over without";
    rows.push(predicted(what, "up to +29.9 %", percent(best), best > 1.0 - NOISE));
    let all = iops(hybrid_window.last) / iops(hybrid.last);
    let what = "4 QPs, hybrid: IOPS with 16 threads, with the window over without";
    rows.push(predicted(what, "more", percent(all), all > 1.0 - NOISE));
    rows
}

/// The size from which registering is cheaper, between two measured sizes.
pub(super) fn fig5(report: &Report) -> Vec<Row> {
    let gain = |size: &str| {
        value(report, &[size, "pre"], Metric::Mean) - value(report, &[size, "dyn"], Metric::Mean)
    };
    let sizes = report.labels(0);
    let bytes = |size: &str| byte_size::parse(size).unwrap_or(0) as f64;
    let crossing = sizes.windows(2).find_map(|pair| {
        let (below, above) = (gain(pair[0]), gain(pair[1]));
        let part = -below / (above - below);
        (below < 0.0 && above >= 0.0).then(|| bytes(pair[0]) + part * (bytes(pair[1]) - bytes(pair[0])))
    });
    let text = crossing.map_or("none".into(), |at| format!("{:.0} KiB", at / 1024.0));
    let holds = crossing.is_some_and(|at| (at / 1024.0 / 928.0 - 1.0).abs() <= 2.0 * NOISE);
    vec![calibrated("registering is cheaper from", "928 KB", text, holds)]
}

/// Compares batching modes on every line.
fn modes(report: &Report, metric: Metric, pairs: &[(&str, &str, &str)], more_is_better: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in report.labels_of_lines() {
        let place = |mode| std::iter::once(mode).chain(line.iter().copied()).collect::<Vec<_>>();
        for (mode, over, paper) in pairs {
            let change = ratio(report, metric, &place(mode), &place(over));
            let holds = if more_is_better { change > 1.0 - NOISE } else { change < 1.0 + NOISE };
            let what = format!("{}: {mode} over {over}, {}", line.join(", "), metric.title());
            rows.push(predicted(what, paper, percent(change), holds));
        }
    }
    rows
}

/// Throughput of the batching modes.
pub(super) fn fig6(report: &Report) -> Vec<Row> {
    let pairs = [
        ("merge", "single", "+11.2 to +24.4 %"),
        ("hybrid", "single", "+15.7 to +47.7 %"),
        ("hybrid", "doorbell", "+7.5 to +22.2 %"),
        ("hybrid", "merge", "not less"),
    ];
    modes(report, Metric::OpsPerSecond, &pairs, true)
}

/// 99th percentiles of the batching modes.
pub(super) fn fig7(report: &Report) -> Vec<Row> {
    let pairs = [("merge", "single", "no more"), ("hybrid", "single", "no more")];
    modes(report, Metric::P99, &pairs, false)
}

/// Compares adaptive polling with the others at each value of the x axis.
fn adaptive(report: &Report, few: &[&str]) -> Vec<Row> {
    let name = report.dimensions.first().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for x in report.labels(0) {
        let over = |mode, metric| ratio(report, metric, &[x, "adaptive"], &[x, mode]);
        let busy = over("busy", Metric::OpsPerSecond);
        let (paper, least) = if few.contains(&x) { ("about the same", 0.95) } else { ("more", 1.0 + NOISE) };
        let what = format!("{name} {x}: adaptive over busy, IOPS");
        rows.push(predicted(what, paper, percent(busy), busy >= least));
        for mode in ["event-batch", "hybrid"] {
            let change = over(mode, Metric::OpsPerSecond);
            let what = format!("{name} {x}: adaptive over {mode}, IOPS");
            rows.push(predicted(what, "not less", percent(change), change > 1.0 - NOISE));
        }
        let (own, batch) = (
            value(report, &[x, "adaptive"], Metric::InterruptsPerOp),
            value(report, &[x, "event-batch"], Metric::InterruptsPerOp),
        );
        let what = format!("{name} {x}: interrupts per request, adaptive and event-batch");
        rows.push(predicted(what, "fewer", format!("{own:.3} and {batch:.3}"), own < batch));
        let cpu = over("busy", Metric::CardCpuPerOp);
        let what = format!("{name} {x}: adaptive over busy, processor time per request");
        rows.push(predicted(what, "less", percent(cpu), cpu < 1.0 + NOISE));
    }
    rows
}

/// Polling modes under bursts.
pub(super) fn fig2(report: &Report) -> Vec<Row> {
    adaptive(report, &["small", "medium", "large"])
}

/// Polling modes by peers. Up to four polling threads do not affect the paper's program.
pub(super) fn fig9(report: &Report) -> Vec<Row> {
    adaptive(report, &["1", "2", "4"])
}

/// Work requests of each mode, per request.
pub(super) fn table1(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in report.labels_of_lines() {
        let papers = match line.first() {
            Some(&"read") => [("merge", "0.87 (preMR), 0.83"), ("hybrid", "0.83"), ("doorbell", "1.00")],
            _ => [("merge", "0.88 (preMR), 0.92"), ("hybrid", "0.92"), ("doorbell", "1.01")],
        };
        let place = |mode| std::iter::once(mode).chain(line.iter().copied()).collect::<Vec<_>>();
        for (mode, paper) in papers {
            let change = ratio(report, Metric::WorkRequestsPerOp, &place(mode), &place("single"));
            let holds = if mode == "doorbell" { (change - 1.0).abs() < 0.001 } else { change < 1.0 };
            let what = format!("{}: work requests, {mode} over single", line.join(", "));
            rows.push(predicted(what, paper, format!("{change:.2}"), holds));
        }
        for mode in ["doorbell", "hybrid"] {
            let change = ratio(report, Metric::DoorbellsPerOp, &place(mode), &place("single"));
            let what = format!("{}: doorbells, {mode} over single", line.join(", "));
            rows.push(predicted(what, "fewer", format!("{change:.2}"), change < 1.0));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn a_shape_that_does_not_hold_is_said_to() {
        // IOPS grow with the threads, so there is no fall behind a peak.
        let mut report = example();
        report.results.retain(|entry| entry.coordinates[1] == "single");
        report.results.iter_mut().for_each(|entry| entry.coordinates.truncate(1));
        let rows = fig1(&report);
        assert_eq!((rows[0].model.as_str(), rows[0].holds), ("2", false));
        assert_eq!((rows[1].model.as_str(), rows[1].holds), ("+0.0 %", false));
        assert_eq!(rows[0].basis, "calibrated");
    }

    #[test]
    fn a_missing_mode_holds_nothing() {
        let rows = fig6(&example());
        assert!(!rows.is_empty() && rows.iter().all(|row| !row.holds));
    }
}
