//! Takes the workers of a run through warm-up and measurement, and counts.
//!
//! Without a [`Window`] the workers pause after the warm-up, and all of them
//! begin the measured part at a gate. With a window they do not pause: the main thread reads the
//! counters at both ends of the measured part, and requests go on.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, after, never, select, tick};
use measure::interrupt::Interrupt;
use rdmabox::{StatsSnapshot, provider::model::CardCounters};

use super::{
    Sample,
    pace::Shared,
    record::{Record, RuntimeLatency},
    requests::Target,
    window::Window,
    worker::Event,
};
use crate::{
    Error, Result,
    load::{OpKind, value::Extent},
    servers::protocol,
    usage::Usage,
};

/// Interval at which the main thread checks the interrupt flag and the progress.
const TICK: Duration = Duration::from_millis(100);

/// The main thread of a run.
pub(super) struct Conductor<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) inbox: Receiver<Event>,
    pub(super) in_process: bool,
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: &'a mut dyn FnMut(f64),
}

/// The counters at a moment.
struct Counts {
    at: Instant,
    stats: Vec<StatsSnapshot>,
    card: Option<CardCounters>,
    client: Usage,
}

impl Counts {
    fn now(shared: &Shared<'_>) -> Counts {
        let client = client_usage();
        let stats = shared.targets.iter().map(|target| target.session.stats()).collect();
        let card = shared.card.as_ref().map(|(card, _)| card.counters());
        Counts { at: Instant::now(), stats, card, client }
    }
}

/// The measured part of a run.
struct Part {
    record: Record,
    /// The counters at its beginning and end.
    counts: [Counts; 2],
    ended: Instant,
    server: Usage,
    /// Number of swaps in the warm-up.
    swapped: u64,
}

impl Conductor<'_> {
    /// Runs the load. Also returns the number of swaps in warm-up and measurement.
    pub(super) fn conduct(mut self, gate: Sender<()>) -> Result<(Sample, u64)> {
        let part = match self.shared.window.clone() {
            Some(window) => self.without_a_pause(&window),
            None => self.in_two_phases(&gate),
        }?;
        let (load, shared) = (self.shared.load, self.shared);
        let Part { record, counts: [before, after], ended, server, swapped } = part;
        let runtime = after.stats.iter().zip(&before.stats).map(|(after, before)| after.since(before));
        let runtime = runtime.fold(StatsSnapshot::default(), |sum, session| sum.plus(&session));
        let peaks = shared.targets.iter().map(|target| target.session.in_flight().1);
        let bytes = load.size + load.reply.unwrap_or(0);
        let dilation = shared.card.as_ref().map_or(1, |(_, model)| model.dilation());
        let host_seconds = (ended - before.at).as_secs_f64();
        let sample = Sample {
            ops: record.ops,
            bytes: record.ops * bytes,
            seconds: host_seconds / f64::from(dilation),
            host_seconds,
            latency: record.latency(),
            client: after.client.minus(before.client),
            server: (!self.in_process).then_some(server),
            swapped: (load.op == OpKind::Cas).then_some(record.swapped),
            gaps: load.burst.map(|_| record.gaps),
            counters: counters(&runtime, before.card, after.card),
            chain_lengths: runtime.chain_lengths,
            runtime_latency: runtime_latency(&runtime, dilation),
            in_flight_peak: peaks.max().unwrap_or(0),
        };
        Ok((sample, swapped + record.swapped))
    }

    /// Measures while the load goes on.
    fn without_a_pause(&mut self, window: &Arc<Window>) -> Result<Part> {
        let shared = self.shared;
        let (Extent::Time(warmup), Extent::Time(duration)) = (shared.load.warmup, shared.load.extent) else {
            return Err(Error::usage("a number of requests has no window"));
        };
        let mut record = Record::new();
        let mut missing = shared.load.threads;
        let mut take = |event| {
            if let Event::Done(own, _) = event {
                record.add(&own);
            }
        };
        self.collect(&mut missing, Some(warmup), false, &mut take)?;
        let server = server_usage(shared.targets)?;
        window.open();
        let before = Counts::now(shared);
        self.collect(&mut missing, Some(duration), true, &mut take)?;
        let after = Counts::now(shared);
        window.close();
        shared.stop.store(true, Ordering::Relaxed);
        self.collect(&mut missing, None, false, &mut take)?;
        let server = server_usage(shared.targets)?.minus(server);
        Ok(Part { record, ended: after.at, counts: [before, after], server, swapped: 0 })
    }

    /// Runs the warm-up until its requests have completed, and then the measurement.
    fn in_two_phases(&mut self, gate: &Sender<()>) -> Result<Part> {
        let (shared, load) = (self.shared, self.shared.load);
        let mut swapped = 0;
        self.phase(load.warmup, false, &mut |event| {
            if let Event::Ready(warm) = event {
                swapped += warm;
            }
        })?;
        shared.stop.store(false, Ordering::Relaxed);
        let server = server_usage(shared.targets)?;
        let before = Counts::now(shared);
        for _ in 0..load.threads {
            // The channel has room and a receiver, which main also holds. A worker that has ended
            // has sent its reason.
            let _ = gate.send(());
        }
        let (mut record, mut ended) = (Record::new(), before.at);
        self.phase(load.extent, true, &mut |event| {
            if let Event::Done(own, at) = event {
                record.add(&own);
                ended = ended.max(at);
            }
        })?;
        let after = Counts::now(shared);
        let server = server_usage(shared.targets)?.minus(server);
        Ok(Part { record, ended, counts: [before, after], server, swapped })
    }

    /// Waits until every worker has ended a phase. Sets the stop flag at the end of its time.
    fn phase(&mut self, extent: Extent, is_measured: bool, take: &mut dyn FnMut(Event)) -> Result<()> {
        let mut missing = self.shared.load.threads;
        if let Extent::Time(time) = extent {
            self.collect(&mut missing, Some(time), is_measured, take)?;
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        self.collect(&mut missing, None, is_measured, take)
    }

    /// Takes events of workers until the time is over, or until `missing` events have come. Shows
    /// the progress of the measured part.
    fn collect(
        &mut self,
        missing: &mut u32,
        time: Option<Duration>,
        is_measured: bool,
        take: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let began = Instant::now();
        let requests_before = requests(self.shared.targets);
        let over = time.map_or_else(never, after);
        let ticks = tick(TICK);
        while *missing > 0 {
            self.interrupt.check()?;
            select! {
                recv(self.inbox) -> event => match event {
                    Ok(Event::Failed(err)) => return Err(err.into()),
                    Ok(event) => {
                        take(event);
                        *missing -= 1;
                    }
                    // Every worker sends an event before it ends.
                    Err(_) => break,
                },
                recv(over) -> _ => break,
                recv(ticks) -> _ => if is_measured {
                    (self.progress)(match (time, self.shared.load.extent) {
                        (Some(time), _) => began.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9),
                        (None, Extent::Time(_)) => 1.0,
                        (None, Extent::Ops(total)) => {
                            (requests(self.shared.targets) - requests_before) as f64 / total.max(1) as f64
                        }
                    });
                },
            }
        }
        Ok(())
    }
}

/// Returns the requests of all sessions so far.
fn requests(targets: &[Target]) -> u64 {
    let names = ["read_requests", "write_requests", "atomic_requests", "calls"];
    let stats = targets.iter().map(|target| target.session.stats());
    stats.map(|stats| names.map(|name| stats.get(name)).iter().sum::<u64>()).sum()
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
