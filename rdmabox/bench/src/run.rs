//! One run: sessions, warm-up, the measured part, and what was used up meanwhile.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use measure::interrupt::Interrupt;
use rdmabox::{Address, RequestError, Session, SessionOptions};
use serde::Serialize;

use crate::{
    Error, Result,
    fleet::Fleet,
    load::{Load, OpKind},
    protocol,
    record::{Latency, Record},
    requests::Target,
    usage::Usage,
    value::Extent,
    worker::{self, Event, Shared},
};

/// How often the main thread looks at the interrupt flag and at the progress.
const TICK: Duration = Duration::from_millis(100);

/// What one run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Requests that completed in the measured part.
    pub ops: u64,
    /// Bytes that they moved, requests and replies.
    pub bytes: u64,
    /// From the start until the last thread was done.
    pub seconds: f64,
    /// Of single requests.
    pub latency: Latency,
    /// What this process used up without its main thread, which only waits; with the servers if they run in it.
    pub client: Usage,
    /// What all servers used up; none if they run in this process.
    pub server: Option<Usage>,
    /// Compare-and-swaps that took place, for that operation.
    pub swapped: Option<u64>,
    /// Idle gaps between bursts, for bursts: each of them is a voluntary context switch of the client.
    pub gaps: Option<u64>,
    /// Counters of the runtime, all sessions together.
    pub counters: BTreeMap<String, u64>,
}

/// Runs a load. `progress` is told from time to time what part of the time, or of the requests, is over.
pub fn run(
    load: &Load,
    fleet: &mut Fleet,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(f64),
) -> Result<Sample> {
    let addresses = fleet.addresses(load.provider, load.peers, interrupt)?;
    let in_process = fleet.in_process();
    let options = SessionOptions { rdma: fleet.rdma().clone(), ..load.session_options() };
    once(load, &addresses, &options, in_process, interrupt, progress).map_err(|err| fleet.explain(err))
}

fn once(
    load: &Load,
    addresses: &[Address],
    options: &SessionOptions,
    in_process: bool,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(f64),
) -> Result<Sample> {
    let targets = addresses
        .iter()
        .map(|address| connect(address, Session::connect(address, options)?, load))
        .collect::<Result<Vec<_>>>()?;
    let words_before = words(load, &targets)?;
    let shared = Shared {
        load,
        targets: &targets,
        cursors: targets.iter().map(|_| Arc::default()).collect(),
        stop: AtomicBool::new(false),
    };
    let measured = thread::scope(|scope| {
        let (events, inbox) = mpsc::channel();
        let mut gates = Vec::new();
        for thread in 0..load.threads {
            let (gate, go) = mpsc::channel();
            let (shared, events) = (&shared, events.clone());
            let name = format!("bench-{thread}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, move || {
                let body = AssertUnwindSafe(|| worker::work(shared, thread, &events, &go));
                if catch_unwind(body).is_err() {
                    let _ = events.send(Event::Failed(RequestError::Invalid("a thread panicked".into())));
                }
            });
            match spawned {
                Ok(_) => gates.push(gate),
                Err(err) => {
                    shared.stop.store(true, Ordering::Relaxed);
                    return Err(measure::Error::io(format!("thread {thread}"))(err).into());
                }
            }
        }
        let outcome = conduct(&shared, &inbox, gates, in_process, interrupt, progress);
        // Whatever it was, the workers have to end; those at their gates saw the gates go.
        shared.stop.store(true, Ordering::Relaxed);
        outcome
    });
    let (sample, swapped) = measured?;
    check_words(load, &words_before, &words(load, &targets)?, swapped)?;
    Ok(sample)
}

/// Takes the workers through warm-up and measurement. Also returns how many swaps took place in both.
fn conduct(
    shared: &Shared<'_>,
    inbox: &Receiver<Event>,
    gates: Vec<Sender<()>>,
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
    let client_before = client_usage();
    let began = Instant::now();
    for gate in &gates {
        // A worker that is gone has said why.
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
    let mut counters = BTreeMap::new();
    for (target, before) in shared.targets.iter().zip(&stats_before) {
        for (name, value) in target.session.stats().since(before).counters() {
            *counters.entry(name.to_owned()).or_default() += value;
        }
    }
    let server = server_usage(shared.targets)?.minus(server_before);
    swapped += record.swapped;
    let bytes = load.size + load.reply.unwrap_or(0);
    let sample = Sample {
        ops: record.ops,
        bytes: record.ops * bytes,
        seconds: (ended - began).as_secs_f64(),
        latency: record.latency(),
        client,
        server: (!in_process).then_some(server),
        swapped: (load.op == OpKind::Cas).then_some(record.swapped),
        gaps: load.burst.map(|_| record.gaps),
        counters,
    };
    Ok((sample, swapped))
}

/// Waits for one event of every worker, and raises the stop flag when the time of the phase is over.
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
    let mut missing = shared.load.threads;
    while missing > 0 {
        interrupt.check()?;
        let wait = match extent {
            Extent::Time(time) => {
                let left = time.saturating_sub(began.elapsed());
                if left.is_zero() {
                    shared.stop.store(true, Ordering::Relaxed);
                    TICK
                } else {
                    left.min(TICK)
                }
            }
            Extent::Ops(_) => TICK,
        };
        match inbox.recv_timeout(wait) {
            Ok(Event::Failed(err)) => return Err(err.into()),
            Ok(event) => {
                take(event);
                missing -= 1;
            }
            Err(RecvTimeoutError::Timeout) => progress(match extent {
                Extent::Time(time) => began.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9),
                Extent::Ops(total) => (requests() - requests_before) as f64 / total.max(1) as f64,
            }),
            // Every worker sends before it ends.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}

/// Asks a server what it lends.
fn connect(address: &Address, session: Arc<Session>, load: &Load) -> Result<Target> {
    let stranger = || Error::Stranger(address.to_string());
    let mut reply = Vec::new();
    session.call(&protocol::ask_where(), &mut reply).map_err(|_| stranger())?;
    let lent = protocol::read_where(&reply).ok_or_else(stranger)?;
    if lent.len < load.area {
        let (has, wants) = (measure::size::show(lent.len), measure::size::show(load.area));
        return Err(Error::usage(format!(
            "{address} lends {has}, this load wants {wants}: start the server with more --memory or give --area"
        )));
    }
    Ok(Target { session, base: lent.base })
}

/// What this process has used up without the calling thread.
fn client_usage() -> Usage {
    Usage::of_process().minus(Usage::of_thread())
}

fn server_usage(targets: &[Target]) -> Result<Usage> {
    let mut total = Usage::default();
    let mut reply = Vec::new();
    for target in targets {
        target.session.call(&protocol::ask_usage(), &mut reply)?;
        let usage = protocol::read_usage(&reply).ok_or_else(|| Error::Stranger("what answered".into()))?;
        total = total.plus(usage);
    }
    Ok(total)
}

/// The words that compare-and-swaps go to, added up. Nothing for other operations.
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

/// Every compare-and-swap that took place has added one to a word, and nothing else has.
fn check_words(load: &Load, before: &[u64], after: &[u64], swapped: u64) -> Result<()> {
    let added = before.iter().zip(after).fold(0u64, |sum, (b, a)| sum.wrapping_add(a.wrapping_sub(*b)));
    if load.op == OpKind::Cas && added != swapped {
        return Err(Error::Wrong(format!(
            "{swapped} compare-and-swaps reported success, the words have grown by {added}; \
             does somebody else use this server?"
        )));
    }
    Ok(())
}
