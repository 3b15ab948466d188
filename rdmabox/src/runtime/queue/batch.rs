//! Work requests that are ready to be posted on a lane.
//!
//! # Concurrency
//! A batch belongs to one combiner.

use std::sync::Arc;

use crate::{
    runtime::{
        lane::{Finished, Member, PostedWr},
        wait::Ticket,
    },
    verbs::{SendFlags, SendOp, Sge},
};

/// A work request that has no sequence number yet.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) op: SendOp,
    /// Range of its elements in `Batch::sges`; empty for inline data.
    pub(crate) sges: std::ops::Range<usize>,
    /// Index of its first member in `Batch::members`.
    pub(crate) first_member: usize,
    pub(crate) inline: bool,
    pub(crate) flags: SendFlags,
    pub(crate) posted: PostedWr,
}

/// Work requests for one lane, in order. Batches are reused.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) lane: usize,
    /// Work requests per doorbell.
    pub(crate) chain: usize,
    pub(crate) sges: Vec<Sge>,
    pub(crate) ready: Vec<Ready>,
    pub(crate) members: Vec<Member>,
    /// Tickets in the batch that other parties wait for.
    pub(crate) other_tickets: Vec<Arc<Ticket>>,
    pub(crate) refused: Finished,
}
