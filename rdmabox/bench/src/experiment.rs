//! The experiments of the RDMAbox paper, as matrices with a comment. The comment summarizes the
//! result of the paper and the result of this run. The paper used a ConnectX-3; these runs use a
//! software provider or an RDMA device.
//!
//! Most experiments use TCP by default: a post is an expensive system call there, as a doorbell is
//! expensive on a card, and completions arrive later. With mapped memory the poster executes the
//! request, so there is little to batch or to wait for.

use rdmabox::Address;

use crate::{
    Error, Result,
    load::OpKind,
    matrix::{Dimension, Matrix},
    metric::{Metric, show},
    report::{About, Entry, Report},
    settings::Settings,
};

/// Options by name.
type Options = &'static [(&'static str, &'static str)];

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The parameters that it varies and its subject.
    pub what: &'static str,
    /// The result of the paper.
    pub paper: &'static str,
    /// Options of all runs, unless the command line overrides them.
    base: Options,
    /// Options of a quick run, in addition to `base`.
    quick: Options,
    dimensions: fn() -> Vec<Dimension>,
    columns: &'static [Metric],
    panels: &'static [Metric],
    findings: fn(&Report) -> Vec<String>,
}

const QUICK: Options = &[("duration", "200ms"), ("warmup", "50ms")];

/// Merging needs adjacent requests of several threads, so all threads take blocks from one cursor.
const BATCHING: Options =
    &[("provider", "tcp"), ("size", "4k"), ("threads", "8"), ("depth", "16"), ("duration", "1s")];

