//! The planner: turns requests of one direction and peer into work requests in posting order.
//!
//! [`plan`] is a pure function of its arguments. [`Plan`] keeps its buffers between calls, so a
//! reused plan does not allocate after its largest batch. The planner does not split requests: a
//! request that exceeds a limit is planned alone and refused by the post, so callers split
//! requests first.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::ops::Range;

use super::{BatchMode, overlap::Span};
use crate::verbs::RemoteAddr;

/// A request for the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Remote address of the request.
    pub(crate) remote: RemoteAddr,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Number of local ranges. Each takes an element if the request is not staged.
    pub(crate) sges: u32,
    /// Whether the data may be copied through a preMR; false for registered memory.
    pub(crate) stageable: bool,
}

/// Limits of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanLimits {
    /// How to combine requests.
    pub(crate) mode: BatchMode,
    /// Maximum message length in bytes.
    pub(crate) max_msg_sz: u64,
    /// Maximum length of a merged work request in bytes. A longer request is planned alone.
    pub(crate) max_merge: u64,
    /// Maximum number of elements per work request.
    pub(crate) max_sge: u32,
    /// Maximum number of work requests per doorbell; zero counts as one.
    pub(crate) max_chain: u32,
    /// Maximum size in bytes of a staged work request. A work request is staged if all its members
    /// are stageable.
    pub(crate) stage_threshold: u64,
}

/// A planned work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedWr {
    /// First remote byte.
    pub(crate) remote: RemoteAddr,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Requests of this work request in ascending remote order, as a range of [`Plan::members`].
    pub(crate) members: Range<u32>,
    /// True if the data is copied through a preMR.
    pub(crate) staged: bool,
    /// Number of elements: one if staged, otherwise the sum over the members.
    pub(crate) sges: u32,
}

/// Output of the planner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Work requests in posting order.
    pub(crate) wrs: Vec<PlannedWr>,
    /// Indices of the planned items, grouped by work request.
    pub(crate) members: Vec<u32>,
    /// Maximum number of work requests per doorbell, at least one after planning.
    pub(crate) chain: usize,
    /// True if requests overlap, as far as merging has looked.
    pub(crate) has_overlaps: bool,
    /// Items of the current segment by ascending address; empty between calls.
    order: Vec<u32>,
}

impl Plan {
    /// Creates an empty plan that takes batches of `items` requests without allocating.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn with_capacity(items: usize) -> Plan {
        Plan {
            wrs: Vec::with_capacity(items),
            members: Vec::with_capacity(items),
            chain: 1,
            has_overlaps: false,
            order: Vec::with_capacity(items),
        }
    }

    /// Empties the plan and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
        self.members.clear();
        self.order.clear();
        self.has_overlaps = false;
    }

    /// Moves the work request of the first item to the front, so that it is posted before requests
    /// that arrived later. The order of the work requests changes only within the first segment,
    /// where none of them overlap.
    pub(crate) fn oldest_first(&mut self) {
        if self.members.first().is_some_and(|item| *item != 0)
            && let Some(at) = self.members.iter().position(|item| *item == 0)
        {
            let oldest = self.wrs.partition_point(|wr| wr.members.end as usize <= at);
            self.wrs[..=oldest].rotate_right(1);
        }
    }

    /// Returns the items of a work request of this plan, in ascending remote order.
    pub(crate) fn members_of(&self, wr: &PlannedWr) -> &[u32] {
        &self.members[wr.members.start as usize..wr.members.end as usize]
    }

    /// Returns the lists to post in order, with one doorbell each.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn chains(&self) -> impl ExactSizeIterator<Item = &[PlannedWr]> {
        self.wrs.chunks(self.chain.max(1))
    }

    /// Returns the number of doorbells that posting the plan takes.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn doorbells(&self) -> usize {
        self.chains().len()
    }

    /// Adds a run as a work request.
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

    /// Plans one item as its own work request.
    fn push_alone(&mut self, items: &[Item], index: u32, limits: &PlanLimits) {
        let run = Run::new(&items[index as usize], self.members.len() as u32);
        self.members.push(index);
        self.push(&run, limits);
    }

    /// Merges the items in `order` into runs and empties `order`.
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

    /// Returns the position of a range in `order`, or `None` if it overlaps a range there. The
    /// ranges in `order` are disjoint, so only the neighbours of the position can overlap.
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

/// Adjacent items that form one work request.
#[derive(Clone, Copy)]
struct Run {
    remote: RemoteAddr,
    len: u64,
    sges: u32,
    stageable: bool,
    /// Index of the first member in [`Plan::members`].
    start: u32,
}

impl Run {
    fn new(item: &Item, start: u32) -> Run {
        Run { remote: item.remote, len: item.len, sges: item.sges, stageable: item.stageable, start }
    }

    fn staged(&self, limits: &PlanLimits) -> bool {
        self.stageable && self.len != 0 && self.len <= limits.stage_threshold
    }

    /// Returns the run with `item` appended, or `None` if `item` is not adjacent or exceeds the
    /// limits.
    fn with(&self, item: &Item, limits: &PlanLimits) -> Option<Run> {
        let end = self.remote.addr.checked_add(self.len)?;
        // The peer refuses a request beyond the address space, so it must not be merged with
        // others.
        item.remote.addr.checked_add(item.len)?;
        if end != item.remote.addr || self.remote.rkey != item.remote.rkey {
            return None;
        }
        let run = Run {
            len: self.len.checked_add(item.len)?,
            sges: self.sges.saturating_add(item.sges),
            stageable: self.stageable && item.stageable,
            ..*self
        };
        // Short requests are copied. Beside registered memory they would have to be registered.
        let mixed = self.stageable != item.stageable && run.len <= limits.stage_threshold;
        let fits = !mixed
            && run.len <= limits.max_msg_sz.min(limits.max_merge)
            && (run.sges <= limits.max_sge || run.staged(limits));
        fits.then_some(run)
    }
}

/// Plans `items`, which are in order of arrival, into `out`.
///
/// Overlapping requests are never reordered. A new segment starts at each item that overlaps an
/// earlier item of the current segment. Sorting and merging happen within segments only. As in
/// [`InFlight`](super::InFlight), equal addresses are equal bytes for any key. Empty requests
/// overlap nothing and are never merged.
pub(crate) fn plan(items: &[Item], limits: &PlanLimits, out: &mut Plan) {
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
                out.has_overlaps = true;
                out.flush(items, limits);
                out.order.push(index);
            }
        }
    }
    out.flush(items, limits);
}

/// Returns the remote addresses of the requests in a work request at `remote`, by their lengths.
pub(crate) fn part_addresses(remote: RemoteAddr, lengths: &[u64]) -> impl Iterator<Item = RemoteAddr> {
    lengths.iter().scan(remote, |next, len| Some(std::mem::replace(next, next.at(*len))))
}

#[cfg(test)]
mod tests;
