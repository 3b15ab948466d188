//! Takes singles off the backlog: plans them, and spreads a large batch over the lanes.
//!
//! The shares of a batch come from one plan, in its order. If planned writes overlap, only the
//! first list of the plan is posted. The rest is planned again, and waits for the overlapping
//! writes in flight.
//!
//! # Concurrency
//! The combiner's thread. The admission lock, and the lock of the writes in flight, are taken for
//! moments.

use crate::{
    admission::charge,
    batch::{Item, OpenLanes, Plan, PlanLimits, PlannedWr},
    runtime::{
        lane::Lane,
        queue::{Batch, Combiner, Request, WRITE},
        state::Runtime,
    },
};

use super::{Attempt, SMALL};

/// Bytes that are planned for a byte that may be copied, so that adjacent requests still merge.
const PLANNED_PER_COPIED: u64 = 4;

/// The room that work requests of a plan got on a lane.
struct Admitted {
    /// Number of work requests.
    count: usize,
    waits_for_window: bool,
    /// True if the turn to take room has passed to the other direction.
    passed: bool,
}

impl Runtime {
    /// Reserves room on a lane and in the admission window for work requests of a plan, from
    /// `first` on.
    #[inline]
    fn admit(
        &self,
        direction: usize,
        lane: usize,
        combiner: &mut Combiner,
        first: usize,
        small: bool,
    ) -> Admitted {
        let lane = &self.lanes[lane];
        // The rest of a long run goes to the next lanes.
        let most = if self.lanes.len() > 1 { self.limits.max_merge } else { u64::MAX };
        // The requests of a list end together. A list with all of the window would leave it empty,
        // and the other lanes idle.
        let works_beside = self.spreads && self.lanes.len() > 1;
        let half = if works_beside { self.admission.max_merge() / 2 } else { u64::MAX };
        let (mut admitted, mut bytes, mut cut) = (0, 0u64, false);
        let mut turns = self.admission_lock.lock();
        let mut waits = !turns.may_take(direction);
        let room = if waits { 0 } else { lane.room() };
        let share = self.share_of(direction, lane, &combiner.plan, first);
        let (mut copied, copies_left) = (0, combiner.copies_left);
        for wr in combiner.plan.wrs[first..].iter().take(room.min(share)) {
            bytes = bytes.saturating_add(wr.len);
            // The rest waits for the next poll, and not for room: the other direction may take it.
            if admitted > 0 && copied >= copies_left {
                break;
            }
            cut = admitted > 0 && bytes > most;
            if cut || admitted > 0 && bytes > half {
                break;
            }
            if !self.admission.try_admit(wr.len) {
                waits = true;
                break;
            }
            admitted += 1;
            if wr.staged {
                copied += wr.len;
            }
        }
        combiner.copies_left = copies_left.saturating_sub(copied);
        let waits_for_window = waits;
        // Another thread may have taken the places since the choice of the lane.
        waits |= room == 0;
        if !small || cut {
            lane.note_large(admitted);
        }
        lane.reserve(admitted);
        combiner.waits = waits;
        Admitted {
            count: admitted,
            waits_for_window,
            passed: turns.end_attempt(direction, admitted > 0, waits),
        }
    }

    /// Returns the number of planned work requests, from `first` on, that a lane may take, so that
    /// a large batch is spread over the lanes. Called under the admission lock.
    fn share_of(&self, direction: usize, lane: &Lane, plan: &Plan, first: usize) -> usize {
        let wrs = &plan.wrs[first..];
        // Overlapping writes need not wait for each other on one lane.
        let stays = !self.spreads || direction == WRITE && plan.has_overlaps;
        if stays || self.lanes.len() == 1 || !OpenLanes::is_worth_spreading(wrs.len()) {
            return wrs.len();
        }
        // The rest cannot be posted now. It is no reason to leave other lanes idle.
        let mut free = self.admission.free();
        let fits = |wr: &&PlannedWr| match free.checked_sub(charge(wr.len)) {
            Some(left) => {
                free = left;
                true
            }
            None => false,
        };
        let batch = wrs.iter().take_while(fits).count();
        let mut open = OpenLanes::default();
        self.lanes.iter().filter_map(Lane::outstanding).for_each(|outstanding| open.add(outstanding));
        match open.share(batch, lane.outstanding().unwrap_or(0)) {
            // The window ends the batch.
            share if share == batch => wrs.len(),
            share => share,
        }
    }