/// All experiments.
pub const ALL: [Experiment; 8] = [
    Experiment {
        name: "fig1",
        what: "IOPS and latency of WRITEs by threads: single I/O, one queue pair, no admission window",
        paper: "Fig. 1: IOPS rise with the threads, have their peak at 4, and then fall, while completion times and \
                the operations in flight go on rising: the card is the bottleneck, and nothing holds requests back.",
        base: &[
            ("provider", "tcp"),
            ("size", "64k"),
            ("qps", "1"),
            ("window", "none"),
            ("mode", "single"),
            ("duration", "1s"),
        ],
        quick: QUICK,
        dimensions: || vec![threads()],
        columns: &[
            Metric::OpsPerSecond,
            Metric::MibPerSecond,
            Metric::Mean,
            Metric::P99,
            Metric::ClientCpu,
            Metric::ServerCpu,
        ],
        panels: &[Metric::OpsPerSecond, Metric::Mean],
        findings: |report| report.labels_of_lines().iter().filter_map(|line| peak(report, line)).collect(),
    },
    Experiment {
        name: "fig2",
        what: "polling modes under small, medium and large bursts of WRITEs to one peer",
        paper: "Fig. 2: adaptive polling comes close to busy polling's throughput under every load, with far less \
                processor time than busy polling and fewer interrupts and context switches than event-batch and \
                hybrid polling, which go back to events between packs of requests.",
        base: &[
            ("provider", "tcp"),
            ("size", "4k"),
            ("qps", "1"),
            ("mode", "single"),
            ("reg", "pre"),
            ("pattern", "bursts"),
            ("duration", "1s"),
        ],
        quick: QUICK,
        dimensions: || vec![bursts(), polling(&[])],
        columns: POLLING,
        panels: &[Metric::OpsPerSecond, Metric::ClientCpu, Metric::SleepsPerOp, Metric::SwitchesPerOp],
        findings: adaptive_beside_others,
    },
    Experiment {
        name: "fig5",
        what: "preMR and dynMR by message size: where registering beats copying",
        paper: "Fig. 5: in user space copying through pre-registered memory is cheaper for small messages, and \
                registering the buffer becomes cheaper from 928 KB on; in the kernel, with physical addresses, \
                registering always wins.",
        base: &[
            ("threads", "1"),
            ("depth", "1"),
            ("mode", "single"),
            ("window", "none"),
            ("duration", "500ms"),
        ],
        quick: QUICK,
        dimensions: || {
            let sizes = ["1k", "4k", "16k", "64k", "128k", "256k", "512k", "1m"];
            vec![Dimension::of_option("size", &sizes), Dimension::of_option("reg", &["pre", "dyn"])]
        },
        columns: &[Metric::P50, Metric::P99, Metric::OpsPerSecond, Metric::MibPerSecond, Metric::CpuPerOp],
        panels: &[Metric::P50, Metric::MibPerSecond],
        findings: crossover,
    },
    Experiment {
        name: "fig6",
        what: "throughput of single, merge, doorbell and hybrid over patterns and kinds of memory",
        paper: "Fig. 6: merging is 11 to 24 % faster than single I/O, hybrid 16 to 48 % faster than single I/O and 7 to \
                22 % faster than doorbell batching (VoltDB with Facebook's ETC and SYS loads).",
        base: BATCHING,
        quick: QUICK,
        dimensions: batching,
        columns: BATCHED,
        panels: &[Metric::OpsPerSecond, Metric::WqesPerOp],
        findings: |report| {
            against(
                report,
                Metric::OpsPerSecond,
                &[("merge", "single"), ("hybrid", "single"), ("hybrid", "doorbell")],
            )
        },
    },
    Experiment {
        name: "fig7",
        what: "99th percentile of latency of single, merge, doorbell and hybrid",
        paper: "Fig. 7: merging and chaining do not lengthen the tail: the 99th percentile is no worse than with single I/O.",
        base: BATCHING,
        quick: QUICK,
        dimensions: batching,
        columns: &[Metric::P50, Metric::P99, Metric::P999, Metric::Max, Metric::OpsPerSecond],
        panels: &[Metric::P99, Metric::P999],
        findings: |report| {
            against(report, Metric::P99, &[("merge", "single"), ("doorbell", "single"), ("hybrid", "single")])
        },
    },
    Experiment {
        name: "fig8",
        what: "IOPS by threads with one and four queue pairs, with and without the admission window",
        paper: "Fig. 8: with 4 queue pairs the peak moves from 4 threads to 7; holding back what is above 7 MB in \
                flight raises the best IOPS by up to 29.9 %, since requests that wait merge.",
        base: &[("provider", "tcp"), ("size", "64k"), ("duration", "1s")],
        quick: QUICK,
        dimensions: || vec![threads(), queue_pairs_and_windows()],
        columns: &[
            Metric::OpsPerSecond,
            Metric::MibPerSecond,
            Metric::Mean,
            Metric::P99,
            Metric::WindowWaits,
            Metric::WqesPerOp,
        ],
        panels: &[Metric::OpsPerSecond, Metric::Mean],
        findings: window,
    },
    Experiment {
        name: "fig9",
        what: "polling modes by number of peers, under bursts",
        paper: "Fig. 9: busy polling is best with few peers and falls behind when its threads take the processors; event \
                modes scale but are slower; adaptive polling keeps the throughput with little processor time.",
        base: &[
            ("provider", "tcp"),
            ("size", "4k"),
            ("qps", "1"),
            ("mode", "single"),
            ("reg", "pre"),
            ("threads", "4"),
            ("depth", "8"),
            ("pattern", "bursts"),
            ("burst", "8"),
            ("gap", "100us"),
            ("duration", "1s"),
        ],
        quick: QUICK,
        dimensions: || {
            vec![Dimension::of_option("peers", &["1", "2", "4"]), polling(&["shared-cq:1", "shared-cq:2"])]
        },
        columns: POLLING,
        panels: &[Metric::OpsPerSecond, Metric::ClientCpu, Metric::SwitchesPerOp],
        findings: adaptive_beside_others,
    },
    Experiment {
        name: "table1",
        what: "work requests and doorbells per mode, for the same number of requests",
        paper: "Table I: merging and hybrid post fewer work requests than single I/O (reads 11 to 11.5 million instead \
                of 13.2, writes 272 to 282 thousand instead of 305 to 308), doorbell batching as many as single I/O.",
        base: &[
            ("provider", "tcp"),
            ("size", "4k"),
            ("threads", "8"),
            ("depth", "16"),
            ("ops", "200k"),
            ("warmup", "0"),
        ],
        quick: &[("ops", "20k")],
        dimensions: || {
            vec![
                Dimension::of_option("mode", &MODES),
                Dimension::of_option("op", &["read", "write"]),
                Dimension::of_option("pattern", &["mixed"]),
                Dimension::of_option("reg", &["pre", "dyn"]),
            ]
        },
        columns: &[
            Metric::Ops,
            Metric::Wqes,
            Metric::Doorbells,
            Metric::Merged,
            Metric::WqesPerOp,
            Metric::DoorbellsPerOp,
        ],
        panels: &[Metric::Wqes, Metric::Doorbells],
        findings: counts,
    },
];

