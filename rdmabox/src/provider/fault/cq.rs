//! Completions that are late, lost, or say that a request failed.
//!
//! Threading: as any completion queue. Its lock is held while the queue below is polled and while a queue pair is moved to Err; nothing
//! below knows of it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::plan::{Arrival, Plan};
use crate::verbs::{CompletionQueue, QueuePair, VerbsError, WcStatus, WorkCompletion};

/// For so long nobody sleeps while something is late: lateness is counted in polls.
const NAP: Duration = Duration::from_micros(50);
/// Completions taken from below at a time.
const BATCH: usize = 32;

/// A queue pair's completions that have not been polled.
#[derive(Debug)]
struct Line {
    qp_num: u32,
    /// From which poll on, and what. Only the first one can be taken.
    waiting: VecDeque<(u64, WorkCompletion)>,
}

#[derive(Debug, Default)]
struct State {
    polls: u64,
    lines: Vec<Line>,
    /// Queue pairs with faults. One that has failed on purpose is `None`.
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

    /// What becomes of a completion, and from which poll on it can be taken; `None` if it is lost.
    fn arrives(&mut self, mut wc: WorkCompletion, plan: &Plan) -> Option<(u64, WorkCompletion)> {
        let Some(watched) = self.watched.get_mut(&wc.qp_num) else { return Some((0, wc)) };
        if wc.status != WcStatus::Success {
            return Some((0, wc));
        }
        let Some(qp) = watched else {
            // Behind a request that failed.
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

    /// Takes what can be taken, the queue pairs in turn from `first` on.
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

    /// The queue below.
    pub(super) fn inner(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.inner)
    }

    /// Completions of this queue pair have faults.
    pub(super) fn watch(&self, qp: &Arc<dyn QueuePair>) {
        let mut state = self.state.lock();
        state.watched.retain(|_, qp| qp.as_ref().is_none_or(|qp| qp.strong_count() > 0));
        state.watched.insert(qp.qp_num(), Some(Arc::downgrade(qp)));
    }
}

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
        // An overrun is told when all has been taken.
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
    fn lateness_holds_up_its_own_queue_pair_only() {
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
    fn behind_a_failure_nothing_succeeds_and_others_go_on() {
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