    /// Takes singles off the head of the backlog, as far as window, lanes and writes in flight
    /// allow. Posts all of them but the last list, which the attempt has.
    pub(super) fn take_singles(&self, direction: usize, combiner: &mut Combiner) -> Attempt {
        let small = combiner.backlog.iter().all(|pending| match &pending.request {
            Request::Single { loan, .. } => loan.len() as u64 <= SMALL,
            Request::Group(_) => true,
        });
        let Some(lane) = self.lane_with_room(1, small) else {
            combiner.waits = true;
            let passed = self.admission_lock.lock().end_attempt(direction, false, true);
            return Attempt { asked: true, passed, ..Attempt::default() };
        };
        // More requests cannot be posted now. The rest is planned in a later round.
        let most = self.lanes[lane].room().max(1).saturating_mul(self.limits.max_sge.max(1) as usize);
        let waits_for_overlap = self.list_items(direction, most, combiner);
        if combiner.items.is_empty() {
            return Attempt { waits_for_overlap, ..Attempt::default() };
        }
        let max_merge = self.limits.max_merge.min(self.admission.max_merge());
        crate::batch::plan(&combiner.items, &PlanLimits { max_merge, ..self.limits }, &mut combiner.plan);
        // Requests with lower addresses may keep coming.
        combiner.plan.oldest_first();
        let Admitted { count, waits_for_window, passed } = self.admit(direction, lane, combiner, 0, small);
        let attempt =
            Attempt { asked: true, passed, waits_for_window, waits_for_overlap, ..Attempt::default() };
        if count == 0 { attempt } else { self.take_planned(direction, lane, count, combiner, small, attempt) }
    }

    /// Lists the singles at the head of the backlog for the planner, at most `most`. Returns true
    /// if one of them has to wait for a write in flight.
    fn list_items(&self, direction: usize, most: usize, combiner: &mut Combiner) -> bool {
        combiner.items.clear();
        let writes = (direction == WRITE).then(|| self.writes.lock());
        // Copies far beyond the budget are planned after the next poll.
        let most_copied = combiner.copies_left.saturating_mul(PLANNED_PER_COPIED).max(self.limits.max_merge);
        let mut copied = 0u64;
        for pending in combiner.backlog.iter().take(most) {
            let Request::Single { remote, loan } = &pending.request else { break };
            let len = loan.len() as u64;
            if copied >= most_copied {
                break;
            }
            if writes.as_ref().is_some_and(|writes| writes.overlaps(*remote, len)) {
                // Later writes may not overtake this one: they might overlap it.
                return true;
            }
            let stageable = self.is_stageable(loan);
            if stageable && len <= self.limits.stage_threshold {
                copied += len;
            }
            combiner.items.push(Item { remote: *remote, len, sges: 1, stageable });
        }
        false
    }

    /// Takes planned requests off the backlog: those of the first `count` work requests for `lane`,
    /// and further ones for other lanes. Posts each list but the last one.
    fn take_planned(
        &self,
        direction: usize,
        mut lane: usize,
        mut count: usize,
        combiner: &mut Combiner,
        small: bool,
        mut attempt: Attempt,
    ) -> Attempt {
        let planned = combiner.items.len();
        combiner.picked.extend(combiner.backlog.drain(..planned).map(Some));
        let mut first = 0;
        while count > 0 {
            let Combiner { plan, picked, .. } = &mut *combiner;
            let wrs = first..first + count;
            attempt.batch = Some(Batch::singles(self, lane, direction == WRITE, plan, wrs, picked));
            first += count;
            let is_over = first == plan.wrs.len() || combiner.waits || combiner.copies_left == 0;
            if is_over || !self.may_go_on(direction, &combiner.plan) {
                break;
            }
            let Some(next) = self.lane_with_room(1, small) else { break };
            if let Some(batch) = attempt.batch.take() {
                self.post(batch);
            }
            lane = next;
            let admitted = self.admit(direction, lane, combiner, first, small);
            count = admitted.count;
            attempt.passed |= admitted.passed;
            attempt.waits_for_window |= admitted.waits_for_window;
        }
        combiner.put_back();
        attempt
    }

    /// Returns true if the rest of a plan may go to another lane. It may if posting does not
    /// execute, and no planned write has to follow another write.
    fn may_go_on(&self, direction: usize, plan: &Plan) -> bool {
        let may_overlap = plan.has_overlaps || !self.limits.mode.merges();
        !(self.executes_at_post || direction == WRITE && may_overlap)
    }
}
