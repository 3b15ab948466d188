//! Turns a plan into posted work requests: stages or registers local memory, one doorbell per
//! chain.
//!
//! A [`Batch`] collects work requests for one lane, and [`Runtime::post`] posts it. Payloads up
//! to the threshold are staged through the pool, longer ones are registered for the request.
//!
//! # Concurrency
//! Runs on the combiner's thread. It takes the lane's queue, then the queue pair's reader lock.
//! Refused requests are finished without locks.

pub(super) mod tracing;

use std::{ops::Range, sync::Arc, time::Instant};

use smallvec::SmallVec;

use self::tracing::{trace_planned, trace_posted};
use crate::{
    batch::{InFlightHandle, Plan},
    mapping::Memory,
    memory::{Loan, PreMrBuf, PreMrPool},
    runtime::{
        lane::{Finished, Kind, Member, PostedWr, QpGeneration, wr_id},
        queue::{Batch, FenceTracker, GroupOp, Pending, Ready, Repeat, Request},
        state::Runtime,
        trace::LocalMemory,
        wait::Ticket,
    },
    sync::now,
    verbs::{
        Access, MrHandle, PostError, QueuePair, RemoteAddr, SendFlags, SendOp, SendWr, Sge, VerbsError,
        WcStatus,
    },
};

/// The parts of a work request, except for its members.
struct WrParts {
    op: SendOp,
    kind: Kind,
    flags: SendFlags,
    len: u64,
    admitted: u64,
    staged: bool,
    in_flight: Option<InFlightHandle>,
    merged_at: Option<RemoteAddr>,
    posted_at: Instant,
}

/// Returns the operation of a READ or WRITE, and its kind.
fn one_sided(write: bool, remote: RemoteAddr) -> (SendOp, Kind) {
    match write {
        true => (SendOp::Write { remote, imm: None }, Kind::Write),
        false => (SendOp::Read { remote }, Kind::Read),
    }
}

impl Batch {
    /// Builds a batch of work requests of a plan, and takes their requests out of `picked`.
    pub(crate) fn singles(
        runtime: &Runtime,
        lane: usize,
        write: bool,
        plan: &Plan,
        wrs: Range<usize>,
        picked: &mut [Option<Pending>],
    ) -> Box<Batch> {
        let mut batch = runtime.batch_pool.take();
        (batch.lane, batch.chain) = (lane, plan.chain);
        let posted_at = now();
        for wr in &plan.wrs[wrs] {
            let first = batch.members.len();
            batch.members.extend(plan.members_of(wr).iter().filter_map(|index| {
                let Pending { request, ticket } = picked[*index as usize].take()?;
                let Request::Single { loan, .. } = request else { return None };
                Some(Member { loan, ticket })
            }));
            let merged = (batch.members.len() - first).saturating_sub(1);
            runtime.stats.merged.add(merged as u64);
            let (op, kind) = one_sided(write, wr.remote);
            let parts = WrParts {
                op,
                kind,
                flags: SendFlags::empty(),
                len: wr.len,
                admitted: wr.len,
                staged: wr.staged,
                in_flight: write.then(|| runtime.writes.lock().insert(wr.remote, wr.len)),
                merged_at: (merged > 0).then_some(wr.remote),
                posted_at,
            };
            batch.add(runtime, parts, first);
        }
        batch
    }

    /// Builds a batch of one part of a refused work request.
    pub(crate) fn repeat(runtime: &Runtime, lane: usize, write: bool, repeat: Repeat) -> Box<Batch> {
        let mut batch = runtime.batch_pool.take();
        (batch.lane, batch.chain) = (lane, 1);
        let Repeat { remote, loan, ticket, in_flight, posted_at } = repeat;
        let len = loan.len() as u64;
        let staged = len <= runtime.limits.stage_threshold && runtime.is_stageable(&loan);
        batch.members.push(Member { loan, ticket });
        let (op, kind) = one_sided(write, remote);
        let flags = SendFlags::empty();
        let parts =
            WrParts { op, kind, flags, len, admitted: len, staged, in_flight, merged_at: None, posted_at };
        batch.add(runtime, parts, 0);
        for Ready { posted, .. } in &mut batch.ready {
            posted.is_repeat = true;
        }
        batch
    }

