//! The results of the modelled card beside the paper's. No I/O, no locks, no clock.
//!
//! Where the paper has a range, a value is in it, has its direction only, or does not hold. A
//! direction counts beyond [`NOISE`]. A missing value holds nothing.

use std::ops::RangeInclusive;

use super::card::SELDOM;
use crate::report::{
    Basis, Entry, Report, Row, Shape,
    metric::{Metric, show_change},
};

/// Relative noise of a comparison.
const NOISE: f64 = 0.03;
/// Relative difference of values that are about the same.
const SAME: f64 = 0.05;

/// The claim of the paper about a ratio.
#[derive(Clone, Copy, Debug)]
enum Claim {
    More,
    Less,
    NotLess,
    NotMore,
    Same,
    /// The ratio lies between two values of the paper.
    Within(f64, f64),
}

impl Claim {
    fn of(self, ratio: f64) -> Shape {
        let (more, less) = (ratio > 1.0 + NOISE, ratio < 1.0 - NOISE);
        match self {
            Claim::More => Shape::if_true(more),
            Claim::Less => Shape::if_true(less),
            Claim::NotLess => Shape::if_true(ratio >= 1.0 - NOISE),
            Claim::NotMore => Shape::if_true(ratio <= 1.0 + NOISE),
            Claim::Same => Shape::if_true((ratio - 1.0).abs() <= SAME),
            Claim::Within(low, high) if RangeInclusive::new(low, high).contains(&ratio) => Shape::InRange,
            Claim::Within(low, high) if (low > 1.0 && more) || (high < 1.0 && less) => Shape::DirectionOnly,
            Claim::Within(..) => Shape::Fails,
        }
    }

    /// Returns the claim of a single number: the noise is its range.
    fn about(ratio: f64) -> Claim {
        Claim::Within(ratio * (1.0 - NOISE), ratio * (1.0 + NOISE))
    }

    fn text(self) -> String {
        match self {
            Claim::More => "more".into(),
            Claim::Less => "less".into(),
            Claim::NotLess => "not less".into(),
            Claim::NotMore => "no more".into(),
            Claim::Same => "about the same".into(),
            Claim::Within(low, high) => {
                format!("{:+.1} to {:+.1} %", (low - 1.0) * 100.0, (high - 1.0) * 100.0)
            }
        }
    }
}

fn row(what: impl Into<String>, paper: impl Into<String>, model: String, basis: Basis, shape: Shape) -> Row {
    Row { what: what.into(), paper: paper.into(), model, basis, shape, beside: None }
}

/// Returns the row of a ratio.
fn compared(what: impl Into<String>, claim: Claim, ratio: f64, basis: Basis) -> Row {
    row(what, claim.text(), show_change(ratio), basis, claim.of(ratio))
}

/// Returns the row of an experiment without the entries that it needs.
fn nothing(what: &str) -> Vec<Row> {
    vec![row(what, "", "no such results".into(), Basis::Predicted, Shape::Fails)]
}

fn value(report: &Report, place: &[&str], metric: Metric) -> f64 {
    let metric = if report.model.is_some() { metric } else { metric.without_card() };
    report.at(place).and_then(|entry| entry.get(metric)).unwrap_or(f64::NAN)
}

fn ratio(report: &Report, metric: Metric, of: &[&str], over: &[&str]) -> f64 {
    value(report, of, metric) / value(report, over, metric)
}

/// A line's best entry, and its last entry.
struct Peak<'a> {
    threads: &'a str,
    iops: f64,
    mean: f64,
    best: &'a Entry,
    last: &'a Entry,
}

impl Peak<'_> {
    /// Returns the bytes that the load keeps in flight at the peak.
    fn in_flight(&self) -> u64 {
        let load = &self.best.options;
        u64::from(load.threads) * u64::from(load.depth) * load.size
    }

    fn at(&self, what: &str, paper: &str) -> Row {
        let shape = Shape::if_true(self.threads == paper);
        row(what, paper, self.threads.into(), Basis::Calibrated, shape)
    }
}

fn iops(entry: &Entry) -> f64 {
    entry.get(Metric::OpsPerSecond).unwrap_or(0.0)
}

/// Returns true if an entry is of a number of threads, and not of a program.
fn is_count(entry: &&Entry) -> bool {
    entry.coordinates.first().is_some_and(|label| label.parse::<u32>().is_ok())
}

fn peak<'a>(report: &'a Report, line: &[&str]) -> Option<Peak<'a>> {
    let entries: Vec<&Entry> = report.line(line).into_iter().filter(is_count).collect();
    let best = entries.iter().copied().max_by(|a, b| iops(a).total_cmp(&iops(b)))?;
    let (threads, last) = (best.coordinates.first()?.as_str(), *entries.last()?);
    Some(Peak { threads, iops: iops(best), mean: best.get(Metric::Mean).unwrap_or(f64::NAN), best, last })
}

