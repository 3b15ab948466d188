//! Completion queues that delay, lose or fail completions.
//!
//! # Concurrency
//! As for any completion queue. The lock is held while the inner queue is polled and while a
//! queue pair is moved to Err. The inner objects never call back.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::plan::{Arrival, Plan};
use crate::verbs::{CompletionQueue, QueuePair, VerbsError, WcStatus, WorkCompletion};

/// Maximum duration of a wait while a completion is late, because lateness is counted in polls.
const NAP: Duration = Duration::from_micros(50);
/// Maximum number of completions per poll of the inner queue.
const BATCH: usize = 32;

/// Unpolled completions of one queue pair.
#[derive(Debug)]
struct Line {
    qp_num: u32,
    /// Completions with the number of the poll from which they can be taken. Only the first
    /// completion can be taken.
    waiting: VecDeque<(u64, WorkCompletion)>,
}

#[derive(Debug, Default)]
struct State {
    polls: u64,
    lines: Vec<Line>,
    /// Queue pairs with faults; `None` after a deliberate failure.
    watched: HashMap<u32, Option<Weak<dyn QueuePair>>>,
}

/// A completion queue with faults.
#[derive(Debug)]
pub(super) struct FaultCq {
    inner: Arc<dyn CompletionQueue>,
    plan: Arc<Plan>,
    state: Mutex<State>,
}

impl State {
    fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.waiting.is_empty())
    }

    /// Applies faults to a completion. Returns it with the number of the poll from which it can be
    /// taken, or `None` if it is lost.
    fn arrives(&mut self, mut wc: WorkCompletion, plan: &Plan) -> Option<(u64, WorkCompletion)> {
        let Some(watched) = self.watched.get_mut(&wc.qp_num) else { return Some((0, wc)) };
        if wc.status != WcStatus::Success {
            return Some((0, wc));
        }
        let Some(qp) = watched else {
            // Follows a request that failed.
            wc.status = WcStatus::WrFlushErr;
            return Some((0, wc));
        };
        match plan.arrival() {
            Arrival::Now => Some((0, wc)),
            Arrival::Late(polls) => Some((self.polls + u64::from(polls), wc)),
            Arrival::Lost => None,
            Arrival::Failed => {
                if let Some(qp) = qp.upgrade() {
                    qp.to_error();
                }
                *watched = None;
                wc.status = WcStatus::RetryExcErr;
                Some((0, wc))
            }
        }
    }

    fn add(&mut self, ready: u64, wc: WorkCompletion) {
        let line = match self.lines.iter_mut().find(|line| line.qp_num == wc.qp_num) {
            Some(line) => line,
            None => {
                self.lines.push(Line { qp_num: wc.qp_num, waiting: VecDeque::new() });
                let last = self.lines.len() - 1;
                &mut self.lines[last]
            }
        };
        line.waiting.push_back((ready, wc));
    }

    /// Takes available completions of the queue pairs in turn, starting at `first`.
    fn take(&mut self, out: &mut [WorkCompletion], first: usize) -> usize {
        let (mut count, lines) = (0, self.lines.len());
        for at in 0..lines {
            let line = &mut self.lines[(first + at) % lines];
            while count < out.len()
                && let Some((_, wc)) = line.waiting.front().filter(|(ready, _)| *ready <= self.polls)
            {
                out[count] = *wc;
                count += 1;
                line.waiting.pop_front();
            }
        }
        self.lines.retain(|line| !line.waiting.is_empty());
        count
    }
}

impl FaultCq {
    pub(super) fn new(inner: Arc<dyn CompletionQueue>, plan: Arc<Plan>) -> FaultCq {
        FaultCq { inner, plan, state: Mutex::default() }
    }

    /// Returns the inner queue.
    pub(super) fn inner(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.inner)
    }

    /// Enables faults for the completions of a queue pair.
    pub(super) fn watch(&self, qp: &Arc<dyn QueuePair>) {
        let mut state = self.state.lock();
        state.watched.retain(|_, qp| qp.as_ref().is_none_or(|qp| qp.strong_count() > 0));
        state.watched.insert(qp.qp_num(), Some(Arc::downgrade(qp)));
    }
}

impl crate::verbs::Sealed for FaultCq {}

impl CompletionQueue for FaultCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut state = self.state.lock();
        state.polls += 1;
        let mut some = [WorkCompletion::EMPTY; BATCH];
        let end = loop {
            match self.inner.poll(&mut some) {
                Ok(0) => break Ok(0),
                Ok(count) => {
                    for wc in &some[..count] {
                        if let Some((ready, wc)) = state.arrives(*wc, &self.plan) {
                            state.add(ready, wc);
                        }
                    }
                }
                Err(e) => break Err(e),
            }
        };
        let first = self.plan.first(state.lines.len());
        // An overrun is reported after all completions have been taken.
        match state.take(out, first) {
            0 if state.is_empty() => end,
            count => Ok(count),
        }
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.inner.arm()
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        if self.state.lock().is_empty() {
            return self.inner.wait(timeout);
        }
        let nap = timeout.map_or(NAP, |timeout| timeout.min(NAP));
        self.inner.wait(Some(nap)).map(|_| true)
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        provider::{fault::Faults, soft::SoftDevice},
        verbs::Device,
    };

    fn wc(qp_num: u32, wr_id: u64) -> WorkCompletion {
        WorkCompletion { wr_id, qp_num, ..WorkCompletion::EMPTY }
    }

    fn taken(state: &mut State, first: usize) -> Vec<(u32, u64)> {
        let mut out = [WorkCompletion::EMPTY; 8];
        let count = state.take(&mut out, first);
        out[..count].iter().map(|wc| (wc.qp_num, wc.wr_id)).collect()
    }

    #[test]
    fn a_late_completion_delays_its_own_queue_pair_only() {
        let mut state = State::default();
        for (ready, wc) in [(3, wc(1, 10)), (0, wc(1, 11)), (0, wc(2, 20)), (0, wc(2, 21))] {
            state.add(ready, wc);
        }
        assert_eq!(taken(&mut state, 0), [(2, 20), (2, 21)]);
        assert!(taken(&mut state, 0).is_empty() && !state.is_empty());
        state.polls = 3;
        state.add(0, wc(3, 30));
        assert_eq!(taken(&mut state, 1), [(3, 30), (1, 10), (1, 11)]);
        assert!(state.is_empty());
    }

    #[test]
    fn after_a_failure_only_other_queue_pairs_succeed() {
        let plan = Arc::new(Plan::new(Faults { failed: 1000, ..Faults::default() }));
        let device = SoftDevice::new().unwrap();
        let cq = FaultCq::new(device.create_cq(4).unwrap(), plan);
        let mut state = cq.state.lock();
        let none: Weak<dyn QueuePair> = Weak::<super::super::qp::FaultQp>::new();
        state.watched.insert(1, Some(none));
        let statuses: Vec<_> = [wc(1, 0), wc(1, 1), wc(2, 0)]
            .map(|wc| state.arrives(wc, &cq.plan).map(|(_, wc)| wc.status))
            .to_vec();
        let expected = [WcStatus::RetryExcErr, WcStatus::WrFlushErr, WcStatus::Success].map(Some);
        assert_eq!(statuses, expected);
    }
}
