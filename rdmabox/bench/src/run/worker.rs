//! One worker thread of a load.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rdmabox::{Buffer, RequestError};

use super::{
    pace::{Pace, Phases, Shared},
    paging::Pager,
    record::Record,
    requests::{Blocking, Calls, Direction, Requests, Swaps, Transfers},
};
use crate::load::{
    OpKind, Submit,
    pattern::Places,
    value::{Extent, Reg},
};

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
        (Submit::Started | Submit::Callback, OpKind::Write) => {
            started(shared, thread, Direction::Write, events, go)
        }
        (Submit::Started | Submit::Callback, OpKind::Read) => {
            started(shared, thread, Direction::Read, events, go)
        }
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
        return run(
            shared,
            Worker::new(shared, thread, Transfers::new(targets, direction, buffers, shared.load.submit)),
            events,
            go,
        );
    }
    // Each session has its own registered memory.
    let buffers: Option<Vec<Vec<Buffer>>> =
        targets.iter().map(|target| (0..depth).map(|_| target.session.buffer(size)).collect()).collect();
    match buffers {
        Some(buffers) => {
            let requests = Transfers::new(targets, direction, buffers, shared.load.submit);
            run(shared, Worker::new(shared, thread, requests), events, go)
        }
        None => Event::Failed(RequestError::Invalid(
            "a session has not so much registered memory: give less --size, --depth or --threads".into(),
        )),
    }
}

/// Runs with blocking calls, or a pager.
fn blocking(shared: &Shared<'_>, thread: u32, events: &Sender<Event>, go: &Receiver<()>) -> Event {
    let load = shared.load;
    let depth = load.depth as usize;
    // Nonzero bytes force the allocation of pages.
    let bytes = if matches!(load.op, OpKind::Send | OpKind::Paging) { 0 } else { load.size as usize * depth };
    let mut memory = vec![0x5a_u8; bytes + PAGE + ASIDE];
    let start = memory.as_ptr().align_offset(PAGE).min(PAGE) + ASIDE;
    let memory = &mut memory[start..start + bytes];
    let size = (load.size as usize).max(1);
    match load.op {
        OpKind::Read => {
            let buffers = memory.chunks_exact_mut(size);
            run(shared, Worker::new(shared, thread, Blocking::new(shared.targets, buffers)), events, go)
        }
        OpKind::Write => {
            let buffers = memory.chunks_exact(size);
            run(shared, Worker::new(shared, thread, Blocking::new(shared.targets, buffers)), events, go)
        }
        OpKind::Cas => {
            let (mut olds, words) = (vec![0; depth], load.area / load.stride());
            let requests = Swaps::new(shared.targets, &mut olds, words, load.stride());
            run(shared, Worker::new(shared, thread, requests), events, go)
        }
        // Its requests are started, and have their own buffers.
        OpKind::Paging => paging(shared, thread, events, go),
        OpKind::Send => {
            let calls = Calls::new(shared.targets, load.size, load.reply.unwrap_or(0));
            run(shared, Worker::new(shared, thread, calls), events, go)
        }
    }
}

/// Runs a thread of a paged program.
fn paging(shared: &Shared<'_>, thread: u32, events: &Sender<Event>, go: &Receiver<()>) -> Event {
    let (targets, pace) = (shared.targets, Pace { shared, thread: thread.into() });
    let steps = shared.steps.get(thread as usize).map_or(&[][..], Vec::as_slice);
    match shared.load.reg {
        Reg::Registered => run(shared, Pager::<Buffer>::new(pace, targets, steps), events, go),
        _ => run(shared, Pager::<Vec<u8>>::new(pace, targets, steps), events, go),
    }
}

fn run(shared: &Shared<'_>, mut worker: impl Phases, events: &Sender<Event>, go: &Receiver<()>) -> Event {
    let outcome = match &shared.window {
        Some(_) => worker.phase(shared.load.extent),
        None => in_two_phases(shared, &mut worker, events, go),
    };
    match outcome {
        Ok(()) => Event::Done(Box::new(std::mem::take(worker.record())), Instant::now()),
        Err(err) => Event::Failed(err),
    }
}

/// Runs the warm-up, waits for the gate, and runs the measurement.
fn in_two_phases(
    shared: &Shared<'_>,
    worker: &mut impl Phases,
    events: &Sender<Event>,
    go: &Receiver<()>,
) -> Result<(), RequestError> {
    worker.phase(shared.load.warmup)?;
    let swapped = worker.record().swapped;
    worker.record().reset();
    if events.send(Event::Ready(swapped)).is_ok() && go.recv().is_ok() {
        worker.phase(shared.load.extent)?;
    }
    Ok(())
}

struct Worker<'a, R> {
    pace: Pace<'a>,
    shared: &'a Shared<'a>,
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
        let pace = Pace { shared, thread: threads.0 };
        Worker { pace, shared, requests, places, peer, offsets, record: pace.record() }
    }

    fn submit(&mut self, count: u64) -> Result<(), RequestError> {
        let stride = self.shared.load.stride();
        (0..count).for_each(|_| self.pace.work());
        let places = &mut self.places[self.peer];
        let slot = self.requests.free_slot(self.peer, &mut self.record)?;
        self.offsets.clear();
        self.offsets.extend((0..count).map(|i| places.next_block(slot + i) * stride));
        self.requests.submit(self.peer, &self.offsets, &mut self.record)?;
        self.peer = if self.peer + 1 == self.places.len() { 0 } else { self.peer + 1 };
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.pace.stopped()
    }
}

impl<R: Requests> Phases for Worker<'_, R> {
    fn phase(&mut self, extent: Extent) -> Result<(), RequestError> {
        self.pace.begin();
        let mut left = self.pace.requests(extent);
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
                    self.pace.pause(match &self.shared.card {
                        Some((_, model)) => model.dilated(gap),
                        None => gap,
                    });
                    self.record.idled();
                }
            }
        }
        self.requests.finish(&mut self.record)
    }

    fn record(&mut self) -> &mut Record {
        &mut self.record
    }
}
