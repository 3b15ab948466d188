//! The experiments on a modelled card: their loads, and their results beside the paper's.
//!
//! A modelled card wants other loads than a software provider. With requests of 4 KiB a unit of the
//! card is the limit of one queue pair. With four queue pairs the wire is: a message takes it 609
//! ns, the requester 474 ns and a fourth of a unit 290 ns. The paper's window has about 7 MB. Here
//! it has the bytes in flight at the model's peak, which are fewer. Times of a load are model
//! times, except for the duration of the run.

use super::{
    definition::Options,
    rows::{fig1, fig2, fig5, fig6, fig7, fig8, fig9, table1},
};
use crate::{
    report::{Report, Row, metric::Metric},
    sweep::{
        matrix::{Dimension, Value},
        settings::Settings,
    },
};

/// An experiment on a modelled card.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnCard {
    /// Options of all runs.
    pub(super) base: Options,
    pub(super) dimensions: fn() -> Vec<Dimension>,
    pub(super) columns: &'static [Metric],
    pub(super) panels: &'static [Metric],
    pub(super) rows: fn(&Report) -> Vec<Row>,
}

/// Options of a run's length. Those of the command line replace those of any load.
pub(super) const LENGTHS: [&str; 2] = ["warmup", "duration"];
/// Lengths of a run over a provider of this machine.
pub(super) const ON_PROVIDER: Options = &[("duration", "500ms"), ("warmup", "100ms")];
/// Lengths of a quick run.
pub(super) const QUICK: Options = &[("duration", "300ms"), ("warmup", "100ms")];

const MODES: [&str; 4] = ["single", "merge", "doorbell", "hybrid"];

/// Counts by thread: how far the card is filled.
const BY_THREADS: &[Metric] = &[
    Metric::OpsPerSecond,
    Metric::MibPerSecond,
    Metric::Mean,
    Metric::P99,
    Metric::WorkRequestsPerOp,
    Metric::CardMissesPerOp,
];
const BATCHED: &[Metric] = &[
    Metric::OpsPerSecond,
    Metric::P50,
    Metric::P99,
    Metric::WorkRequestsPerOp,
    Metric::DoorbellsPerOp,
    Metric::CardMissesPerOp,
    Metric::CardCpuPerOp,
];
const POLLING: &[Metric] = &[
    Metric::OpsPerSecond,
    Metric::P50,
    Metric::P99,
    Metric::CardCpuPerOp,
    Metric::InterruptsPerOp,
    Metric::PollsPerOp,
];

/// Plain verbs: registered buffers, no merging, no window.
const PLAIN: Options = &[
    ("provider", "shm"),
    ("size", "4k"),
    ("depth", "16"),
    ("reg", "registered"),
    ("area", "8m"),
    ("max-retry", "120"),
    ("qps", "1"),
    ("window", "none"),
    ("mode", "single"),
    ("warmup", "300ms"),
    ("duration", "500ms"),
];

/// Requests of 2 KiB: the card limits them, and not the wire. The program's work of 12 threads asks
/// for more than the card does. 84 requests are 1.3 times the card's work request cache. With 96
/// the card has two states, and a run stays in the state that it happens to begin with. So have the
/// READs of `table1` with a shorter work of the program. The warm-up is long enough for a run to
/// leave the state of its beginning.
const BATCHING: Options = &[
    ("provider", "shm"),
    ("size", "2k"),
    ("threads", "12"),
    ("depth", "7"),
    ("area", "8m"),
    ("max-retry", "120"),
    ("window", "none"),
    ("think", "4400ns"),
    ("warmup", "1s"),
    ("duration", "500ms"),
];
/// A warm-up of loads that leave the state of their beginning late.
const LATE: (&str, &str) = ("warmup", "1500ms");

/// A paged program. The page faults of its threads are one and a half times the card's work request
/// cache. The other options of an experiment stay as they are.
const PAGING: Options = &[
    ("op", "paging"),
    ("size", "4k"),
    ("depth", "1"),
    ("threads", "96"),
    ("area", "8m"),
    ("warmup", "300ms"),
];
/// The queries and local pages of paged programs, with names.
const PROGRAMS: [(&str, Options); 4] = [
    ("etc 25 %", &[("load", "etc"), ("local", "25")]),
    ("etc 50 %", &[("load", "etc"), ("local", "50")]),
    ("sys 25 %", &[("load", "sys"), ("local", "25")]),
    ("sys 50 %", &[("load", "sys"), ("local", "50")]),
];

/// Returns the length of a run at the limit of the card. The batches of write-outs of one program
/// are large and rare, so that it needs a longer run.
fn length(program: &str) -> Options {
    if program == "sys 50 %" { &[("duration", "3s")] } else { &[] }
}

fn length_for_tails(program: &str) -> Options {
    if program == "sys 50 %" { &[("duration", "5s")] } else { &[("duration", "3s")] }
}