/// Compares the threads at the peak with the paper, and IOPS and latency with 16 threads with those
/// at the peak.
pub(super) fn fig1(report: &Report) -> Vec<Row> {
    let Some(peak) = peak(report, &[]) else { return nothing("threads at the peak") };
    let last = iops(peak.last) / peak.iops;
    let latency = peak.last.get(Metric::Mean).unwrap_or(f64::NAN) / peak.mean;
    let what = "mean latency with 16 threads over the peak's";
    vec![
        peak.at("threads at the peak", "4"),
        compared("IOPS with 16 threads over the peak", Claim::Less, last, Basis::Calibrated),
        compared(what, Claim::More, latency, Basis::Predicted),
    ]
}

/// Compares the peaks with one and four queue pairs, and with and without the window.
pub(super) fn fig8(report: &Report) -> Vec<Row> {
    let lines = report.labels_of_lines();
    let peaks: Option<Vec<Peak<'_>>> = lines.iter().map(|line| peak(report, line)).collect();
    let Some([one, one_window, four, four_window, hybrid, hybrid_window]) =
        peaks.and_then(|peaks| <[Peak<'_>; 6]>::try_from(peaks).ok())
    else {
        return nothing("threads at the peak");
    };
    let used = four_window.best.options.window;
    let model = format!("{}; {} at this run's peak", used, byte_size::show(four.in_flight()));
    let over = "4 QPs over 1 QP: best IOPS";
    let mut rows = vec![
        one.at("1 QP: threads at the peak", "4"),
        four.at("4 QPs: threads at the peak", "7"),
        compared(over, Claim::More, four.iops / one.iops, Basis::Calibrated),
        row("4 QPs: window", "7 MB", model, Basis::Chosen, Shape::Differs),
    ];
    let programs = windows_of_programs(report, &lines);
    let all = [
        ("1 QP, single", one, one_window),
        ("4 QPs, single", four, four_window),
        ("4 QPs, hybrid", hybrid, hybrid_window),
    ];
    for (name, without, with) in all {
        let kept = iops(with.last) / without.iops;
        let what = format!("{name}: IOPS with 16 threads and the window over the peak without");
        rows.push(compared(what, Claim::NotLess, kept, Basis::Chosen));
        // The paper has one number, without the setting that it compares with.
        let best = with.iops / without.iops;
        let what = format!("{name}: best IOPS with the window over without");
        let shape = Claim::about(1.299).of(best);
        rows.push(row(what, "+29.9 %", show_change(best), Basis::Chosen, shape));
        let most = iops(with.last) / iops(without.last);
        let what = format!("{name}: IOPS with 16 threads, with the window over without");
        rows.push(compared(what, Claim::More, most, Basis::Chosen));
    }
    rows.extend(programs);
    rows
}

/// Returns the gain of the window for paged programs. The lines are settings without the window and
/// with it, in turn.
fn windows_of_programs(report: &Report, lines: &[Vec<&str>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for program in report.labels(0).into_iter().filter(|label| label.parse::<u32>().is_err()) {
        for pair in lines.chunks_exact(2) {
            let (without, with) = ([&[program], &pair[0][..]].concat(), [&[program], &pair[1][..]].concat());
            let gain = ratio(report, Metric::OpsPerSecond, &with, &without);
            let setting = pair[0].join(", ");
            let setting = setting.strip_suffix(", no window").unwrap_or(&setting);
            let what = format!("{program}, {setting}: IOPS with the window over without");
            let shape = Claim::about(1.299).of(gain);
            rows.push(row(what, "+29.9 %", show_change(gain), Basis::Chosen, shape));
        }
    }
    rows
}

/// Returns the size from which registering is cheaper, between two measured sizes.
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
    let near = crossing.is_some_and(|at| (at / 1024.0 / 928.0 - 1.0).abs() <= NOISE);
    let shape = if near { Shape::InRange } else { Shape::Fails };
    vec![row("registering is cheaper from", "928 KB", text, Basis::Calibrated, shape)]
}

/// Compares batching modes on every line.
fn modes(report: &Report, metric: Metric, pairs: &[(&str, &str, Claim)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in report.labels_of_lines() {
        let place = |mode| std::iter::once(mode).chain(line.iter().copied()).collect::<Vec<_>>();
        for (mode, over, claim) in pairs {
            let change = ratio(report, metric, &place(mode), &place(over));
            let what = format!("{}: {mode} over {over}, {}", line.join(", "), metric.title());
            rows.push(compared(what, *claim, change, Basis::Chosen));
        }
    }
    rows
}

/// Compares the throughput of the batching modes.
pub(super) fn fig6(report: &Report) -> Vec<Row> {
    let pairs = [
        ("merge", "single", Claim::Within(1.112, 1.244)),
        ("hybrid", "single", Claim::Within(1.157, 1.477)),
        ("hybrid", "doorbell", Claim::Within(1.075, 1.222)),
        ("hybrid", "merge", Claim::NotLess),
        ("merge", "doorbell", Claim::NotLess),
    ];
    modes(report, Metric::OpsPerSecond, &pairs)
}

/// Compares the 99th percentiles of the batching modes.
pub(super) fn fig7(report: &Report) -> Vec<Row> {
    let pairs = [("merge", "single", Claim::NotMore), ("hybrid", "single", Claim::NotMore)];
    modes(report, Metric::P99, &pairs)
}

/// Compares adaptive polling with the others at each value of the x axis.
fn adaptive(report: &Report, few: &[&str], basis: Basis) -> Vec<Row> {
    let name = report.dimensions.first().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for x in report.labels(0).into_iter().filter(|x| *x != SELDOM) {
        let over = |mode, metric| ratio(report, metric, &[x, "adaptive"], &[x, mode]);
        let claim = if few.contains(&x) { Claim::Same } else { Claim::More };
        let what = format!("{name} {x}: adaptive over busy, IOPS");
        rows.push(compared(what, claim, over("busy", Metric::OpsPerSecond), basis));
        for mode in ["event-batch", "hybrid"] {
            let what = format!("{name} {x}: adaptive over {mode}, IOPS");
            rows.push(compared(what, Claim::NotLess, over(mode, Metric::OpsPerSecond), basis));
        }
        let (own, batch) = (
            value(report, &[x, "adaptive"], Metric::InterruptsPerOp),
            value(report, &[x, "event-batch"], Metric::InterruptsPerOp),
        );
        let what = format!("{name} {x}: interrupts per request, adaptive and event-batch");
        let shape = Claim::Less.of(own / batch);
        rows.push(row(what, "fewer", format!("{own:.3} and {batch:.3}"), basis, shape));
        let what = format!("{name} {x}: adaptive over busy, processor time per request");
        rows.push(compared(what, Claim::Less, over("busy", Metric::CardCpuPerOp), basis));
    }
    rows
}

/// Compares polling modes under bursts.
pub(super) fn fig2(report: &Report) -> Vec<Row> {
    let same: Vec<&str> = report.labels(0);
    let mut rows = adaptive(report, &same, Basis::Predicted);
    // "If the time gap between two events is larger than iteration time of MAX_RETRY, it behaves as
    // event mode and incur less CPU overhead" (section IV-B).
    let over = |mode, metric| ratio(report, metric, &[SELDOM, "adaptive"], &[SELDOM, mode]);
    for (mode, metric, what, claim) in [
        ("busy", Metric::CardCpuPerOp, "processor time per request", Claim::Less),
        ("event", Metric::OpsPerSecond, "IOPS", Claim::Same),
        ("event", Metric::InterruptsPerOp, "interrupts per request", Claim::Same),
    ] {
        let what = format!("burst {SELDOM}: adaptive over {mode}, {what}");
        rows.push(compared(what, claim, over(mode, metric), Basis::Chosen));
    }
    rows
}

/// Compares polling modes by peers. Up to four polling threads do not affect the paper's
/// program.
pub(super) fn fig9(report: &Report) -> Vec<Row> {
    // The labels begin with the number of peers.
    let few: Vec<&str> = report.labels(0).into_iter().filter(|label| !label.starts_with('8')).collect();
    adaptive(report, &few, Basis::Chosen)
}

/// Compares the work requests of each mode, per request.
pub(super) fn table1(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in report.labels_of_lines() {
        let papers = match line.first().map_or("", |label| label.split(',').next().unwrap_or(label)) {
            "read" => [
                ("merge", "0.87 (preMR), 0.83", Claim::Within(0.83, 0.87)),
                ("hybrid", "0.83", Claim::about(0.83)),
                ("doorbell", "1.00", Claim::about(1.0)),
            ],
            "write" => [
                ("merge", "0.88 (preMR), 0.92", Claim::Within(0.88, 0.92)),
                ("hybrid", "0.92", Claim::about(0.92)),
                ("doorbell", "1.01", Claim::about(1.01)),
            ],
            // The paper's load. READs and WRITEs together.
            "etc 25 %" => [
                ("merge", "0.87 (preMR), 0.84", Claim::Within(0.84, 0.87)),
                ("hybrid", "0.84", Claim::about(0.84)),
                ("doorbell", "1.00", Claim::about(1.0)),
            ],
            // The paper has no number.
            _ => [
                ("merge", "fewer", Claim::Less),
                ("hybrid", "fewer", Claim::Less),
                ("doorbell", "about the same", Claim::Same),
            ],
        };
        let place = |mode| std::iter::once(mode).chain(line.iter().copied()).collect::<Vec<_>>();
        for (mode, paper, claim) in papers {
            let change = ratio(report, Metric::WorkRequestsPerOp, &place(mode), &place("single"));
            let what = format!("{}: work requests, {mode} over single", line.join(", "));
            rows.push(row(what, paper, format!("{change:.2}"), Basis::Chosen, claim.of(change)));
        }
        for mode in ["doorbell", "hybrid"] {
            let change = ratio(report, Metric::DoorbellsPerOp, &place(mode), &place("single"));
            let what = format!("{}: doorbells, {mode} over single", line.join(", "));
            let shape = Claim::Less.of(change);
            rows.push(row(what, "fewer", format!("{change:.2}"), Basis::Chosen, shape));
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
        assert_eq!((rows[0].model.as_str(), rows[0].shape), ("2", Shape::Fails));
        assert_eq!((rows[1].model.as_str(), rows[1].shape), ("+0.0 %", Shape::Fails));
        assert_eq!(rows[0].basis, Basis::Calibrated);
    }

    #[test]
    fn a_missing_mode_or_line_holds_nothing() {
        let mut report = example();
        let mut rows = fig6(&report);
        rows.extend(fig8(&report));
        report.results.clear();
        rows.extend([fig1(&report), fig5(&report)].concat());
        assert!(rows.len() > 6 && rows.iter().all(|row| row.shape == Shape::Fails), "{rows:?}");
    }

    /// Catches a program that counts as the peak of a line of threads, and one without a row.
    #[test]
    fn programs_are_no_threads() {
        let mut report = example();
        for entry in &mut report.results {
            if entry.coordinates[0] == "2" {
                entry.coordinates[0] = "etc 25 %".into();
            }
        }
        assert_eq!(peak(&report, &["single"]).map(|peak| peak.threads), Some("1"));
        let lines = [vec!["single"], vec!["hybrid <b>"]];
        let rows = windows_of_programs(&report, &lines);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(row.what, "etc 25 %, single: IOPS with the window over without");
        assert_eq!((row.model.as_str(), row.shape), ("+100.0 %", Shape::DirectionOnly));
    }

    /// Catches a program whose counts stand beside those of another load.
    #[test]
    fn only_the_papers_program_has_numbers() {
        let claims = |load: &str| {
            let mut report = example();
            report
                .results
                .iter_mut()
                .for_each(|entry| entry.coordinates = vec!["single".into(), load.into()]);
            table1(&report).into_iter().map(|row| row.paper).collect::<Vec<_>>()
        };
        assert_eq!(claims("etc 25 %")[..3], ["0.87 (preMR), 0.84", "0.84", "1.00"]);
        assert_eq!(claims("sys 25 %"), ["fewer", "fewer", "about the same", "fewer", "fewer"]);
        assert_eq!(claims("write, mixed, 1m")[1], "0.92");
    }

    /// Catches rows that ask event mode of adaptive polling, or its opposite, at the wrong load.
    #[test]
    fn seldom_requests_have_rows_of_their_own() {
        let mut report = example();
        report.results.truncate(1);
        report.results[0].coordinates[0] = SELDOM.into();
        let rows = fig2(&report);
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.what.starts_with("burst seldom") && row.shape == Shape::Fails));
    }

    #[test]
    fn a_direction_counts_beyond_the_noise_and_a_range_is_a_range() {
        let range = Claim::Within(1.112, 1.244);
        for (claim, ratio, shape) in [
            (range, 1.2, Shape::InRange),
            (range, 1.5, Shape::DirectionOnly),
            (range, 1.031, Shape::DirectionOnly),
            (range, 1.029, Shape::Fails),
            (range, 0.98, Shape::Fails),
            (range, f64::NAN, Shape::Fails),
            (Claim::Within(0.83, 0.87), 0.96, Shape::DirectionOnly),
            (Claim::Within(0.83, 0.87), 0.98, Shape::Fails),
            (Claim::More, 1.02, Shape::Fails),
            (Claim::More, 1.04, Shape::Holds),
            (Claim::Less, 0.98, Shape::Fails),
            (Claim::Less, 0.96, Shape::Holds),
            (Claim::NotLess, 0.96, Shape::Fails),
            (Claim::NotMore, 1.04, Shape::Fails),
            (Claim::Same, 1.06, Shape::Fails),
            (Claim::Same, 0.96, Shape::Holds),
            (Claim::about(1.299), 1.067, Shape::DirectionOnly),
            (Claim::about(1.0), 1.0, Shape::InRange),
            (Claim::about(1.0), 1.2, Shape::Fails),
            (Claim::about(1.0), 0.8, Shape::Fails),
        ] {
            assert_eq!(claim.of(ratio), shape, "{claim:?} {ratio}");
        }
        assert_eq!(range.text(), "+11.2 to +24.4 %");
    }
}
