//! The results of an experiment in words. No I/O, no locks, no clock.

use crate::report::{
    Entry, Report,
    metric::{Metric, show},
};

/// Describes the peak IOPS of a line, and the IOPS and latency with more threads.
pub(super) fn peak(report: &Report, line: &[&str]) -> Option<String> {
    let entries = report.line(line);
    let iops = |entry: &Entry| entry.get(Metric::OpsPerSecond).unwrap_or(0.0);
    let best = entries.iter().copied().max_by(|a, b| iops(a).total_cmp(&iops(b)))?;
    let last = entries.last()?;
    let threads = |entry: &Entry| entry.coordinates.first().cloned().unwrap_or_default();
    let name = if line.is_empty() { String::new() } else { format!("{}: ", line.join(", ")) };
    let mut text = format!("{name}peak of {} IOPS at {} threads", show(Some(iops(best))), threads(best));
    if threads(best) != threads(last) {
        text += &format!(
            "; with {} threads {} ({}), mean latency {} us instead of {}",
            threads(last),
            show(Some(iops(last))),
            change(iops(last), iops(best)),
            show(last.get(Metric::Mean)),
            show(best.get(Metric::Mean)),
        );
    }
    Some(text)
}

/// Describes the peaks, and the effect of the window at the best and at the largest number of
/// threads.
pub(super) fn window(report: &Report) -> Vec<String> {
    let lines = report.labels_of_lines();
    let mut text: Vec<String> = lines.iter().filter_map(|line| peak(report, line)).collect();
    let best = |line: &[&str]| {
        let values = report.line(line);
        values.iter().filter_map(|entry| entry.get(Metric::OpsPerSecond)).fold(0.0, f64::max)
    };
    for pair in lines.chunks_exact(2) {
        let [without, with] = pair else { continue };
        let (last_without, last_with) = (report.line(without), report.line(with));
        let last = last_with.last().zip(last_without.last()).and_then(|(with, without)| {
            Some(change(with.get(Metric::OpsPerSecond)?, without.get(Metric::OpsPerSecond)?))
        });
        text.push(format!(
            "{} over {}: best IOPS {}, with the most threads {}",
            with.join(", "),
            without.join(", "),
            change(best(with), best(without)),
            last.unwrap_or_else(|| "-".into()),
        ));
    }
    text
}

/// Returns the smallest size from which registering is at least as fast as copying.
pub(super) fn crossover(report: &Report) -> Vec<String> {
    let latency = |size: &str, reg: &str| report.at(&[size, reg]).and_then(|entry| entry.get(Metric::P50));
    let sizes = report.labels(0);
    let wins: Vec<bool> = sizes
        .iter()
        .map(|size| latency(size, "dyn").zip(latency(size, "pre")).is_some_and(|(d, p)| d <= p))
        .collect();
    let from = wins.iter().rposition(|wins| !wins).map_or(0, |last| last + 1);
    let mut text = vec![match (from, sizes.get(from)) {
        (0, _) => "registering (dynMR) is never slower than copying (preMR), by median latency".to_owned(),
        (_, Some(size)) => format!(
            "registering (dynMR) is not slower than copying (preMR) from {size} on, by median latency"
        ),
        (_, None) => "copying (preMR) is faster up to the largest size, by median latency".to_owned(),
    }];
    for size in [sizes.first(), sizes.last()].into_iter().flatten() {
        if let (Some(pre), Some(dynamic)) = (latency(size, "pre"), latency(size, "dyn")) {
            let (p, d) = (show(Some(pre)), show(Some(dynamic)));
            text.push(format!("{size}: preMR {p} us, dynMR {d} us ({})", change(dynamic, pre)));
        }
    }
    text.push("a software device registers by writing a table entry: it pins and translates nothing".into());
    text
}

/// Compares pairs of modes on every line.
pub(super) fn against(report: &Report, metric: Metric, pairs: &[(&str, &str)]) -> Vec<String> {
    let mut text = Vec::new();
    for line in report.labels_of_lines() {
        let value = |mode: &str| {
            let place: Vec<&str> = std::iter::once(mode).chain(line.iter().copied()).collect();
            report.at(&place).and_then(|entry| entry.get(metric))
        };
        let changes: Vec<String> = pairs
            .iter()
            .filter_map(|(a, b)| Some(format!("{a} over {b} {}", change(value(a)?, value(b)?))))
            .collect();
        text.push(format!("{}, {}: {}", line.join(", "), metric.title(), changes.join("; ")));
    }
    text
}

/// Compares adaptive polling with the other modes at each value of the x axis.
pub(super) fn adaptive_beside_others(report: &Report) -> Vec<String> {
    let mut text = Vec::new();
    let name = report.dimensions.first().map_or("", String::as_str);
    for x in report.labels(0) {
        let value = |mode: &str, metric: Metric| report.at(&[x, mode]).and_then(|entry| entry.get(metric));
        let beside = |metric: Metric, modes: &[&str]| {
            let others: Vec<String> =
                modes.iter().map(|mode| format!("{mode} {}", show(value(mode, metric)))).collect();
            format!("{} {} ({})", metric.title(), show(value("adaptive", metric)), others.join(", "))
        };
        text.push(format!(
            "{name} {x}: adaptive has {}; {}; {}",
            beside(Metric::OpsPerSecond, &["busy", "event-batch", "hybrid"]),
            beside(Metric::ClientCpu, &["busy"]),
            beside(Metric::SwitchesPerOp, &["event-batch", "hybrid"]),
        ));
    }
    text
}

/// Checks the relations of Table I. They are counts, so they must hold exactly.
pub(super) fn counts(report: &Report) -> Vec<String> {
    let mut text = Vec::new();
    for line in report.labels_of_lines() {
        let value = |mode: &str, metric: Metric| {
            let place: Vec<&str> = std::iter::once(mode).chain(line.iter().copied()).collect();
            report.at(&place).and_then(|entry| entry.get(metric)).unwrap_or(f64::NAN)
        };
        let (work_requests, doorbells) =
            (|m| value(m, Metric::WorkRequests), |m| value(m, Metric::Doorbells));
        let relations = [
            ("work requests: merge < single", work_requests("merge") < work_requests("single")),
            ("hybrid < single", work_requests("hybrid") < work_requests("single")),
            ("doorbell = single", work_requests("doorbell") == work_requests("single")),
            ("doorbells: doorbell < single", doorbells("doorbell") < doorbells("single")),
            ("hybrid < single", doorbells("hybrid") < doorbells("single")),
        ];
        let all: Vec<String> = relations
            .iter()
            .map(|(what, holds)| format!("{what} {}", if *holds { "holds" } else { "DOES NOT HOLD" }))
            .collect();
        text.push(format!("{}: {}", line.join(", "), all.join(", ")));
    }
    text
}

/// Returns the relative change from `b` to `a` as text.
fn change(a: f64, b: f64) -> String {
    if b > 0.0 { format!("{:+.0} %", (a / b - 1.0) * 100.0) } else { "-".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes() {
        assert_eq!([change(1.5, 1.0), change(0.5, 1.0), change(1.0, 0.0)], ["+50 %", "-50 %", "-"]);
    }
}