    /// Builds a batch without work requests, for ordered lists.
    pub(crate) fn of_groups(runtime: &Runtime, lane: usize) -> Box<Batch> {
        let mut batch = runtime.batch_pool.take();
        batch.lane = lane;
        batch
    }

    /// Adds an ordered list. All lists of a batch are one chain.
    pub(crate) fn add_group(
        &mut self,
        runtime: &Runtime,
        ops: SmallVec<[GroupOp; 4]>,
        ticket: &Arc<Ticket>,
        admitted: u64,
    ) {
        self.chain = self.ready.len() + ops.len();
        // The list was admitted as a whole. Its last step carries the admitted bytes.
        let last = ops.len() - 1;
        let posted_at = now();
        let mut fetched = FenceTracker::default();
        for (index, step) in ops.into_iter().enumerate() {
            let change = step.changes();
            let len = step.loan.len() as u64;
            let kind = Kind::of(&step.op);
            let flags = if fetched.step(&step.op, len) { SendFlags::FENCE } else { SendFlags::empty() };
            let staged = runtime.is_stageable(&step.loan)
                && (kind == Kind::Atomic || len <= runtime.limits.stage_threshold);
            let first = self.members.len();
            self.members.push(Member { loan: step.loan, ticket: Arc::clone(ticket) });
            let admitted = if index == last { admitted } else { 0 };
            let in_flight = change.map(|(remote, len)| runtime.writes.lock().insert(remote, len));
            let op = step.op;
            let parts =
                WrParts { op, kind, flags, len, admitted, staged, in_flight, merged_at: None, posted_at };
            self.add(runtime, parts, first);
        }
    }

    /// Adds a work request with the members from `first_member` on.
    fn add(&mut self, runtime: &Runtime, parts: WrParts, first_member: usize) {
        let WrParts { op, kind, flags, len, admitted, staged, in_flight, merged_at, posted_at } = parts;
        let members = &self.members[first_member..];
        let tracing = runtime.active_tracer().map(|tracer| (tracer, now()));
        let mut posted = PostedWr {
            lane: self.lane,
            registrations: SmallVec::new(),
            staging: None,
            members: members.len(),
            kind,
            len,
            admitted,
            in_flight,
            merged_at,
            is_repeat: false,
            posted_at,
            traced_as: 0,
        };
        let first = self.sges.len();
        let inline = kind == Kind::Write && members.len() == 1 && len <= u64::from(runtime.max_inline);
        let memory = if inline {
            runtime.stats.inline_bytes.add(len);
            LocalMemory::Inline
        } else {
            add_elements(runtime, &mut posted, staged, members, &mut self.sges)
        };
        if let Some((tracer, began)) = tracing {
            trace_planned(tracer, &mut posted, members, memory, began);
        }
        self.ready.push(Ready { op, sges: first..self.sges.len(), first_member, inline, flags, posted });
    }
}

/// Adds the elements of a work request to `sges`. Copies its bytes to the pool if it is `staged`
/// and the pool has room, else registers its memory.
#[inline]
fn add_elements(
    runtime: &Runtime,
    posted: &mut PostedWr,
    staged: bool,
    members: &[Member],
    sges: &mut Vec<Sge>,
) -> LocalMemory {
    let (len, kind) = (posted.len, posted.kind);
    if staged {
        posted.staging = runtime.pool.acquire(len as usize);
        if posted.staging.is_none() && len > 0 {
            runtime.stats.pool_misses.inc();
        }
    }
    let mut lkey = runtime.pool_mr.lkey();
    if staged && posted.staging.is_none() && members.len() > runtime.limits.max_sge as usize {
        // The pool is exhausted, and the request has too many parts to be posted unstaged.
        match stage_outside_pool(runtime, len) {
            Ok((staging, handle)) => {
                lkey = handle.lkey();
                posted.staging = Some(staging);
                posted.registrations.push(handle);
            }
            // The post refuses this request, because it has too many elements.
            Err(e) => log::error!("cannot allocate a staging buffer for {} requests: {e}", members.len()),
        }
    }
    let Some(staging) = &posted.staging else {
        let mut memory = LocalMemory::Lasting;
        for member in members {
            let (sge, is_registered) = runtime.sge_for(&member.loan, &mut posted.registrations);
            sges.push(sge);
            if is_registered {
                memory = LocalMemory::Registered;
            }
        }
        return memory;
    };
    runtime.stats.pre_mr_bytes.add(len);
    let mut at = 0;
    for member in members {
        if kind == Kind::Write {
            member.loan.stage(staging, at);
        }
        at += member.loan.len();
    }
    #[cfg(feature = "model")]
    if kind == Kind::Write {
        runtime.pd.copied(len);
    }
    sges.push(Sge { addr: staging.addr(), length: len as u32, lkey });
    LocalMemory::Copied
}

