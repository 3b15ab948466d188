//! Repeats the parts of a refused work request alone, so that each caller gets its own outcome.
//!
//! A device reports one status for a merged work request. If that is a refusal, one part is to
//! blame, and the others are right. Each part is therefore posted again, unmerged, and only its
//! caller gets its status. A part that is alone is never repeated, nor is an atomic or a step of a
//! list. A repeated WRITE stores the bytes that the first attempt may have stored.
//!
//! A part that is refused again breaks its lane. So only one part of a direction is under way at a
//! time: no other part is flushed with it. The range of a WRITE stays in flight from the first post
//! to the end of the repetition. A later overlapping write so waits, and other requests pass.
//!
//! # Concurrency
//! A combiner posts the repetitions. The thread that finds a refusal queues them: it takes the
//! combiner's lock, without holding any other lock but the leader lock of `cq_wait`.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::{Attempt, SMALL};
use crate::{
    batch::part_addresses,
    runtime::{
        lane::{Kind, Lane, Member, PostedWr},
        queue::{Batch, Combiner, READ, Repeat, WRITE},
        state::Runtime,
    },
    sync::{atomic::Ordering, now},
    verbs::{RemoteAddr, WcStatus},
};

/// Returns the time from which the timeout of a repetition counts: that of its first post, but at
/// least half of the timeout is left. A repetition that is late already would break its new lane.
fn counts_from(first_post: Instant, now: Instant, timeout: Duration) -> Instant {
    now.checked_sub(timeout / 2).map_or(first_post, |earliest| first_post.max(earliest))
}

/// Returns the direction whose combiner posts READs, or WRITEs.
fn direction_of(kind: Kind) -> usize {
    if kind == Kind::Read { READ } else { WRITE }
}

impl Runtime {
    /// Queues the parts of a finished work request, if it was merged and refused. Returns true if
    /// so: its members are taken. The caller has to [`resume`](Self::resume) afterwards.
    ///
    /// The ranges of the parts are in flight when this returns, so the caller may then remove the
    /// range of the work request.
    pub(crate) fn repeat_if_refused(
        &self,
        wr: &PostedWr,
        status: WcStatus,
        members: &mut impl Iterator<Item = Member>,
    ) -> bool {
        let refused = wr.merged_at.filter(|_| status.is_refusal() && !self.is_dead());
        if let Some(remote) = refused {
            log::debug!("lane {}: {status}: {} merged requests are repeated alone", wr.lane, wr.members);
            self.repeat(wr, remote, members);
        }
        refused.is_some()
    }

    /// Queues the parts of a work request again. `remote` is the place of the first part.
    #[cold]
    fn repeat(&self, wr: &PostedWr, remote: RemoteAddr, members: &mut impl Iterator<Item = Member>) {
        let members: SmallVec<[Member; 32]> = members.collect();
        self.stats.repeated.add(members.len() as u64);
        let cq_index = self.lanes[wr.lane].cq_index;
        for Member { ticket, .. } in &members {
            // A thread that waits for it there looks for it anew.
            let notice = ticket.unpost(cq_index);
            self.notify_owner(notice);
        }
        let lengths: SmallVec<[u64; 32]> = members.iter().map(|member| member.loan.len() as u64).collect();
        let repeats = part_addresses(remote, &lengths).zip(members).map(|(remote, member)| {
            let Member { loan, ticket } = member;
            let is_write = wr.kind == Kind::Write;
            let in_flight = is_write.then(|| self.writes.lock().insert(remote, loan.len() as u64));
            Repeat { remote, loan, ticket, in_flight, posted_at: wr.posted_at }
        });
        self.directions[direction_of(wr.kind)].with(|guard| {
            guard.state().repeats.extend(repeats);
            guard.begin_stall();
        });
    }

    /// Notes that a repetition has ended. The caller has to [`resume`](Self::resume) afterwards.
    pub(crate) fn end_repeat(&self, kind: Kind) {
        self.repeating[direction_of(kind)].store(false, Ordering::SeqCst);
    }

    /// Takes the next repetition, if it can be posted now. Returns `None` if there is none, or if
    /// one is under way.
    pub(super) fn take_repeat(&self, direction: usize, combiner: &mut Combiner) -> Option<Attempt> {
        let bytes = combiner.repeats.front()?.loan.len() as u64;
        if self.repeating[direction].load(Ordering::SeqCst) {
            return None;
        }
        // On an idle lane a second refusal flushes no request that is posted already.
        let idle = || self.lanes.iter().position(|lane| !lane.is_down() && Lane::is_idle(lane));
        let lane = || idle().or_else(|| self.lane_with_room(1, bytes <= SMALL));
        let reserved = self.reserve(direction, combiner, (1, bytes), lane);
        let batch = match reserved.lane {
            Some(lane) => {
                let mut repeat = combiner.repeats.pop_front()?;
                repeat.posted_at = counts_from(repeat.posted_at, now(), repeat.ticket.timeout());
                self.repeating[direction].store(true, Ordering::SeqCst);
                Some(Batch::repeat(self, lane, direction == WRITE, repeat))
            }
            None => None,
        };
        Some(Attempt { batch, ..reserved.attempt() })
    }
}

#[cfg(test)]
mod tests;
