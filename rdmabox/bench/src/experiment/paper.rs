//! The experiments of the paper.

use super::{
    definition::{Experiment, Options},
    findings::{adaptive_beside_others, against, counts, crossover, peak, window},
};
use crate::{report::metric::Metric, sweep::matrix::Dimension};

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
        panels: &[Metric::OpsPerSecond, Metric::WorkRequestsPerOp],
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
                flight improves performance by 29.9 %, since requests that wait merge.",
        base: &[("provider", "tcp"), ("size", "64k"), ("duration", "1s")],
        quick: QUICK,
        dimensions: || vec![threads(), queue_pairs_and_windows()],
        columns: &[
            Metric::OpsPerSecond,
            Metric::MibPerSecond,
            Metric::Mean,
            Metric::P99,
            Metric::WindowWaits,
            Metric::WorkRequestsPerOp,
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
            Metric::WorkRequests,
            Metric::Doorbells,
            Metric::Merged,
            Metric::WorkRequestsPerOp,
            Metric::DoorbellsPerOp,
        ],
        panels: &[Metric::WorkRequests, Metric::Doorbells],
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
    Metric::WorkRequestsPerOp,
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