/// Counts the work requests at their tickets. Called before the post.
fn mark_posted(wrs: &[Ready], members: &[Member], cq_index: usize) {
    for wr in wrs {
        for member in &members[wr.first_member..wr.first_member + wr.posted.members] {
            member.ticket.posted_on(cq_index);
        }
    }
}

/// Allocates a buffer outside the pool and registers it for one request.
fn stage_outside_pool(runtime: &Runtime, len: u64) -> Result<(PreMrBuf, MrHandle), String> {
    // A pool of one block, because requests copy through pool blocks.
    let len = len as usize;
    let memory = Memory::private(len.next_power_of_two().max(4096)).map_err(|e| e.to_string())?;
    let memory = Arc::new(memory);
    runtime.stats.registrations.inc();
    let bytes = memory.len() as u64;
    let handle = runtime.pd.register(&memory, 0, bytes, Access::LOCAL_WRITE).map_err(|e| e.to_string())?;
    let block = PreMrPool::new(memory, len).acquire(len).ok_or("longer than a staging block")?;
    Ok((block, handle))
}

fn register(runtime: &Runtime, loan: &Loan) -> Result<(Sge, MrHandle), VerbsError> {
    runtime.stats.registrations.inc();
    let handle = loan.register(&*runtime.pd)?;
    Ok((loan.sge(handle.lkey()), handle))
}

impl Runtime {
    /// Returns true if the bytes may be copied through the pool, because they are not registered
    /// memory.
    pub(crate) fn is_stageable(&self, loan: &Loan) -> bool {
        !self.pool.contains(loan.addr(), loan.len()) && self.cached(loan).is_none()
    }

    /// Returns the registration that covers the bytes, if their owner made one.
    fn cached(&self, loan: &Loan) -> Option<MrHandle> {
        self.registrations.find(loan.addr(), loan.len() as u64, Access::LOCAL_WRITE)
    }

    /// Returns the element for memory that is not staged, and true if the memory was registered for
    /// this request. Adds the registration that it uses to `registrations`.
    fn sge_for(&self, loan: &Loan, registrations: &mut SmallVec<[MrHandle; 4]>) -> (Sge, bool) {
        let len = loan.len() as u64;
        if self.pool.contains(loan.addr(), loan.len()) {
            self.stats.registered_bytes.add(len);
            return (loan.sge(self.pool_mr.lkey()), false);
        }
        if let Some(handle) = self.cached(loan) {
            self.stats.cache_hits.inc();
            self.stats.registered_bytes.add(len);
            let sge = loan.sge(handle.lkey());
            registrations.push(handle);
            return (sge, false);
        }
        self.stats.dyn_mr_bytes.add(len);
        match register(self, loan) {
            Ok((sge, handle)) => {
                registrations.push(handle);
                (sge, true)
            }
            Err(e) => {
                // The device cannot register the memory. An invalid element makes this request
                // alone fail, with a protection error.
                log::error!("cannot register a caller's buffer: {e}");
                (Sge { addr: 0, length: loan.len() as u32, lkey: 0 }, true)
            }
        }
    }

    /// Returns true if work request `index` of a chain of `count` is signaled. The last one reports
    /// the whole chain.
    fn is_signaled(&self, index: usize, count: usize) -> bool {
        let interval = self.signal_interval as usize;
        index + 1 == count || (interval != 0 && (index + 1).is_multiple_of(interval))
    }

