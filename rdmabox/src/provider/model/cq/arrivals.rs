//! Completions of the inner queue that no thread has polled, by queue pair.
//!
//! # Concurrency
//! Plain values, under the lock of the completion queue. `Line::held` is taken inside.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use smallvec::SmallVec;

use crate::{
    provider::model::{card::Card, line::Line},
    verbs::{WcOpcode, WcStatus, WorkCompletion},
};

/// Completions of one queue pair that its owner has not polled.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) qp_num: u32,
    pub(super) line: Weak<Line>,
    pub(super) completions: VecDeque<Arrived>,
}

/// A completion of the inner queue.
#[derive(Debug)]
pub(super) struct Arrived {
    /// Sequence number of its request, if the card has to report it.
    pub(super) sequence: Option<u64>,
    /// Number of the completion in this queue.
    pub(super) number: u64,
    /// Model time at which this queue had it.
    pub(super) seen: u64,
    pub(super) wc: WorkCompletion,
}

/// The request for an event: later completions than these cause it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Armed {
    /// Model time of the last event of the card.
    pub(super) at: u64,
    /// Number of completions of the inner queue.
    pub(super) number: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queue_pairs: Vec<Waiting>,
    /// Number of completions of the inner queue so far.
    pub(super) arrived: u64,
    pub(super) woken: bool,
    pub(super) armed: Option<Armed>,
    /// The event of a completion that was polled before any wait.
    pub(super) event: bool,
    /// The inner queue failed; reported when all completions have been taken.
    pub(super) overrun: bool,
}

impl Waiting {
    pub(super) fn is_over(&self) -> bool {
        self.completions.is_empty() && self.line.strong_count() == 0
    }

    /// Assigns a completion of the inner queue to its request.
    fn arrive(&mut self, wc: WorkCompletion, number: u64, seen: u64) {
        let is_send = !matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
        let mut sequence = None;
        if let Some(line) = self.line.upgrade() {
            let mut held = line.held.lock();
            if wc.status != WcStatus::Success {
                held.fail();
            } else if is_send {
                sequence = held.completed();
            }
        }
        self.completions.push_back(Arrived { sequence, number, seen, wc });
    }
}

impl State {
    pub(super) fn arrive(&mut self, wc: WorkCompletion, seen: u64) {
        let at = self.queue_pairs.iter().position(|waiting| waiting.qp_num == wc.qp_num);
        let at = at.unwrap_or_else(|| {
            // Its queue pair only receives here.
            self.queue_pairs.push(Waiting {
                qp_num: wc.qp_num,
                line: Weak::new(),
                completions: VecDeque::new(),
            });
            self.queue_pairs.len() - 1
        });
        self.arrived += 1;
        self.queue_pairs[at].arrive(wc, self.arrived, seen);
    }

    /// Returns the queue pairs that still exist.
    pub(super) fn lines(&self) -> SmallVec<[Option<Arc<Line>>; 4]> {
        self.queue_pairs.iter().map(|waiting| waiting.line.upgrade()).collect()
    }

    /// Returns true if all completions of the inner queue were taken.
    pub(super) fn is_empty(&self) -> bool {
        self.queue_pairs.iter().all(|waiting| waiting.completions.is_empty())
    }
}

/// The first completion of a queue pair that can be polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    /// Model time of the card's report; `None` if the card does not report it.
    pub(super) reported: Option<u64>,
    /// Model time of the completion, and its number: the order of a poll.
    pub(super) order: (u64, u64),
}

/// Returns the first completion of a queue pair, unless the card has yet to report it.
pub(super) fn front(waiting: &Waiting, line: &Option<Arc<Line>>, card: &Card) -> Option<Front> {
    let arrived = waiting.completions.front()?;
    let reported = match (arrived.sequence, line) {
        (Some(sequence), Some(line)) => Some(card.completion(line.key, sequence)?),
        _ => None,
    };
    Some(Front { reported, order: (reported.unwrap_or(arrived.seen), arrived.number) })
}

/// Returns the queue pair with the oldest completion, so that none starves.
pub(super) fn oldest(fronts: &[Option<Front>]) -> Option<usize> {
    let some = fronts.iter().enumerate().filter_map(|(index, front)| Some((front.as_ref()?.order, index)));
    some.min().map(|(_, index)| index)
}

/// Returns true if a completion that the card reported at `at` causes the requested event. It does
/// if the card or the inner device had it after the request.
pub(super) fn fires(armed: Option<Armed>, arrived: &Arrived, at: Option<u64>) -> bool {
    armed.is_some_and(|armed| arrived.number > armed.number || at.is_some_and(|at| at > armed.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_completion_of_all_queue_pairs_is_first() {
        let at = |time, number| Some(Front { reported: Some(time), order: (time, number) });
        assert_eq!(oldest(&[at(50, 1), None, at(40, 3), at(40, 2)]), Some(3));
        assert_eq!(oldest(&[at(u64::MAX, 4), at(u64::MAX, 3)]), Some(1));
        assert_eq!(oldest(&[None, None]), None);
    }
}
