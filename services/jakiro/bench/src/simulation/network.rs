//! A network of queues: stages that serve one request at a time, in order of arrival.
//!
//! # Concurrency
//! No I/O, no locks, no clock. Times are nanoseconds of the simulation.

use std::{cmp::Reverse, collections::BinaryHeap};

use smallvec::{SmallVec, smallvec};

/// A stage on the way of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) stage: usize,
    pub(super) service: u64,
    /// Time from the end of the service to the next stage.
    pub(super) delay: u64,
}

/// The way of a request.
pub(super) type Hops = SmallVec<[Hop; 6]>;

#[derive(Debug)]
struct Journey<E> {
    hops: Hops,
    next: usize,
    event: E,
}

/// Stages, and the requests on their ways.
#[derive(Debug)]
pub(super) struct Network<E> {
    /// Time at which each stage is free.
    stages: Vec<u64>,
    journeys: Vec<Option<Journey<E>>>,
    free: Vec<usize>,
    /// Arrivals: time, order, journey.
    arrivals: BinaryHeap<Reverse<(u64, u64, usize)>>,
    order: u64,
}

impl<E> Default for Network<E> {
    fn default() -> Self {
        Network {
            stages: Vec::new(),
            journeys: Vec::new(),
            free: Vec::new(),
            arrivals: BinaryHeap::new(),
            order: 0,
        }
    }
}

impl<E> Network<E> {
    /// Adds an idle stage. Returns its number.
    pub(super) fn add_stage(&mut self) -> usize {
        self.stages.push(0);
        self.stages.len() - 1
    }

    /// Sends a request on its way at time `at`. The event comes at the end.
    pub(super) fn send(&mut self, at: u64, hops: Hops, event: E) {
        let journey = Some(Journey { hops, next: 0, event });
        let place = match self.free.pop() {
            Some(place) => {
                self.journeys[place] = journey;
                place
            }
            None => {
                self.journeys.push(journey);
                self.journeys.len() - 1
            }
        };
        self.arrive(at, place);
    }

    /// Makes one stage work. The event comes at the end.
    pub(super) fn work(&mut self, at: u64, stage: usize, service: u64, event: E) {
        self.send(at, smallvec![Hop { stage, service, delay: 0 }], event);
    }

    fn arrive(&mut self, at: u64, place: usize) {
        self.order += 1;
        self.arrivals.push(Reverse((at, self.order, place)));
    }

    /// Returns the next event and its time; `None` if no request is on its way.
    pub(super) fn next(&mut self) -> Option<(u64, E)> {
        loop {
            let Reverse((at, _, place)) = self.arrivals.pop()?;
            let journey = self.journeys[place].as_mut()?;
            match journey.hops.get(journey.next) {
                Some(hop) => {
                    journey.next += 1;
                    let (delay, free_at) = (hop.delay, &mut self.stages[hop.stage]);
                    *free_at = at.max(*free_at) + hop.service;
                    let end = *free_at + delay;
                    self.arrive(end, place);
                }
                None => {
                    self.free.push(place);
                    return self.journeys[place].take().map(|journey| (at, journey.event));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_queue_at_a_stage_and_pass_in_parallel_elsewhere() {
        let mut network = Network::default();
        let (slow, fast) = (network.add_stage(), network.add_stage());
        let hop = |stage, service| Hop { stage, service, delay: 5 };
        network.send(0, smallvec![hop(slow, 100), hop(fast, 1)], 'a');
        network.send(10, smallvec![hop(slow, 100), hop(fast, 1)], 'b');
        network.send(20, smallvec![hop(fast, 1)], 'c');
        let events: Vec<(u64, char)> = std::iter::from_fn(|| network.next()).collect();
        assert_eq!(events, [(26, 'c'), (111, 'a'), (211, 'b')]);
    }
}
