//! The planner: requests of one direction and one peer in, work requests in posting order out.
//!
//! A pure function of its arguments: no I/O, no clock, no locks. The output keeps its buffers from one call to the
//! next, so that a plan that is reused allocates nothing once it has seen its largest batch. It does not split
//! requests: one that exceeds a limit by itself is planned alone, for the post to refuse; callers split first.

use std::ops::Range;

use super::{BatchMode, overlap::Span};
use crate::verbs::RemoteAddr;

/// A request to be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it goes to or comes from.
    pub remote: RemoteAddr,
    /// Its length in bytes.
    pub len: u64,
    /// Pieces of local memory, each of which takes an element when the request is not staged.
    pub sges: u32,
    /// True if it may be copied through the pre-registered pool; false for memory that is registered already.
    pub stageable: bool,
}

/// What the planner has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// How to combine.
    pub mode: BatchMode,
    /// Longest message in bytes.
    pub max_msg_sz: u64,
    /// Most elements of a work request.
    pub max_sge: u32,
    /// Most work requests per doorbell; zero counts as one.
    pub max_chain: u32,
    /// A work request of at most so many bytes whose members are all stageable is staged.
    pub stage_threshold: u64,
}

/// A work request to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedWr {
    /// Its first remote byte.
    pub remote: RemoteAddr,
    /// Its length in bytes.
    pub len: u64,
    /// The requests in it, in ascending remote order: a range of [`Plan::members`].
    pub members: Range<u32>,
    /// True if it goes through the pre-registered pool.
    pub staged: bool,
    /// Elements that it needs: one if staged, else those of all members.
    pub sges: u32,
}

/// The planner's output.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Work requests in posting order.
    pub wrs: Vec<PlannedWr>,
    /// Indices of the planned items, grouped by work request.
    pub members: Vec<u32>,
    /// Work requests per doorbell.
    chain: usize,
    /// Items of the current segment by ascending address. Empty between calls.
    order: Vec<u32>,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Plan {
        Plan::default()
    }

    /// An empty plan that takes batches of `items` requests without allocating.
    pub fn with_capacity(items: usize) -> Plan {
        Plan {
            wrs: Vec::with_capacity(items),
            members: Vec::with_capacity(items),
            chain: 1,
            order: Vec::with_capacity(items),
        }
    }

    /// Empties it, keeping its buffers.
    pub fn clear(&mut self) {
        self.wrs.clear();
        self.members.clear();
        self.order.clear();
    }

    /// The items of a work request of this plan, in ascending remote order.
    pub fn members_of(&self, wr: &PlannedWr) -> &[u32] {
        &self.members[wr.members.start as usize..wr.members.end as usize]
    }

    /// The lists to post, one doorbell each, in order.
    pub fn chains(&self) -> impl ExactSizeIterator<Item = &[PlannedWr]> {
        self.wrs.chunks(self.chain.max(1))
    }

    /// Doorbells that posting the plan rings.
    pub fn doorbells(&self) -> usize {
        self.chains().len()
    }

    /// Requests that travel in another one's work request.
    pub fn merged(&self) -> usize {
        self.members.len() - self.wrs.len()
    }

    /// Closes a run as a work request.
    fn push(&mut self, run: &Run, limits: &PlanLimits) {
        let staged = run.staged(limits);
        self.wrs.push(PlannedWr {
            remote: run.remote,
            len: run.len,
            members: run.start..self.members.len() as u32,
            staged,
            sges: if staged { 1 } else { run.sges },
        });
    }

    /// Plans one item as a work request of its own.
    fn push_alone(&mut self, items: &[Item], index: u32, limits: &PlanLimits) {
        let run = Run::new(&items[index as usize], self.members.len() as u32);
        self.members.push(index);
        self.push(&run, limits);
    }

    /// Merges the segment in `order` and empties it.
    fn flush(&mut self, items: &[Item], limits: &PlanLimits) {
        let mut run: Option<Run> = None;
        for position in 0..self.order.len() {
            let index = self.order[position];
            let item = &items[index as usize];
            run = match run.as_ref().and_then(|run| run.with(item, limits)) {
                Some(longer) => Some(longer),
                None => {
                    if let Some(run) = run {
                        self.push(&run, limits);
                    }
                    Some(Run::new(item, self.members.len() as u32))
                }
            };
            self.members.push(index);
        }
        if let Some(run) = run {
            self.push(&run, limits);
        }
        self.order.clear();
    }

    /// Where a range belongs in `order`; None if it overlaps a range there. Those do not overlap each other, so
    /// that only the neighbours can.
    fn place(&self, items: &[Item], span: Span) -> Option<usize> {
        let span_at = |position: usize| {
            let item = &items[self.order[position] as usize];
            Span::new(item.remote, item.len)
        };
        let end = self.order.len();
        let position = match end.checked_sub(1) {
            None => 0,
            Some(last) if span_at(last).first < span.first => end,
            Some(_) => self.order.partition_point(|&i| items[i as usize].remote.addr < span.first),
        };
        let free = (position == 0 || !span_at(position - 1).overlaps(span))
            && (position == end || !span_at(position).overlaps(span));
        free.then_some(position)
    }
}

/// Adjacent items that travel together.
#[derive(Clone, Copy)]
struct Run {
    remote: RemoteAddr,
    len: u64,
    sges: u32,
    stageable: bool,
    /// First of its members in [`Plan::members`].
    start: u32,
}

impl Run {
    fn new(item: &Item, start: u32) -> Run {
        Run { remote: item.remote, len: item.len, sges: item.sges, stageable: item.stageable, start }
    }

    fn staged(&self, limits: &PlanLimits) -> bool {
        self.stageable && self.len != 0 && self.len <= limits.stage_threshold
    }

    /// The run with `item` appended; None if that is not adjacent or too much for one work request.
    fn with(&self, item: &Item, limits: &PlanLimits) -> Option<Run> {
        let end = self.remote.addr.checked_add(self.len)?;
        // A request past the end of the address space will be refused: it must not take others with it.
        item.remote.addr.checked_add(item.len)?;
        let run = Run {
            len: self.len.checked_add(item.len)?,
            sges: self.sges.saturating_add(item.sges),
            stageable: self.stageable && item.stageable,
            ..*self
        };
        let adjacent = end == item.remote.addr && self.remote.rkey == item.remote.rkey;
        let fits = run.len <= limits.max_msg_sz && (run.sges <= limits.max_sge || run.staged(limits));
        (adjacent && fits).then_some(run)
    }
}

/// Plans `items`, which are in order of arrival, into `out`.
///
/// Overlapping requests are never reordered: the batch is cut where an item overlaps an earlier one since the last
/// cut, and merging and sorting happen between cuts only. As in [`InFlight`](super::InFlight), equal addresses are
/// equal bytes whatever the key. Requests of no bytes overlap nothing and are never merged.
pub fn plan(items: &[Item], limits: &PlanLimits, out: &mut Plan) {
    out.clear();
    out.chain = if limits.mode.chains() { limits.max_chain.max(1) as usize } else { 1 };
    out.wrs.reserve(items.len());
    out.members.reserve(items.len());
    for (index, item) in (0u32..).zip(items) {
        if item.len == 0 || !limits.mode.merges() {
            out.push_alone(items, index, limits);
            continue;
        }
        match out.place(items, Span::new(item.remote, item.len)) {
            Some(position) => out.order.insert(position, index),
            None => {
                out.flush(items, limits);
                out.order.push(index);
            }
        }
    }
    out.flush(items, limits);
}

#[cfg(test)]
mod tests;
