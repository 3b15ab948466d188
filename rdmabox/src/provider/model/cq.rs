//! Completion queues over a modelled card: completions appear when the card has reported them.
//!
//! Failures and receives appear as soon as the inner device has them, behind the earlier
//! completions of their queue pair. A poll takes the calling thread its modelled time. The first
//! completion after an `arm` causes an interrupt, which ends a wait.
//!
//! # Concurrency
//! As for any completion queue. `state` is locked while the inner queue is polled; `Line::held`
//! or the card's lock is taken inside. A thread pays its modelled time without a lock of this
//! module. The runtime has its own: a post sleeps with the lock of its queue pair's lane.

mod arrivals;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use self::arrivals::{Armed, Front, State, Waiting, fires, front, oldest};
use super::{ModelledCard, line::Line};
use crate::verbs::{CompletionQueue, VerbsError, WorkCompletion};

/// Maximum number of completions per poll of the inner queue.
const BATCH: usize = 32;
/// Shortest sleep of a waiter: the resolution of a wait.
const STEP: Duration = Duration::from_micros(100);
/// Longest sleep of a waiter whose completions depend on the inner device as well.
const NAP: Duration = Duration::from_millis(1);

/// A completion queue over a modelled card.
#[derive(Debug)]
pub(super) struct ModelCq {
    inner: Arc<dyn CompletionQueue>,
    card: Arc<ModelledCard>,
    state: Mutex<State>,
    wakes: Condvar,
}

impl ModelCq {
    pub(super) fn new(inner: Arc<dyn CompletionQueue>, card: Arc<ModelledCard>) -> ModelCq {
        ModelCq { inner, card, state: Mutex::default(), wakes: Condvar::new() }
    }

