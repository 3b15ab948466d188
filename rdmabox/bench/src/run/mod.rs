//! One run: sessions, warm-up, measurement, and resource usage.

pub mod clock;
pub mod pace;
pub mod paging;
pub mod pending;
pub mod record;
pub mod requests;
pub mod worker;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, tick};
use measure::interrupt::Interrupt;
use rdmabox::{
    Address, CallsBy, RequestError, Session, SessionOptions, StatsSnapshot,
    provider::model::{CardCounters, ModelledCard},
    stats::CHAIN_CLASSES,
};
use serde::Serialize;

use crate::{
    Error, Result,
    load::{self, Load, OpKind, model::Model, value::Extent},
    servers::{fleet::Fleet, protocol},
    usage::Usage,
};
use pace::Shared;
use record::{Latency, Record, RuntimeLatency};
use requests::Target;
use worker::Event;

/// Interval at which the main thread checks the interrupt flag and the progress.
const TICK: Duration = Duration::from_millis(100);

/// The measurements of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Requests that completed in the measured part.
    pub ops: u64,
    /// Bytes that these requests transferred, requests and replies.
    pub bytes: u64,
    /// Seconds from the start until the last thread was done; of model time with a modelled card.
    pub seconds: f64,
    /// The same in this machine's time.
    pub host_seconds: f64,
    /// Latency of single requests.
    pub latency: Latency,
    /// Usage of this process without its main thread, which only waits. Includes servers that run
    /// in this process.
    pub client: Usage,
    /// Usage of all servers; `None` if they run in this process.
    pub server: Option<Usage>,
    /// Number of successful compare-and-swaps, for that operation.
    pub swapped: Option<u64>,
    /// Number of idle gaps, for bursts. Each gap is a voluntary context switch of the client.
    pub gaps: Option<u64>,
    /// Counters of the runtime, summed over all sessions.
    pub counters: BTreeMap<String, u64>,
    /// Lists that were posted, by the number of their work requests: 1, 2, 3 and 4, 5 to 8, and so
    /// on.
    pub chain_lengths: [u64; CHAIN_CLASSES],
    /// Latencies that the runtime recorded, per kind of request.
    pub runtime_latency: BTreeMap<&'static str, RuntimeLatency>,
    /// Maximum number of bytes that a session had in flight, in whole pages, including the warm-up.
    pub in_flight_peak: u64,
}

/// Runs a load. Calls `progress` repeatedly with the completed fraction of the time or of the
/// requests.
pub fn run(
    load: &Load,
    fleet: &mut Fleet,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(f64),
) -> Result<Sample> {
    let addresses = fleet.addresses(load.provider, load.peers, interrupt)?;
    let in_process = fleet.in_process();
    let card = fleet.model().map(|model| (model.card(), model));
    let mut options =
        Session::builder().options(load.session_options()).rdma(fleet.rdma().clone()).into_options();
    if let Some((card, _)) = &card {
        options.card = Some(Arc::clone(card));
        // Replies that are fetched would be requests of the card.
        options.calls = CallsBy::Reply;
    }
    let outcome = once(load, &addresses, &options, card, in_process, (interrupt, progress));
    outcome.map_err(|err| fleet.explain(err))
}

fn once(
    load: &Load,
    addresses: &[Address],
    options: &SessionOptions,
    card: Option<(Arc<ModelledCard>, &Model)>,
    in_process: bool,
    (interrupt, progress): (&Interrupt, &mut dyn FnMut(f64)),
) -> Result<Sample> {
    let targets = addresses
        .iter()
        .map(|address| connect(address, Session::connect(address, options)?, load))
        .collect::<Result<Vec<_>>>()?;
    let words_before = words(load, &targets)?;
    let steps = load
        .paging
        .map(|paging| load::paging::steps(paging, load.threads as usize, targets.len(), load.area))
        .transpose()?;
    let shared = Shared {
        load,
        targets: &targets,
        cursors: targets.iter().map(|_| Arc::default()).collect(),
        steps: steps.unwrap_or_default(),
        card,
        stop: AtomicBool::new(false),
    };
    let measured = thread::scope(|scope| {
        // Each worker sends at most two events and receives one message from the gate.
        let threads = load.threads as usize;
        let ((events, inbox), (gate, go)) = (bounded(2 * threads), bounded(threads));
        for thread in 0..load.threads {
            let (shared, events, go) = (&shared, events.clone(), go.clone());
            let name = format!("bench-{thread}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, move || {
                let body = AssertUnwindSafe(|| worker::work(shared, thread, &events, &go));
                if catch_unwind(body).is_err() {
                    let _ = events.send(Event::Failed(RequestError::Invalid("a thread panicked".into())));
                }
            });
            if let Err(err) = spawned {
                shared.stop.store(true, Ordering::Relaxed);
                return Err(measure::Error::io(format!("thread {thread}"))(err).into());
            }
        }
        let outcome = conduct(&shared, &inbox, gate, in_process, interrupt, progress);
        // The workers must end in any case. Those that wait at the gate see it close.
        shared.stop.store(true, Ordering::Relaxed);
        outcome
    });
    let (sample, swapped) = measured?;
    check_words(load, &words_before, &words(load, &targets)?, swapped)?;
    Ok(sample)
}

