//! One worker thread of a load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};
use rdmabox::{Buffer, RequestError, provider::model::ModelledCard};

use super::{
    record::Record,
    requests::{Blocking, Calls, Direction, Requests, Started, Swaps, Target},
};
use crate::load::{
    Load, OpKind, Submit,
    model::Model,
    pattern::{Places, share},
    value::{Extent, Reg},
};

/// State that all workers of a run share.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The load.
    pub load: &'a Load,
    /// The peers.
    pub targets: &'a [Target],
    /// The shared cursor of each peer.
    pub cursors: Vec<Arc<AtomicU64>>,
    /// The modelled card, and its dilation.
    pub card: Option<(Arc<ModelledCard>, &'a Model)>,
    /// Ends a phase early, or at the end of its time.
    pub stop: AtomicBool,
}

/// Messages of a worker to the main thread.
#[derive(Debug)]
pub enum Event {
    /// The warm-up is done, with this number of successful compare-and-swaps. The worker waits for
    /// the gate.
    Ready(u64),
    /// The measurement is done.
    Done(Box<Record>, Instant),
    /// A request failed.
    Failed(RequestError),
}

/// Runs worker number `thread`. Returns early without an event if the gate `go` closes.
pub fn work(shared: &Shared<'_>, thread: u32, events: &Sender<Event>, go: &Receiver<()>) {
    let load = shared.load;
    let event = match (load.submit, load.op) {
        (Submit::Started, OpKind::Write) => started(shared, thread, Direction::Write, events, go),
        (Submit::Started, OpKind::Read) => started(shared, thread, Direction::Read, events, go),
        _ => blocking(shared, thread, events, go),
    };
    // The main thread may have ended the run.
    let _ = events.send(event);
}

/// Offset in bytes of the buffers of blocking requests from the beginning of a page. Copies to
/// unaligned addresses are slower. Copies between equal page offsets are also slower, because the
/// processor assumes that a load depends on an earlier store (4K aliasing).
const ASIDE: usize = 512;
const PAGE: usize = 4096;

/// Runs with requests that are started separately.
fn started(
    shared: &Shared<'_>,
    thread: u32,
    direction: Direction,
    events: &Sender<Event>,
    go: &Receiver<()>,
) -> Event {
    let (targets, depth, size) = (shared.targets, shared.load.depth as usize, shared.load.size as usize);
    if shared.load.reg != Reg::Registered {
        // Nonzero bytes force separate pages for each buffer. All peers share the buffers.
        let buffers = vec![(0..depth).map(|_| vec![0x5a_u8; size]).collect()];
        return run(shared, thread, Started::new(targets, direction, buffers), events, go);
    }
    // Each session has its own registered memory.
    let buffers: Option<Vec<Vec<Buffer>>> =
        targets.iter().map(|target| (0..depth).map(|_| target.session.buffer(size)).collect()).collect();
    match buffers {
        Some(buffers) => run(shared, thread, Started::new(targets, direction, buffers), events, go),
        None => Event::Failed(RequestError::Invalid(
            "a session has not so much registered memory: give less --size, --depth or --threads".into(),
        )),
    }
}

/// Runs with blocking calls.
fn blocking(shared: &Shared<'_>, thread: u32, events: &Sender<Event>, go: &Receiver<()>) -> Event {
    let load = shared.load;
    let depth = load.depth as usize;
    // Nonzero bytes force the allocation of pages.
    let bytes = if load.op == OpKind::Send { 0 } else { load.size as usize * depth };
    let mut memory = vec![0x5a_u8; bytes + PAGE + ASIDE];
    let start = memory.as_ptr().align_offset(PAGE).min(PAGE) + ASIDE;
    let memory = &mut memory[start..start + bytes];
    let size = (load.size as usize).max(1);
    match load.op {
        OpKind::Read => {
            let buffers = memory.chunks_exact_mut(size);
            run(shared, thread, Blocking::new(shared.targets, buffers), events, go)
        }
        OpKind::Write => {
            let buffers = memory.chunks_exact(size);
            run(shared, thread, Blocking::new(shared.targets, buffers), events, go)
        }
        OpKind::Cas => {
            let (mut olds, words) = (vec![0; depth], load.area / load.stride());
            run(shared, thread, Swaps::new(shared.targets, &mut olds, words, load.stride()), events, go)
        }
        OpKind::Send => {
            let calls = Calls::new(shared.targets, load.size, load.reply.unwrap_or(0));
            run(shared, thread, calls, events, go)
        }
    }
}

