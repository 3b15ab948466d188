//! Requests of callers, and the merge queue of each direction.
//!
//! # Concurrency
//! Plain values; the merge queue has the locks.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::MergeQueue;
use crate::{
    batch::{InFlight, InFlightHandle, Item, Plan},
    memory::Loan,
    runtime::wait::Ticket,
    sync::Mutex,
    verbs::{RemoteAddr, SendOp},
};

/// A caller's request: one READ or WRITE, or the steps of an ordered list.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Moved a few times; a box would be an allocation per list.
pub(crate) enum Request {
    Single { remote: RemoteAddr, loan: Loan },
    Group(SmallVec<[GroupOp; 4]>),
}

/// A step of an ordered list.
#[derive(Debug)]
pub(crate) struct GroupOp {
    pub op: SendOp,
    pub loan: Loan,
}

impl GroupOp {
    /// Returns the remote range that the step changes.
    pub(crate) fn changes(&self) -> Option<(RemoteAddr, u64)> {
        match self.op {
            SendOp::Write { remote, .. } => Some((remote, self.loan.len() as u64)),
            SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::FetchOp { remote, .. } => Some((remote, 8)),
            SendOp::Read { .. } | SendOp::Send { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub request: Request,
    pub ticket: Arc<Ticket>,
}

impl Pending {
    /// Returns the number of parts that complete one by one.
    pub(crate) fn parts(&self) -> usize {
        match &self.request {
            Request::Single { .. } => 1,
            Request::Group(ops) => ops.len(),
        }
    }
}

/// A part of a merged work request that was refused. It is repeated alone.
#[derive(Debug)]
pub(crate) struct Repeat {
    pub remote: RemoteAddr,
    pub loan: Loan,
    pub ticket: Arc<Ticket>,
    /// Range of a WRITE. It stays in flight, so that no later overlapping write overtakes the part.
    pub in_flight: Option<InFlightHandle>,
    /// Time of the first post.
    pub posted_at: Instant,
}

/// Working storage of a combiner, reused.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    /// Requests taken from the queue and not posted yet, in order of arrival.
    pub(crate) backlog: Vec<Pending>,
    /// Parts of refused work requests that are not posted again yet. They go before the backlog.
    pub(crate) repeats: VecDeque<Repeat>,
    pub(crate) items: Vec<Item>,
    pub(crate) plan: Plan,
    /// Planned requests that are off the backlog; empty between calls.
    pub(crate) picked: Vec<Option<Pending>>,
    kept: Vec<Pending>,
    /// True if the last attempt ended because a lane or the window had no room.
    pub(crate) waits: bool,
    /// Bytes that the combining thread may still copy to the pool before it has to poll.
    pub(crate) copies_left: u64,
}

impl Combiner {
    /// Returns true if no request waits to be posted.
    pub(crate) fn is_empty(&self) -> bool {
        self.backlog.is_empty() && self.repeats.is_empty()
    }

    /// Returns true if requests wait that the combining thread may not copy before it has polled.
    pub(crate) fn has_rest(&self) -> bool {
        self.copies_left == 0 && !self.is_empty()
    }

    /// Returns the planned requests that were not posted to the head of the backlog.
    pub(crate) fn put_back(&mut self) {
        let Combiner { backlog, picked, kept, .. } = self;
        kept.extend(picked.drain(..).flatten());
        if !kept.is_empty() {
            kept.append(backlog);
            std::mem::swap(kept, backlog);
        }
    }

    /// Returns the tickets of the requests that wait to be posted.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &Arc<Ticket>> {
        let repeats = self.repeats.iter().map(|repeat| &repeat.ticket);
        repeats.chain(self.backlog.iter().map(|pending| &pending.ticket))
    }

    /// Takes the requests out whose tickets `is_taken` accepts. Removes the ranges of repeated
    /// WRITEs from `writes`.
    pub(crate) fn take(
        &mut self,
        writes: &Mutex<InFlight>,
        is_taken: impl Fn(&Arc<Ticket>) -> bool,
    ) -> Vec<Pending> {
        let backlog = std::mem::take(&mut self.backlog);
        let (mut taken, backlog) = backlog.into_iter().partition(|pending| is_taken(&pending.ticket));
        self.backlog = backlog;
        let repeats = std::mem::take(&mut self.repeats);
        let (own, others): (VecDeque<_>, _) =
            repeats.into_iter().partition(|repeat| is_taken(&repeat.ticket));
        self.repeats = others;
        taken.extend(own.into_iter().map(|Repeat { remote, loan, ticket, in_flight, .. }| {
            if let Some(write) = in_flight {
                writes.lock().remove(write);
            }
            Pending { request: Request::Single { remote, loan }, ticket }
        }));
        taken
    }
}

/// The merge queue of one direction.
pub(crate) type Direction = MergeQueue<Pending, Combiner>;

pub(crate) const READ: usize = 0;
/// Also the direction of ordered lists.
pub(crate) const WRITE: usize = 1;
