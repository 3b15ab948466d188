//! A card: the way of a work request through it and through the peer's card.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use smallvec::smallvec;

use super::{
    constants::Constants,
    network::{Hop, Hops, Network},
};

/// Longest payload that travels inside its work request, in bytes: the default of rdmabox.
const MAX_INLINE: usize = 220;

/// Bytes of a work request on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire {
    /// To the peer: WRITE and SEND.
    Out(usize),
    /// From the peer: READ. The request itself has no payload.
    In,
}

/// The stages of a card.
#[derive(Debug)]
pub(super) struct Card {
    units: Vec<usize>,
    requester: usize,
    responder: usize,
    wire_out: usize,
    wire_in: usize,
    /// Work requests on the card.
    in_flight: u64,
}

impl Card {
    pub(super) fn new<E>(network: &mut Network<E>, constants: &Constants) -> Card {
        let mut stage = || network.add_stage();
        Card {
            units: (0..constants.units).map(|_| stage()).collect(),
            requester: stage(),
            responder: stage(),
            wire_out: stage(),
            wire_in: stage(),
            in_flight: 0,
        }
    }

    /// Returns the way of a work request of queue pair `number` to the memory of a peer.
    pub(super) fn request(&mut self, peer: &Card, number: usize, wire: Wire, constants: &Constants) -> Hops {
        self.in_flight += 1;
        let (payload, is_read) = match wire {
            Wire::Out(bytes) => (bytes, false),
            Wire::In => (0, true),
        };
        // The card reads a payload that is not in the work request.
        let read = if payload > MAX_INLINE && !is_read { constants.fetch } else { 0 };
        let miss = self.expected_miss(constants);
        let hop = |stage, service, delay| Hop { stage, service, delay };
        let link = constants.occupancy(payload);
        smallvec![
            hop(self.requester, constants.doorbell, 0),
            hop(self.units[number % self.units.len()], constants.unit + miss, 0),
            hop(self.requester, constants.requester + miss, read),
            hop(self.wire_out, link, constants.latency),
            hop(peer.wire_in, link, 0),
            hop(peer.responder, constants.responder, 0),
        ]
    }

    /// Returns the way of a completion, with the bytes that a READ fetched.
    pub(super) fn completion(&mut self, peer: &Card, bytes: usize, constants: &Constants) -> Hops {
        self.acknowledged();
        let link = constants.occupancy(bytes);
        smallvec![
            Hop { stage: peer.wire_out, service: link, delay: constants.latency },
            Hop { stage: self.wire_in, service: link, delay: constants.completion },
        ]
    }

    /// Ends a work request for whose completion no thread waits.
    pub(super) fn acknowledged(&mut self) {
        self.in_flight -= 1;
    }

    /// Returns the mean time for work requests that are not in the cache of the card.
    fn expected_miss(&self, constants: &Constants) -> u64 {
        let beyond = self.in_flight.saturating_sub(constants.cache_entries);
        constants.cache_miss * beyond / self.in_flight.max(1)
    }
}
