//! A card that the sessions of a program share.
//!
//! # Concurrency
//! Any thread. `card` is a leaf lock, held for the events since the last call.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use super::{
    card::{Card, CardCounters, CardRequest, QpKey, copy_ns, registration_ns, threshold},
    clock::{Clock, Timing},
    parameters::CardParameters,
};

/// A modelled card of this program. Sessions with the same card share its queues and caches
/// ([`SessionOptions::card`](crate::SessionOptions::card)). Each host that they connect to has a
/// card of its own with the same constants.
///
/// ```
/// use rdmabox::{MemoryServer, Session, provider::model::{CardParameters, ModelledCard, Timing}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let card = ModelledCard::new(CardParameters::open("cx3")?, Timing::Counts);
/// let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
/// let session = Session::builder().card(card.clone()).connect(&host.addresses()[0])?;
/// let memory = MemoryServer::locate(&session)?;
/// let before = card.counters();
/// session.write(memory.for_write(0, 5)?, b"hello")?;
/// assert_eq!(card.counters().doorbells - before.doorbells, 1);
/// # Ok(())
/// # }
/// ```
pub struct ModelledCard {
    parameters: CardParameters,
    pub(super) clock: Clock,
    card: Mutex<Card>,
}

impl fmt::Debug for ModelledCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelledCard").field("name", &self.parameters.name()).finish_non_exhaustive()
    }
}

impl ModelledCard {
    /// Creates an idle card.
    pub fn new(parameters: CardParameters, timing: Timing) -> Arc<ModelledCard> {
        let clock = Clock::new(timing, parameters.values.host.processors);
        let card = Mutex::new(Card::new(parameters.values.clone()));
        Arc::new(ModelledCard { parameters, clock, card })
    }

    /// Returns the constants of the card.
    pub fn parameters(&self) -> &CardParameters {
        &self.parameters
    }

    /// Returns how the card treats time.
    pub fn timing(&self) -> Timing {
        self.clock.timing()
    }

    /// Returns the counters of the card.
    pub fn counters(&self) -> CardCounters {
        CardCounters { busy_ns: self.clock.worked(), ..self.advanced().counters }
    }

    /// Makes the calling thread work for `cost` of model time, as a program that has its own work
    /// does. Returns at once with [`Timing::Counts`].
    pub fn spend(&self, cost: Duration) {
        self.clock.spend(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the work of a program for one request (`host.request_ns`).
    pub fn request_cost(&self) -> Duration {
        Duration::from_nanos(self.parameters.values.host.request_ns)
    }

    /// Returns the threshold between preMR and dynMR that the card's constants give.
    pub(crate) fn pre_mr_threshold(&self) -> u64 {
        threshold(&self.parameters.values)
    }

    /// Returns the card, without the events that are due.
    pub(super) fn card(&self) -> MutexGuard<'_, Card> {
        self.card.lock()
    }

    /// Returns the card as it is now.
    pub(super) fn advanced(&self) -> MutexGuard<'_, Card> {
        let now = self.clock.now();
        let mut card = self.card.lock();
        card.advance(now);
        card
    }

    /// Passes a list to the card. Without time the card processes it at once, so that counts do not
    /// depend on polling.
    pub(super) fn posted(&self, at: u64, qp: QpKey, list: &[CardRequest]) {
        let mut card = self.card.lock();
        card.post(at, qp, list);
        if self.clock.timing() == Timing::Counts {
            card.advance(u64::MAX);
        }
    }

    /// Counts a copy of `bytes`, and makes the calling thread work for it.
    pub(super) fn copied(&self, bytes: u64) {
        let mut card = self.card.lock();
        card.counters.copies += 1;
        card.counters.copied_bytes += bytes;
        drop(card);
        self.clock.spend(copy_ns(&self.parameters.values, bytes));
    }

    /// Counts a registration of `bytes`, and makes the calling thread work for it and for its
    /// deregistration.
    pub(super) fn registered(&self, bytes: u64) {
        self.card.lock().counters.registrations += 1;
        self.clock.spend(registration_ns(&self.parameters.values, bytes));
    }
}