/// Takes the workers through warm-up and measurement. Also returns the number of swaps in both.
fn conduct(
    shared: &Shared<'_>,
    inbox: &Receiver<Event>,
    gate: Sender<()>,
    in_process: bool,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(f64),
) -> Result<(Sample, u64)> {
    let load = shared.load;
    let mut swapped = 0;
    collect(shared, inbox, load.warmup, interrupt, &mut |_| {}, |event| {
        if let Event::Ready(warm) = event {
            swapped += warm;
        }
    })?;
    shared.stop.store(false, Ordering::Relaxed);

    let server_before = server_usage(shared.targets)?;
    let stats_before: Vec<_> = shared.targets.iter().map(|target| target.session.stats()).collect();
    let card_before = card_counters(shared);
    let client_before = client_usage();
    let began = Instant::now();
    for _ in 0..load.threads {
        // The channel has room and a receiver, which main also holds. A worker that has ended has
        // sent its reason.
        let _ = gate.send(());
    }
    let (mut record, mut ended) = (Record::new(), began);
    collect(shared, inbox, load.extent, interrupt, progress, |event| {
        if let Event::Done(own, at) = event {
            record.add(&own);
            ended = ended.max(at);
        }
    })?;
    let client = client_usage().minus(client_before);
    let card_after = card_counters(shared);
    let runtime = shared
        .targets
        .iter()
        .zip(&stats_before)
        .map(|(target, before)| target.session.stats().since(before))
        .fold(StatsSnapshot::default(), |sum, session| sum.plus(&session));
    let peaks = shared.targets.iter().map(|target| target.session.in_flight().1);
    let server = server_usage(shared.targets)?.minus(server_before);
    swapped += record.swapped;
    let bytes = load.size + load.reply.unwrap_or(0);
    let dilation = shared.card.as_ref().map_or(1, |(_, model)| model.dilation());
    let host_seconds = (ended - began).as_secs_f64();
    let sample = Sample {
        ops: record.ops,
        bytes: record.ops * bytes,
        seconds: host_seconds / f64::from(dilation),
        host_seconds,
        latency: record.latency(),
        client,
        server: (!in_process).then_some(server),
        swapped: (load.op == OpKind::Cas).then_some(record.swapped),
        gaps: load.burst.map(|_| record.gaps),
        counters: counters(&runtime, card_before, card_after),
        chain_lengths: runtime.chain_lengths,
        runtime_latency: runtime_latency(&runtime, dilation),
        in_flight_peak: peaks.max().unwrap_or(0),
    };
    Ok((sample, swapped))
}

/// Returns the counters of the runtime, and of the modelled card if there is one.
fn counters(
    runtime: &StatsSnapshot,
    card_before: Option<CardCounters>,
    card_after: Option<CardCounters>,
) -> BTreeMap<String, u64> {
    let mut counters: BTreeMap<String, u64> =
        runtime.counters().map(|(name, value)| (name.to_owned(), value)).collect();
    if let (Some(after), Some(before)) = (card_after, card_before) {
        // No counter of the runtime has such a name.
        let named = after.since(&before).named();
        counters.extend(named.map(|(name, value)| (format!("card_{name}"), value)));
    }
    counters
}

/// Returns the counts of the modelled card, if there is one.
fn card_counters(shared: &Shared<'_>) -> Option<CardCounters> {
    shared.card.as_ref().map(|(card, _)| card.counters())
}