const MODES: [&str; 4] = ["single", "merge", "doorbell", "hybrid"];
const POLLING: &[Metric] = &[
    Metric::OpsPerSecond,
    Metric::P50,
    Metric::P99,
    Metric::ClientCpu,
    Metric::CpuPerOp,
    Metric::SleepsPerOp,
    Metric::PollsPerOp,
    Metric::SwitchesPerOp,
];
const BATCHED: &[Metric] = &[
    Metric::OpsPerSecond,
    Metric::MibPerSecond,
    Metric::P50,
    Metric::P99,
    Metric::CpuPerOp,
    Metric::WqesPerOp,
    Metric::DoorbellsPerOp,
];

fn threads() -> Dimension {
    Dimension::of_option("threads", &["1", "2", "4", "7", "8", "12", "16"])
}

fn bursts() -> Dimension {
    let shapes: [(&str, Options); 3] = [
        ("small", &[("burst", "1"), ("depth", "1"), ("gap", "200us")]),
        ("medium", &[("burst", "8"), ("depth", "8"), ("gap", "50us")]),
        ("large", &[("burst", "32"), ("depth", "32"), ("gap", "0")]),
    ];
    Dimension::of_settings("burst", &shapes)
}

fn queue_pairs_and_windows() -> Dimension {
    let settings: [(&str, Options); 6] = [
        ("1 QP, single, no window", &[("qps", "1"), ("mode", "single"), ("window", "none")]),
        ("1 QP, single, window 7m", &[("qps", "1"), ("mode", "single"), ("window", "7m")]),
        ("4 QPs, single, no window", &[("qps", "4"), ("mode", "single"), ("window", "none")]),
        ("4 QPs, single, window 7m", &[("qps", "4"), ("mode", "single"), ("window", "7m")]),
        ("4 QPs, hybrid, no window", &[("qps", "4"), ("mode", "hybrid"), ("window", "none")]),
        ("4 QPs, hybrid, window 7m", &[("qps", "4"), ("mode", "hybrid"), ("window", "7m")]),
    ];
    Dimension::of_settings("setting", &settings)
}

fn polling(more: &[&str]) -> Dimension {
    let modes = [&["busy", "event", "event-batch", "hybrid", "adaptive"], more].concat();
    Dimension::of_option("polling", &modes)
}

fn batching() -> Vec<Dimension> {
    vec![
        Dimension::of_option("mode", &MODES),
        Dimension::of_option("pattern", &["seq", "rand", "mixed"]),
        Dimension::of_option("reg", &["pre", "dyn"]),
    ]
}

/// Returns the experiment with the given name.
pub fn find(name: &str) -> Result<Experiment> {
    ALL.into_iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|experiment| experiment.name).collect();
        Error::usage(format!("there is no experiment {name:?}; there are {}, and list", names.join(", ")))
    })
}

/// Returns a list of all experiments, one per line.
pub fn list() -> String {
    ALL.iter().map(|experiment| format!("{:8} {}\n", experiment.name, experiment.what)).collect()
}