fn run(
    shared: &Shared<'_>,
    thread: u32,
    requests: impl Requests,
    events: &Sender<Event>,
    go: &Receiver<()>,
) -> Event {
    let mut worker = Worker::new(shared, thread, requests);
    let outcome = worker.phase(shared.load.warmup).and_then(|()| {
        let swapped = worker.record.swapped;
        worker.record.reset();
        if events.send(Event::Ready(swapped)).is_ok() && go.recv().is_ok() {
            worker.phase(shared.load.extent)?;
        }
        Ok(())
    });
    match outcome {
        Ok(()) => Event::Done(Box::new(worker.record), Instant::now()),
        Err(err) => Event::Failed(err),
    }
}

/// Longest pause in this machine's time without a look at the stop flag.
const PIECE: Duration = Duration::from_millis(100);

/// Passes `time` in pieces of at most `longest`, until it is over or `stopped`.
fn pieces(time: Duration, longest: Duration, stopped: impl Fn() -> bool, mut pass: impl FnMut(Duration)) {
    let mut left = time;
    while !left.is_zero() && !stopped() {
        let piece = left.min(longest.max(Duration::from_nanos(1)));
        pass(piece);
        left -= piece;
    }
}

struct Worker<'a, R> {
    shared: &'a Shared<'a>,
    thread: u64,
    requests: R,
    /// The blocks of each peer.
    places: Vec<Places>,
    /// The peer of the next submission.
    peer: usize,
    offsets: Vec<u64>,
    record: Record,
}

impl<'a, R: Requests> Worker<'a, R> {
    fn new(shared: &'a Shared<'a>, thread: u32, requests: R) -> Self {
        let load = shared.load;
        let blocks = load.area / load.stride();
        let threads = (u64::from(thread), u64::from(load.threads));
        let places = shared
            .cursors
            .iter()
            .map(|cursor| {
                Places::new(load.pattern, load.cursor, blocks, threads, u64::from(load.depth), cursor)
            })
            .collect();
        let offsets = Vec::with_capacity(requests.takes());
        let peer = thread as usize % shared.targets.len();
        let record = Record::dilated(shared.card.as_ref().map_or(1, |(_, model)| model.dilation()));
        Worker { shared, thread: threads.0, requests, places, peer, offsets, record }
    }

    /// Submits requests until the phase or the stop flag ends it. All requests have completed when
    /// it returns.
    fn phase(&mut self, extent: Extent) -> Result<(), RequestError> {
        let threads = u64::from(self.shared.load.threads);
        let mut left = match extent {
            Extent::Ops(total) => share(total, self.thread + 1, threads) - share(total, self.thread, threads),
            Extent::Time(_) => u64::MAX,
        };
        let (burst, gap) = match self.shared.load.burst {
            Some(burst) => (u64::from(burst.requests), Duration::from_micros(burst.gap_us)),
            None => (u64::MAX, Duration::ZERO),
        };
        while left > 0 && !self.stopped() {
            let mut now = burst.min(left);
            left -= now;
            while now > 0 && !self.stopped() {
                let count = now.min(self.requests.takes() as u64);
                self.submit(count)?;
                now -= count;
            }
            if burst != u64::MAX {
                self.requests.finish(&mut self.record)?;
                if left > 0 && !gap.is_zero() {
                    self.pause(match &self.shared.card {
                        Some((_, model)) => model.dilated(gap),
                        None => gap,
                    });
                    self.record.gaps += 1;
                }
            }
        }
        self.requests.finish(&mut self.record)
    }

    fn submit(&mut self, count: u64) -> Result<(), RequestError> {
        let stride = self.shared.load.stride();
        if let Some((card, model)) = &self.shared.card {
            let work = self.shared.load.think.unwrap_or_else(|| card.request_cost());
            for _ in 0..count {
                pieces(work, PIECE / model.dilation(), || self.stopped(), |piece| card.spend(piece));
            }
        }
        let places = &mut self.places[self.peer];
        let slot = self.requests.free_slot(self.peer, &mut self.record)?;
        self.offsets.clear();
        self.offsets.extend((0..count).map(|i| places.next_block(slot + i) * stride));
        self.requests.submit(self.peer, &self.offsets, &mut self.record)?;
        self.peer = if self.peer + 1 == self.places.len() { 0 } else { self.peer + 1 };
        Ok(())
    }

    /// Sleeps, unless the stop flag ends the phase.
    fn pause(&self, time: Duration) {
        pieces(time, PIECE, || self.stopped(), std::thread::sleep);
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_long_pause_ends_at_the_stop_flag() {
        let passed = Cell::new(Duration::ZERO);
        let pass = |piece| passed.set(passed.get() + piece);
        pieces(Duration::from_millis(250), PIECE, || false, pass);
        assert_eq!(passed.replace(Duration::ZERO), Duration::from_millis(250));
        let hour = Duration::from_secs(3600);
        pieces(hour, PIECE, || passed.get() >= Duration::from_secs(1), pass);
        assert_eq!(passed.get(), Duration::from_secs(1));
    }
}
