//! From a plan to posted work requests: staging or registering local memory, and one doorbell per chain.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    Runtime, Ticket,
    lane::{Kind, Member, PostedWr},
    order::Fetched,
    submit::{GroupOp, Pending, Request},
};
use crate::{
    batch::Plan,
    memory::{Loan, Memory, PreMrBuf, PreMrPool},
    verbs::{Access, MrHandle, RemoteAddr, SendFlags, SendOp, SendWr, Sge, VerbsError, WcStatus},
};

/// A work request that is ready but for its place in the queue.
#[derive(Debug)]
struct Ready {
    op: SendOp,
    /// Elements in `Batch::sges`; empty with inline data.
    sges: std::ops::Range<usize>,
    inline: bool,
    flags: SendFlags,
    posted: PostedWr,
}

/// Work requests for one lane, in order.
#[derive(Debug)]
pub(crate) struct Batch {
    lane: usize,
    /// Work requests per doorbell.
    chain: usize,
    sges: SmallVec<[Sge; 8]>,
    ready: SmallVec<[Ready; 2]>,
}

impl Batch {
    /// The first `count` work requests of a plan.
    pub(crate) fn singles(
        runtime: &Runtime,
        lane: usize,
        write: bool,
        plan: &Plan,
        count: usize,
        picked: &mut [Option<Pending>],
    ) -> Batch {
        let chain = if runtime.limits.mode.chains() { runtime.limits.max_chain.max(1) as usize } else { 1 };
        let mut batch = Batch { lane, chain, sges: SmallVec::new(), ready: SmallVec::new() };
        for wr in &plan.wrs[..count] {
            let members = plan.members_of(wr).iter().filter_map(|index| {
                let Pending { request, ticket } = picked[*index as usize].take()?;
                let Request::Single { loan, .. } = request else { return None };
                Some(Member { loan, ticket })
            });
            let (op, kind) = if write {
                (SendOp::Write { remote: wr.remote, imm: None }, Kind::Write)
            } else {
                (SendOp::Read { remote: wr.remote }, Kind::Read)
            };
            let change = write.then_some((wr.remote, wr.len));
            let members: SmallVec<[Member; 4]> = members.collect();
            runtime.stats.merged.add(members.len().saturating_sub(1) as u64);
            let flags = SendFlags::empty();
            batch.add(runtime, op, flags, kind, members, wr.len, wr.len, wr.staged, change);
        }
        batch
    }

    /// An ordered list: one chain whatever the mode.
    pub(crate) fn group(
        runtime: &Runtime,
        lane: usize,
        ops: SmallVec<[GroupOp; 4]>,
        ticket: &Arc<Ticket>,
        admitted: u64,
    ) -> Batch {
        let mut batch = Batch { lane, chain: ops.len(), sges: SmallVec::new(), ready: SmallVec::new() };
        // The whole list was admitted at once and is counted out with its last step.
        let last = ops.len() - 1;
        let mut fetched = Fetched::default();
        for (index, step) in ops.into_iter().enumerate() {
            let change = step.changes();
            let len = step.loan.len() as u64;
            let kind = match step.op {
                SendOp::Read { .. } => Kind::Read,
                SendOp::Write { .. } | SendOp::Send { .. } => Kind::Write,
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Kind::Atomic,
            };
            let staged = kind != Kind::Atomic && len <= runtime.limits.stage_threshold;
            let mut members = SmallVec::new();
            members.push(Member { loan: step.loan, ticket: Arc::clone(ticket) });
            let admitted = if index == last { admitted } else { 0 };
            let flags = if fetched.step(&step.op, len) { SendFlags::FENCE } else { SendFlags::empty() };
            batch.add(runtime, step.op, flags, kind, members, len, admitted, staged, change);
        }
        batch
    }