impl Experiment {
    /// Returns the matrix of the experiment, with its options overridden by those of the command
    /// line.
    pub fn matrix(&self, given: &Settings, quick: bool, connect: &[Address]) -> Result<Matrix> {
        let dimensions = (self.dimensions)();
        let varied =
            dimensions.iter().flat_map(|dimension| &dimension.values).flat_map(|v| v.settings.names());
        if let Some(name) = varied.into_iter().find(|name| given.has(name)) {
            return Err(Error::usage(format!("{} varies {name} itself: leave --{name} out", self.name)));
        }
        // The experiments are about work requests, so every request is posted.
        let posted = std::iter::once(("direct", "off"));
        let base = Settings::from_pairs(posted.chain(self.base.iter().copied()));
        if base.has("ops") && given.has("duration") {
            return Err(Error::usage(format!("{} counts: give --ops instead of --duration", self.name)));
        }
        let quick = Settings::from_pairs(if quick { self.quick } else { &[] }.iter().copied());
        Matrix::new(OpKind::Write, &base.with(&quick).with(given), &dimensions, connect)
    }

    /// Returns the title of the report.
    pub fn title(&self, matrix: &Matrix) -> String {
        format!("{} on {}", self.name, matrix.carriers())
    }

    /// Adds the comment, and selects columns and panels.
    pub fn comment(&self, report: &mut Report) {
        report.columns = self.columns.into();
        report.panels = self.panels.into();
        report.experiment = Some(About {
            name: self.name.into(),
            what: self.what.into(),
            paper: self.paper.split_whitespace().collect::<Vec<_>>().join(" "),
            measured: (self.findings)(report),
        });
    }
}

/// Describes the peak IOPS of a line, and the IOPS and latency with more threads.
fn peak(report: &Report, line: &[&str]) -> Option<String> {
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
fn window(report: &Report) -> Vec<String> {
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
fn crossover(report: &Report) -> Vec<String> {
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
fn against(report: &Report, metric: Metric, pairs: &[(&str, &str)]) -> Vec<String> {
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
fn adaptive_beside_others(report: &Report) -> Vec<String> {
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
fn counts(report: &Report) -> Vec<String> {
    let mut text = Vec::new();
    for line in report.labels_of_lines() {
        let value = |mode: &str, metric: Metric| {
            let place: Vec<&str> = std::iter::once(mode).chain(line.iter().copied()).collect();
            report.at(&place).and_then(|entry| entry.get(metric)).unwrap_or(f64::NAN)
        };
        let (wqes, doorbells) = (|m| value(m, Metric::Wqes), |m| value(m, Metric::Doorbells));
        let relations = [
            ("WQEs: merge < single", wqes("merge") < wqes("single")),
            ("hybrid < single", wqes("hybrid") < wqes("single")),
            ("doorbell = single", wqes("doorbell") == wqes("single")),
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
    fn every_experiment_can_be_run() {
        for experiment in ALL {
            for quick in [false, true] {
                let matrix = experiment.matrix(&Settings::default(), quick, &[]).unwrap();
                assert!(matrix.cases.len() > 1, "{}", experiment.name);
                assert!(matrix.peak_memory(true) < 2 << 30, "{}", experiment.name);
            }
            assert!(list().contains(experiment.name));
        }
    }

    #[test]
    fn the_command_line_overrides_an_experiment_except_its_dimensions() {
        let fig6 = find("fig6").unwrap();
        let given = |name, value| Settings::from_pairs([(name, value)]);
        let matrix = fig6.matrix(&given("size", "16k"), true, &[]).unwrap();
        assert!(matrix.cases.iter().all(|case| case.load.size == 16384 && case.load.threads == 8));
        let err = fig6.matrix(&given("mode", "merge"), true, &[]).unwrap_err();
        assert_eq!(err.to_string(), "fig6 varies mode itself: leave --mode out");
        let fig2 = find("fig2").unwrap();
        assert!(fig2.matrix(&given("gap", "1s"), true, &[]).is_err());
        let err = find("table1").unwrap().matrix(&given("duration", "1s"), true, &[]).unwrap_err();
        assert!(err.to_string().contains("--ops"), "{err}");
        assert!(find("fig3").unwrap_err().to_string().contains("fig1, fig2, fig5"));
    }

    #[test]
    fn changes() {
        assert_eq!([change(1.5, 1.0), change(0.5, 1.0), change(1.0, 0.0)], ["+50 %", "-50 %", "-"]);
    }
}