const BURSTS: Options = &[
    ("provider", "shm"),
    ("size", "4k"),
    ("area", "8m"),
    ("qps", "1"),
    ("mode", "single"),
    ("reg", "registered"),
    ("submit", "started"),
    ("max-retry", "120"),
    ("pattern", "bursts"),
    ("warmup", "200ms"),
    ("duration", "500ms"),
];

/// As [`BURSTS`], with a program that works for 30 us before each request.
const BUSY_PROGRAM: Options = &[
    ("provider", "shm"),
    ("size", "4k"),
    ("area", "8m"),
    ("qps", "1"),
    ("mode", "single"),
    ("reg", "registered"),
    ("submit", "started"),
    ("max-retry", "120"),
    ("pattern", "bursts"),
    ("depth", "8"),
    ("burst", "8"),
    ("gap", "0"),
    ("think", "30us"),
    ("warmup", "200ms"),
    ("duration", "800ms"),
];

/// As the paper ran it: a thread for each completion queue polls all the time, and runs callbacks
/// that wake the program's threads.
const CALLBACKS: Options = &[("submit", "callback"), ("pollers", "stand")];
/// The name of loads with [`CALLBACKS`].
pub(super) const POLLERS: &str = "pollers";
/// The name of the load whose gaps are longer than adaptive polling polls.
pub(super) const SELDOM: &str = "seldom, pollers";

const FIG1: OnCard = OnCard {
    base: PLAIN,
    dimensions: || vec![threads()],
    columns: BY_THREADS,
    panels: &[Metric::OpsPerSecond, Metric::Mean],
    rows: fig1,
};

const FIG2: OnCard = OnCard {
    base: BURSTS,
    dimensions: || vec![bursts(), polling()],
    columns: POLLING,
    panels: &[Metric::OpsPerSecond, Metric::CardCpuPerOp, Metric::InterruptsPerOp],
    rows: fig2,
};

const FIG5: OnCard = OnCard {
    base: &[
        ("provider", "shm"),
        ("threads", "1"),
        ("depth", "1"),
        ("mode", "single"),
        ("window", "none"),
        ("area", "8m"),
        ("max-retry", "120"),
        ("warmup", "200ms"),
        ("duration", "500ms"),
    ],
    dimensions: || {
        let sizes = ["64k", "256k", "512k", "768k", "896k", "1m"];
        vec![Dimension::of_option("size", &sizes), Dimension::of_option("reg", &["pre", "dyn"])]
    },
    columns: &[Metric::P50, Metric::Mean, Metric::OpsPerSecond, Metric::CardCpuPerOp],
    panels: &[Metric::Mean],
    rows: fig5,
};

const FIG6: OnCard = OnCard {
    base: BATCHING,
    dimensions: || batching(length),
    columns: BATCHED,
    panels: &[Metric::OpsPerSecond, Metric::WorkRequestsPerOp],
    rows: fig6,
};

/// The latencies of Fig. 6. A percentile of few requests needs a longer run than their number.
const FIG7: OnCard = OnCard {
    dimensions: || batching(length_for_tails),
    panels: &[Metric::P99, Metric::P50],
    rows: fig7,
    ..FIG6
};

/// Fig. 1 with more queue pairs, merging and windows; then paged programs with these.
const FIG8: OnCard = OnCard { dimensions: || vec![threads_and_programs(), settings()], rows: fig8, ..FIG1 };

/// Fig. 2 with a busy program and more peers.
const FIG9: OnCard =
    OnCard { base: BUSY_PROGRAM, dimensions: || vec![peers(), polling()], rows: fig9, ..FIG2 };

const TABLE1: OnCard = OnCard {
    base: BATCHING,
    dimensions: counting,
    columns: &[
        Metric::Ops,
        Metric::WorkRequests,
        Metric::Doorbells,
        Metric::WorkRequestsPerOp,
        Metric::DoorbellsPerOp,
    ],
    panels: &[Metric::WorkRequestsPerOp, Metric::DoorbellsPerOp],
    rows: table1,
};

/// Returns the experiment of the given name on a modelled card.
pub(super) fn on_card(name: &str) -> Option<OnCard> {
    let experiment = match name {
        "fig1" => FIG1,
        "fig2" => FIG2,
        "fig5" => FIG5,
        "fig6" => FIG6,
        "fig7" => FIG7,
        "fig8" => FIG8,
        "fig9" => FIG9,
        "table1" => TABLE1,
        _ => return None,
    };
    Some(experiment)
}

fn threads() -> Dimension {
    let counts = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "12", "16"];
    Dimension::of_option("threads", &counts)
}

fn threads_and_programs() -> Dimension {
    let mut dimension = threads();
    for (name, program) in PROGRAMS {
        dimension.values.push(value(name.to_owned(), &[PAGING, program, length(name)]));
    }
    dimension
}

