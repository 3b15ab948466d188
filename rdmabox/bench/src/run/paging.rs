//! One thread of a paged program: it plays its steps.
//!
//! A step is a page fault. The dirty pages that leave are written together and not waited for; the
//! page is read, and the thread waits for it. The write-outs have ended before the next step.

use std::collections::VecDeque;

use rdmabox::{Buffer, RecvBuf, RequestError, SendBuf, Session};
use rfs_paging::trace::Step;

use super::{
    clock::Stamp,
    pace::{Pace, Phases},
    pending_transfer::PendingTransfer,
    record::Record,
    requests::{Direction, Target},
};
use crate::load::{
    paging::{PAGE, place},
    value::Extent,
};

/// Unused buffers that a thread keeps for each peer. It gives back the buffers that a batch took
/// beyond them: few threads have a batch under way at a time.
const KEPT: usize = 8;

/// Memory for a page.
pub trait PageBuffer: SendBuf + RecvBuf + Sized {
    /// Makes a page for requests of a session. `None` if the session has no memory left.
    fn make(session: &Session) -> Option<Self>;
}

impl PageBuffer for Vec<u8> {
    fn make(_: &Session) -> Option<Self> {
        // Nonzero bytes force the allocation of the page.
        Some(vec![0x5a; PAGE as usize])
    }
}

impl PageBuffer for Buffer {
    fn make(session: &Session) -> Option<Self> {
        session.buffer(PAGE as usize)
    }
}

/// A request under way.
#[derive(Debug)]
struct UnderWay<B: Send + 'static> {
    request: PendingTransfer<B>,
    peer: usize,
    began: Stamp,
}

/// A thread of the program.
#[derive(Debug)]
pub struct Pager<'a, B: Send + 'static> {
    pace: Pace<'a>,
    targets: &'a [Target],
    steps: &'a [Step],
    /// The next step.
    at: usize,
    /// Unused buffers, by peer.
    free: Vec<Vec<B>>,
    writes: VecDeque<UnderWay<B>>,
    reads: VecDeque<UnderWay<B>>,
    record: Record,
}

impl<'a, B: PageBuffer + 'static> Pager<'a, B> {
    /// Returns a thread that has made no step. `steps` are its own.
    pub fn new(pace: Pace<'a>, targets: &'a [Target], steps: &'a [Step]) -> Self {
        let free = targets.iter().map(|_| Vec::new()).collect();
        let record = pace.record();
        Pager { pace, targets, steps, at: 0, free, writes: VecDeque::new(), reads: VecDeque::new(), record }
    }

    fn step(&mut self, step: &Step) -> Result<(), RequestError> {
        (0..step.queries).for_each(|_| self.pace.work());
        self.end_writes()?;
        self.start(Direction::Write, &step.writes)?;
        self.start(Direction::Read, &step.reads)?;
        while let Some(UnderWay { request, peer, began }) = self.reads.pop_front() {
            let buffer = request.wait()?;
            self.keep(peer, buffer);
            self.record.completed(1, began, self.record.now());
        }
        Ok(())
    }

    /// Starts the requests for pages. Those of a peer leave together.
    fn start(&mut self, direction: Direction, pages: &[usize]) -> Result<(), RequestError> {
        let (targets, submit) = (self.targets, self.pace.shared.load.submit);
        let mut places: Vec<(usize, u64)> = pages.iter().map(|page| place(*page, targets.len())).collect();
        places.sort_unstable();
        for list in places.chunk_by(|one, other| one.0 == other.0) {
            let peer = list[0].0;
            let session = &targets[peer].session;
            let mut buffers = Vec::with_capacity(list.len());
            for _ in list {
                buffers.push(self.buffer(peer)?);
            }
            let under_way = match direction {
                Direction::Write => &mut self.writes,
                Direction::Read => &mut self.reads,
            };
            let began = self.record.now();
            session.together(|| {
                for ((_, offset), buffer) in list.iter().zip(buffers) {
                    let remote = targets[peer].at(*offset);
                    let request = PendingTransfer::start(session, direction, remote, buffer, submit);
                    under_way.push_back(UnderWay { request, peer, began });
                }
            });
        }
        Ok(())
    }

    fn buffer(&mut self, peer: usize) -> Result<B, RequestError> {
        self.free[peer].pop().or_else(|| B::make(&self.targets[peer].session)).ok_or_else(|| {
            RequestError::Invalid("a session has not so much registered memory: give less --threads".into())
        })
    }

    fn keep(&mut self, peer: usize, buffer: B) {
        if self.free[peer].len() < KEPT {
            self.free[peer].push(buffer);
        }
    }

    /// Waits for the write-outs. No thread waited for them, so they have no latency.
    fn end_writes(&mut self) -> Result<(), RequestError> {
        while let Some(UnderWay { request, peer, .. }) = self.writes.pop_front() {
            let buffer = request.wait()?;
            self.keep(peer, buffer);
            self.record.ended();
        }
        Ok(())
    }
}

impl<B: PageBuffer + 'static> Phases for Pager<'_, B> {
    fn phase(&mut self, extent: Extent) -> Result<(), RequestError> {
        self.pace.begin();
        let most = self.pace.requests(extent);
        let steps = self.steps;
        while self.record.ops < most && !self.pace.stopped() {
            let Some(step) = steps.get(self.at) else { break };
            self.at = (self.at + 1) % steps.len();
            self.step(step)?;
        }
        self.end_writes()
    }

    fn record(&mut self) -> &mut Record {
        &mut self.record
    }
}