    /// Posts a list of work requests of `chain` on a lane.
    #[inline]
    fn post_list(
        &self,
        qp: &dyn QueuePair,
        (chain, lane): (&[Ready], usize),
        list: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let tracing = self.active_tracer().map(|tracer| (tracer, now()));
        let outcome = qp.post_send(list);
        if let Some((tracer, began)) = tracing {
            trace_posted(tracer, chain, lane, outcome.is_ok(), began);
        }
        outcome
    }

    /// Finishes the refused requests of a batch that was posted, and wakes the threads whose
    /// requests it took. The caller holds no lock.
    #[inline(always)]
    fn settle_post(
        &self,
        (index, generation): (usize, QpGeneration),
        refused: &mut Finished,
        other_tickets: &mut Vec<Arc<Ticket>>,
    ) {
        let lane = &self.lanes[index];
        let cq_index = lane.cq_index;
        if !refused.wrs.is_empty() {
            self.finish_taken(|finished| self.take_down(index, generation, finished));
            self.finish_all(refused);
            self.after_flush(index);
        } else if lane.is_down() {
            // The lane failed after its entries were reserved. The thread that took it down may
            // have missed these requests.
            self.flush_if_down(index);
        }
        if self.cq_waiters[cq_index].has_poller() {
            self.wake_poller(cq_index);
            other_tickets.clear();
        }
        for ticket in other_tickets.drain(..) {
            if ticket.is_detached() {
                self.wake_poller(cq_index);
            } else if ticket.has_thread() {
                self.cq_waiters[cq_index].register_expected(&ticket);
            }
        }
    }

    /// Posts a batch on its lane.
    pub(crate) fn post(&self, mut batch: Box<Batch>) {
        let Batch { lane: index, chain, sges, ready, members, other_tickets, refused } = &mut *batch;
        let index = *index;
        let lane = &self.lanes[index];
        let cq_index = lane.cq_index;
        let generation = {
            // Held during the post, so that no completion precedes its request in the queue.
            let mut queue = lane.queue.lock();
            let (qp, generation) = lane.qp_and_generation();
            let mut rest = &ready[..];
            let mut accepted = 0;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*chain));
                let first = queue.next() + accepted as u64;
                let list: SmallVec<[SendWr<'_>; 32]> = now
                    .iter()
                    .enumerate()
                    .map(|(i, wr)| SendWr {
                        wr_id: wr_id(index, first + i as u64),
                        op: wr.op,
                        sges: &sges[wr.sges.clone()],
                        inline: if wr.inline { members[wr.first_member].loan.bytes() } else { None },
                        flags: if self.is_signaled(i, now.len()) {
                            wr.flags | SendFlags::SIGNALED
                        } else {
                            wr.flags
                        },
                    })
                    .collect();
                mark_posted(now, members, cq_index);
                self.stats.count_post(now.len());
                let signaled = list.iter().filter(|wr| wr.flags.contains(SendFlags::SIGNALED)).count();
                self.stats.unsignaled.add((now.len() - signaled) as u64);
                match self.post_list(&*qp, (now, index), &list) {
                    Ok(()) => accepted += now.len(),
                    Err(e) => {
                        log::debug!("lane {index}: {e}");
                        accepted += e.posted;
                        // The posted part of a refused chain has no signaled end, so the queue pair
                        // is unusable.
                        mark_posted(later, members, cq_index);
                        break;
                    }
                }
                rest = later;
            }
            let mut members = members.drain(..);
            for (i, wr) in ready.drain(..).enumerate() {
                let own = members.by_ref().take(wr.posted.members);
                if i < accepted {
                    let elsewhere = own.inspect(|member| {
                        let known =
                            other_tickets.last().is_some_and(|last| Arc::ptr_eq(last, &member.ticket));
                        if !known && !member.ticket.is_owned_by_current_thread() {
                            other_tickets.push(Arc::clone(&member.ticket));
                        }
                    });
                    queue.push(wr.posted, elsewhere);
                } else {
                    refused.members.extend(own);
                    refused.wrs.push((wr.posted, WcStatus::WrFlushErr));
                }
            }
            generation
        };
        sges.clear();
        self.settle_post((index, generation), refused, other_tickets);
        self.batch_pool.put(batch);
    }
}
