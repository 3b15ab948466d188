//! One run: sessions, warm-up, measurement, and resource usage.

pub mod clock;
mod measurement;
pub mod pace;
pub mod paging;
pub mod pending_transfer;
pub mod record;
pub mod requests;
pub mod window;
pub mod worker;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crossbeam_channel::bounded;
use measure::interrupt::Interrupt;
use rdmabox::{
    Address, CallsBy, RequestError, Session, SessionOptions, provider::model::ModelledCard,
    stats::CHAIN_CLASSES,
};
use serde::Serialize;

use crate::{
    Error, Result,
    load::{self, Load, OpKind, model::Model, value::Extent},
    servers::{fleet::Fleet, protocol},
    usage::Usage,
};
use measurement::Conductor;
use pace::Shared;
use record::{Latency, RuntimeLatency};
use requests::Target;
use worker::Event;

/// The measurements of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Requests that completed in the measured part.
    pub ops: u64,
    /// Bytes that these requests transferred, requests and replies.
    pub bytes: u64,
    /// Seconds from the start until the last thread was done, or of the measured window; of model
    /// time with a modelled card.
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
        window: has_window(load, card.as_ref().map(|(_, model)| *model)).then(Arc::default),
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
        let outcome = Conductor { shared: &shared, inbox, in_process, interrupt, progress }.conduct(gate);
        // The workers must end in any case. Those that wait at the gate see it close.
        shared.stop.store(true, Ordering::Relaxed);
        outcome
    });
    let (sample, swapped) = measured?;
    check_words(load, &words_before, &words(load, &targets)?, swapped)?;
    Ok(sample)
}

/// Returns true if the load is measured without a pause after the warm-up. Model time goes on in a
/// pause, and the card becomes empty.
fn has_window(load: &Load, model: Option<&Model>) -> bool {
    let is_timed = matches!((load.warmup, load.extent), (Extent::Time(_), Extent::Time(_)));
    let has_totals = matches!(load.op, OpKind::Cas | OpKind::Send);
    is_timed && !has_totals && model.is_some_and(Model::is_timed)
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