/// Returns the queue pairs, modes and windows of Fig. 8. The windows have the bytes in flight of 4
/// threads with one queue pair. If the calibration holds, this is the peak without a window. As
/// many requests fill the card's work request cache. The results name the bytes at the peak of the
/// run.
fn settings() -> Dimension {
    let settings: [(&str, Options); 6] = [
        ("1 QP, single, no window", &[]),
        ("1 QP, single, window 256k", &[("window", "256k")]),
        ("4 QPs, single, no window", &[("qps", "4")]),
        ("4 QPs, single, window 256k", &[("qps", "4"), ("window", "256k")]),
        ("4 QPs, hybrid, no window", &[("qps", "4"), ("mode", "hybrid"), LATE]),
        ("4 QPs, hybrid, window 256k", &[("qps", "4"), ("mode", "hybrid"), ("window", "256k"), LATE]),
    ];
    Dimension::of_settings("setting", &settings)
}

fn bursts() -> Dimension {
    let shapes: [(&str, Options); 3] = [
        ("small", &[("burst", "1"), ("depth", "1"), ("gap", "0")]),
        ("medium", &[("burst", "8"), ("depth", "8"), ("gap", "5us")]),
        ("large", &[("burst", "32"), ("depth", "32"), ("gap", "0")]),
    ];
    let mut dimension = Dimension::of_settings("burst", &shapes);
    for (name, shape) in shapes {
        dimension.values.push(value(format!("{name}, {POLLERS}"), &[shape, CALLBACKS]));
    }
    // The gap is longer than 120 polls of 60 ns.
    let seldom: Options = &[("burst", "1"), ("depth", "1"), ("gap", "20us")];
    dimension.values.push(value(SELDOM.to_owned(), &[seldom, CALLBACKS]));
    dimension
}

/// Returns the peers of Fig. 9. Threads and the program's work are chosen so that the polling
/// threads can matter. Each peer has six threads, which share its queue pair. Their program's work
/// needs most of the 32 processors of the paper's machines with 4 peers, and all of them with 8.
fn peers() -> Dimension {
    let shared: [(&str, Options); 4] = [
        ("1", &[("peers", "1"), ("threads", "6")]),
        ("2", &[("peers", "2"), ("threads", "12")]),
        ("4", &[("peers", "4"), ("threads", "24")]),
        ("8", &[("peers", "8"), ("threads", "48")]),
    ];
    let mut dimension = Dimension::of_settings("peers", &shared);
    // The same program with the same pages on more servers.
    for (peers, area) in [("1", "8m"), ("2", "4m"), ("4", "2m"), ("8", "1m")] {
        let own = [("op", "paging"), ("depth", "1"), ("reg", "pre"), ("peers", peers), ("area", area)];
        for (name, program) in PROGRAMS {
            let options = [&own[..], program, &[("threads", "48")]];
            dimension.values.push(value(format!("{peers}, {name}"), &options));
        }
        // A thread for each of the 32 processors. While a thread waits for a page, its processor is
        // free, so the paper's 4 polling threads find room, and 8 do not.
        let fewer = [("load", "sys"), ("local", "25"), ("threads", "32")];
        dimension.values.push(value(format!("{peers}, {POLLERS}"), &[&own, &fewer, CALLBACKS]));
    }
    dimension
}

fn polling() -> Dimension {
    Dimension::of_option("polling", &["busy", "event", "event-batch", "hybrid", "adaptive"])
}

/// Returns modes by pattern, kind of memory, and the bytes of a list for one queue pair. Then modes
/// by paged program and kind of memory.
fn batching(length: fn(&str) -> Options) -> Vec<Dimension> {
    let mut values = Vec::new();
    // A list of up to this length goes to one queue pair. The default of the runtime is 1m.
    for list in ["16k", "1m"] {
        for reg in ["pre", "registered"] {
            for pattern in ["rand", "mixed"] {
                let settings = [("pattern", pattern), ("reg", reg), ("max-merge", list)];
                values.push(value(format!("{pattern}, {reg}, {list}"), &[&settings]));
            }
        }
    }
    for (name, program) in PROGRAMS {
        for reg in ["pre", "registered"] {
            let options = [PAGING, program, &[("reg", reg)], length(name)];
            values.push(value(format!("{name}, {reg}"), &options));
        }
    }
    vec![Dimension::of_option("mode", &MODES), Dimension { name: "load".to_owned(), values }]
}

/// Returns modes by operation and the bytes of a list for one queue pair. Then modes by paged
/// program, with the list of the runtime. READs with doorbell batching have two states of the card
/// with 84 requests under way, and one with 120.
fn counting() -> Vec<Dimension> {
    let mut values = Vec::new();
    for op in ["read", "write"] {
        for list in ["16k", "1m"] {
            let settings = [("op", op), ("pattern", "mixed"), ("max-merge", list), ("depth", "10"), LATE];
            values.push(value(format!("{op}, mixed, {list}"), &[&settings]));
        }
    }
    for (name, program) in PROGRAMS {
        values.push(value(name.to_owned(), &[PAGING, program, length(name)]));
    }
    vec![Dimension::of_option("mode", &MODES), Dimension { name: "load".to_owned(), values }]
}

/// Returns a value of a dimension whose options are those of several lists.
fn value(label: String, options: &[&[(&str, &str)]]) -> Value {
    Value { label, settings: Settings::from_pairs(options.concat()) }
}