fn runtime_latency(stats: &StatsSnapshot, dilation: u32) -> BTreeMap<&'static str, RuntimeLatency> {
    let kinds = [
        ("read", &stats.read_latency),
        ("write", &stats.write_latency),
        ("atomic", &stats.atomic_latency),
        ("call", &stats.call_latency),
    ];
    let summary = |histogram| RuntimeLatency::of(histogram, dilation);
    kinds.into_iter().filter_map(|(kind, histogram)| Some((kind, summary(histogram)?))).collect()
}

/// Waits for one event of every worker. Sets the stop flag at the end of the phase's time.
fn collect(
    shared: &Shared<'_>,
    inbox: &Receiver<Event>,
    extent: Extent,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(f64),
    mut take: impl FnMut(Event),
) -> Result<()> {
    let began = Instant::now();
    let requests = || -> u64 {
        let stats = shared.targets.iter().map(|target| target.session.stats());
        stats
            .map(|s| {
                ["read_requests", "write_requests", "atomic_requests", "calls"]
                    .map(|n| s.get(n))
                    .iter()
                    .sum::<u64>()
            })
            .sum()
    };
    let requests_before = requests();
    let over = match extent {
        Extent::Time(time) => after(time),
        Extent::Ops(_) => never(),
    };
    let ticks = tick(TICK);
    let mut missing = shared.load.threads;
    while missing > 0 {
        interrupt.check()?;
        select! {
            recv(inbox) -> event => match event {
                Ok(Event::Failed(err)) => return Err(err.into()),
                Ok(event) => {
                    take(event);
                    missing -= 1;
                }
                // Every worker sends an event before it ends.
                Err(_) => break,
            },
            recv(over) -> _ => shared.stop.store(true, Ordering::Relaxed),
            recv(ticks) -> _ => progress(match extent {
                Extent::Time(time) => began.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9),
                Extent::Ops(total) => (requests() - requests_before) as f64 / total.max(1) as f64,
            }),
        }
    }
    Ok(())
}

/// Asks a server for the location of its memory.
fn connect(address: &Address, session: Arc<Session>, load: &Load) -> Result<Target> {
    let stranger = || Error::Stranger(address.to_string());
    let mut reply = Vec::new();
    session.call(&protocol::ask_where(), &mut reply).map_err(|_| stranger())?;
    let lent = protocol::read_where(&reply).ok_or_else(stranger)?;
    if lent.len < load.area {
        let (has, wants) = (byte_size::show(lent.len), byte_size::show(load.area));
        return Err(Error::usage(format!(
            "{address} lends {has}, this load wants {wants}: start the server with more --memory or give --area"
        )));
    }
    Ok(Target { session, base: lent.base })
}

/// Returns the usage of this process without the calling thread.
fn client_usage() -> Usage {
    Usage::of_process().minus(Usage::of_thread())
}

fn server_usage(targets: &[Target]) -> Result<Usage> {
    let mut total = Usage::default();
    let mut reply = Vec::new();
    for target in targets {
        target.session.call(&protocol::ask_usage(), &mut reply)?;
        let usage = protocol::read_usage(&reply).ok_or_else(|| Error::Stranger("the peer".into()))?;
        total = total.plus(usage);
    }
    Ok(total)
}

/// Returns the sum of the compare-and-swap words of each peer. Empty for other operations.
fn words(load: &Load, targets: &[Target]) -> Result<Vec<u64>> {
    if load.op != OpKind::Cas {
        return Ok(Vec::new());
    }
    let mut sums = Vec::new();
    let mut memory = vec![0; load.area as usize];
    for target in targets {
        target.session.read(target.base, &mut memory)?;
        let (words, _) = memory.as_chunks::<8>();
        let every = (load.stride() / 8) as usize;
        sums.push(
            words.iter().step_by(every).fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word))),
        );
    }
    Ok(sums)
}

/// Checks that the words were incremented exactly once per successful compare-and-swap.
fn check_words(load: &Load, before: &[u64], after: &[u64], swapped: u64) -> Result<()> {
    let added = before.iter().zip(after).fold(0u64, |sum, (b, a)| sum.wrapping_add(a.wrapping_sub(*b)));
    if load.op == OpKind::Cas && added != swapped {
        return Err(Error::Wrong(format!(
            "{swapped} compare-and-swaps reported success, the words have grown by {added}; \
             another client may be using this server"
        )));
    }
    Ok(())
}