    #[allow(clippy::too_many_arguments)] // The fields of one work request.
    fn add(
        &mut self,
        runtime: &Runtime,
        op: SendOp,
        flags: SendFlags,
        kind: Kind,
        members: SmallVec<[Member; 4]>,
        len: u64,
        admitted: u64,
        staged: bool,
        change: Option<(RemoteAddr, u64)>,
    ) {
        let in_flight = change.map(|(remote, len)| runtime.writes.lock().insert(remote, len));
        let mut posted = PostedWr {
            registrations: SmallVec::new(),
            staging: None,
            members,
            kind,
            len,
            admitted,
            in_flight,
            posted_at: Instant::now(),
        };
        let first = self.sges.len();
        let inline = kind == Kind::Write && posted.members.len() == 1 && len <= u64::from(runtime.max_inline);
        if !inline {
            if staged {
                posted.staging = runtime.pool.acquire(len as usize);
            }
            let mut lkey = runtime.pool_mr.lkey();
            if staged && posted.staging.is_none() && posted.members.len() > runtime.limits.max_sge as usize {
                // The pool is exhausted, and the parts are too many for one request without it.
                match stage_apart(runtime, len) {
                    Ok((staging, handle)) => {
                        lkey = handle.lkey();
                        posted.staging = Some(staging);
                        posted.registrations.push(handle);
                    }
                    // The post will refuse it.
                    Err(e) => log::error!("no memory to gather {} requests: {e}", posted.members.len()),
                }
            }
            match &posted.staging {
                Some(staging) => {
                    runtime.stats.pre_mr_bytes.add(len);
                    let mut at = 0;
                    for member in &posted.members {
                        if kind == Kind::Write {
                            member.loan.stage(staging, at);
                        }
                        at += member.loan.len();
                    }
                    self.sges.push(Sge { addr: staging.addr(), length: len as u32, lkey });
                }
                None => {
                    runtime.stats.dyn_mr_bytes.add(len);
                    for member in &posted.members {
                        match register(runtime, &member.loan) {
                            Ok((sge, handle)) => {
                                self.sges.push(sge);
                                posted.registrations.push(handle);
                            }
                            Err(e) => {
                                // The device has no room for it: an element that names nothing makes the request,
                                // and it alone, fail with a protection error.
                                log::error!("cannot register a caller's buffer: {e}");
                                self.sges.push(Sge { addr: 0, length: member.loan.len() as u32, lkey: 0 });
                            }
                        }
                    }
                }
            }
        }
        self.ready.push(Ready { op, sges: first..self.sges.len(), inline, flags, posted });
    }
}

/// A buffer outside of the pool, registered for one request.
fn stage_apart(runtime: &Runtime, len: u64) -> Result<(PreMrBuf, MrHandle), String> {
    // A pool of one block: the block is what requests know how to copy through.
    let len = len as usize;
    let memory = Memory::private(len.next_power_of_two().max(4096)).map_err(|e| e.to_string())?;
    let memory = Arc::new(memory);
    runtime.stats.registrations.inc();
    let bytes = memory.len() as u64;
    let handle = runtime.pd.register(&memory, 0, bytes, Access::LOCAL_WRITE).map_err(|e| e.to_string())?;
    let block = PreMrPool::new(memory, len).acquire(len).ok_or("it is too long")?;
    Ok((block, handle))
}

fn register(runtime: &Runtime, loan: &Loan) -> Result<(Sge, MrHandle), VerbsError> {
    runtime.stats.registrations.inc();
    let handle = loan.register(&*runtime.pd)?;
    Ok((loan.sge(handle.lkey()), handle))
}

impl Runtime {
    /// Posts a batch on its lane.
    pub(super) fn post(&self, batch: Batch) {
        let Batch { lane: index, chain, sges, mut ready } = batch;
        let lane = &self.lanes[index];
        let me = std::thread::current().id();
        let mut others: SmallVec<[Arc<Ticket>; 4]> = SmallVec::new();
        let mut refused: SmallVec<[PostedWr; 2]> = SmallVec::new();
        {
            // Held over the post, so that a completion cannot come before its request is in the queue.
            let mut queue = lane.queue.lock();
            while !ready.is_empty() {
                let count = ready.len().min(chain);
                let first_id = queue.next_id();
                let posted = {
                    let list: SmallVec<[SendWr<'_>; 4]> = ready[..count]
                        .iter()
                        .enumerate()
                        .map(|(i, wr)| SendWr {
                            wr_id: first_id + i as u64,
                            op: wr.op,
                            sges: &sges[wr.sges.clone()],
                            inline: if wr.inline { wr.posted.members[0].loan.bytes() } else { None },
                            // The last one speaks for the chain.
                            flags: if i + 1 == count { wr.flags | SendFlags::SIGNALED } else { wr.flags },
                        })
                        .collect();
                    for wr in &ready[..count] {
                        for member in &wr.posted.members {
                            member.ticket.posted_on(index);
                        }
                    }
                    self.stats.count_post(count);
                    match lane.qp.post_send(&list) {
                        Ok(()) => count,
                        Err(e) => {
                            log::debug!("lane {index}: {e}");
                            e.posted
                        }
                    }
                };
                for (i, wr) in ready.drain(..count).enumerate() {
                    if i < posted {
                        for member in &wr.posted.members {
                            if member.ticket.owner() != me {
                                others.push(Arc::clone(&member.ticket));
                            }
                        }
                        queue.push(wr.posted);
                    } else {
                        refused.push(wr.posted);
                    }
                }
                if posted < count {
                    // What was posted of a refused chain has no signaled end: the queue pair is of no use any more.
                    refused.extend(ready.drain(..).map(|wr| {
                        wr.posted.members.iter().for_each(|member| member.ticket.posted_on(index));
                        wr.posted
                    }));
                }
            }
        }
        if !refused.is_empty() {
            // In Err nothing of the refused requests' chain touches memory any more, and what of it was posted has no
            // signaled end: it is closed by hand.
            self.fail();
            self.close_lane(index);
            lane.vacate(refused.len());
        }
        for wr in refused {
            self.finish(index, wr, WcStatus::WrFlushErr);
        }
        for ticket in others {
            lane.attendance.expect(&ticket);
        }
    }
}
