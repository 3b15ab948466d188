//! Requests of callers, and the merge queue of each direction.
//!
//! # Concurrency
//! Plain values; the merge queue has the locks.

use std::sync::Arc;

use smallvec::SmallVec;

use super::MergeQueue;
use crate::{
    batch::{Item, Plan},
    memory::Loan,
    runtime::wait::Ticket,
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

/// Working storage of a combiner, reused.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    /// Requests taken from the queue and not posted yet, in order of arrival.
    pub(crate) backlog: Vec<Pending>,
    pub(crate) items: Vec<Item>,
    pub(crate) plan: Plan,
    pub(crate) taken: Vec<bool>,
    pub(crate) picked: Vec<Option<Pending>>,
    pub(crate) kept: Vec<Pending>,
    /// True if the last attempt ended because a lane or the window had no room.
    pub(crate) waits: bool,
}

/// The merge queue of one direction.
pub(crate) type Direction = MergeQueue<Pending, Combiner>;

pub(crate) const READ: usize = 0;
/// Also the direction of ordered lists.
pub(crate) const WRITE: usize = 1;