    pub(super) fn inner(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.inner)
    }

    /// Adds a queue pair whose send requests complete here.
    pub(super) fn add(&self, line: &Arc<Line>) {
        let waiting =
            Waiting { qp_num: line.qp_num, line: Arc::downgrade(line), completions: VecDeque::new() };
        let mut state = self.state.lock();
        state.queue_pairs.retain(|waiting| !waiting.is_over());
        state.queue_pairs.push(waiting);
    }

    /// Takes all completions of the inner queue.
    fn drain(&self, state: &mut State) -> Result<(), VerbsError> {
        let mut some = [WorkCompletion::EMPTY; BATCH];
        loop {
            match self.inner.poll(&mut some) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    let seen = self.card.clock.now();
                    some[..count].iter().for_each(|wc| state.arrive(*wc, seen));
                }
                Err(VerbsError::CqOverrun) => {
                    state.overrun = true;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes the completions that the card has reported, oldest first over all queue pairs. Returns
    /// their number, and the model time of the last one.
    fn take(&self, state: &mut State, out: &mut [WorkCompletion]) -> (usize, u64) {
        let (mut count, mut last) = (0, 0);
        // The last handle of a queue pair locks the card, so handles outlive the guard.
        let lines = state.lines();
        let mut polled: SmallVec<[Option<u64>; 4]> = SmallVec::from_elem(None, lines.len());
        let mut card = self.card.advanced();
        let fronts = state.queue_pairs.iter().zip(&lines).map(|(waiting, line)| front(waiting, line, &card));
        let mut fronts: SmallVec<[Option<Front>; 4]> = fronts.collect();
        while count < out.len()
            && let Some(index) = oldest(&fronts)
            && let Some(arrived) = state.queue_pairs[index].completions.pop_front()
        {
            let at = fronts[index].and_then(|front| front.reported);
            if let Some(at) = at {
                last = last.max(at);
                polled[index] = arrived.sequence;
            }
            if fires(state.armed, &arrived, at) {
                // The event goes to the next wait, although the completion was polled.
                (state.armed, state.event) = (None, true);
                card.counters.interrupts += 1;
            }
            out[count] = arrived.wc;
            count += 1;
            fronts[index] = front(&state.queue_pairs[index], &lines[index], &card);
        }
        let polled =
            polled.iter().zip(&lines).filter_map(|(sequence, line)| Some(((*sequence)?, line.as_ref()?)));
        polled.clone().for_each(|(sequence, line)| card.forget(line.key, sequence));
        drop(card);
        polled.for_each(|(sequence, line)| line.held.lock().polled(sequence));
        (count, last)
    }

    /// Returns whether a completion causes the event that was requested.
    fn ready(&self, state: &State) -> Ready {
        let lines = state.lines();
        let card = self.card.advanced();
        let mut waits = false;
        for (waiting, line) in state.queue_pairs.iter().zip(&lines) {
            for arrived in &waiting.completions {
                let at = match (arrived.sequence, line) {
                    (Some(sequence), Some(line)) => match card.completion(line.key, sequence) {
                        Some(at) => Some(at),
                        None => {
                            waits = true;
                            break;
                        }
                    },
                    _ => None,
                };
                if fires(state.armed, arrived, at) {
                    return Ready::At(at.unwrap_or(card.time()));
                }
            }
        }
        if waits { Ready::NotBefore(card.next_event().unwrap_or(0)) } else { Ready::Nothing }
    }

    /// Makes the waiter pay for the interrupt of an event at `at`.
    fn interrupt(&self, at: u64, slept: bool) {
        self.card.clock.saw(at, slept);
        self.card.clock.spend(self.card.parameters().values.host.interrupt_ns);
    }
}

/// State of the event.
enum Ready {
    /// A completion of this model time causes it.
    At(u64),
    /// Completions wait for the card, whose next event is at this model time.
    NotBefore(u64),
    /// No completion waits for the card.
    Nothing,
}

impl crate::verbs::Sealed for ModelCq {}

impl CompletionQueue for ModelCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut state = self.state.lock();
        self.drain(&mut state)?;
        let (count, last) = self.take(&mut state, out);
        let failed = count == 0 && state.overrun && state.is_empty();
        drop(state);
        if failed {
            return Err(VerbsError::CqOverrun);
        }
        let host = &self.card.parameters().values.host;
        if count > 0 && last > 0 {
            self.card.clock.saw(last, false);
        }
        self.card.clock.spend(host.poll_ns + count as u64 * host.completion_ns);
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        let mut state = self.state.lock();
        self.drain(&mut state)?;
        let at = self.card.advanced().time();
        state.armed = Some(Armed { at, number: state.arrived });
        Ok(())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout.min(Duration::from_secs(365 * 86_400)));
        let (mut slept, began) = (false, self.card.clock.thread_now());
        loop {
            let mut state = self.state.lock();
            self.drain(&mut state)?;
            if std::mem::take(&mut state.woken) || state.overrun {
                return Ok(true);
            }
            if std::mem::take(&mut state.event) {
                drop(state);
                self.card.clock.spend(self.card.parameters().values.host.interrupt_ns);
                return Ok(true);
            }
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            match self.ready(&state) {
                Ready::At(at) => {
                    state.armed = None;
                    self.card.card().counters.interrupts += 1;
                    drop(state);
                    // Its time is the later one of the event and its own before the wait.
                    self.interrupt(at.max(began), slept);
                    return Ok(true);
                }
                _ if left.is_some_and(|left| left.is_zero()) => return Ok(false),
                Ready::NotBefore(at) => {
                    let next = self.card.clock.instant(at).saturating_duration_since(now).clamp(STEP, NAP);
                    self.wakes.wait_for(&mut state, left.map_or(next, |left| left.min(next)));
                    slept = true;
                }
                Ready::Nothing => {
                    self.inner.arm()?;
                    // A completion before the arming causes no event of the inner queue.
                    let before = state.arrived;
                    self.drain(&mut state)?;
                    let is_idle = state.arrived == before && !state.overrun;
                    drop(state);
                    if is_idle && !self.inner.wait(left)? {
                        return Ok(false);
                    }
                    slept |= is_idle;
                }
            }
        }
    }

    fn wake(&self) {
        self.state.lock().woken = true;
        self.wakes.notify_all();
        self.inner.wake();
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }
}
