//! Reservations: free chunks go to a namespace at once, missing ones are prepared by stores.
//!
//! The chunks of a reservation that waits for stores belong to its namespace, but no region gets
//! them before all stores have answered. A reservation gets all chunks or none.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::{BTreeMap, BTreeSet};

use pool::{ChunkId, ClientId, Order, Outcome, StoreId};

use super::state::{Machine, Purpose, Reservation, Use};
use crate::{
    proto::{Answer, NamespaceId},
    refusal::Refusal,
};

/// Most chunks in one order, so that its outcome fits into a reply.
const MAX_ORDER: u32 = 2048;

impl Machine {
    /// Reserves chunks. `Ok(None)` if the reply comes with the outcome of the last order.
    pub(super) fn reserve(
        &mut self,
        call: u64,
        client: ClientId,
        namespace: NamespaceId,
        bytes: u64,
    ) -> Result<Option<Answer>, Refusal> {
        self.namespace(namespace)?;
        let wanted = self.chunks_of(bytes)?;
        let missing = wanted.saturating_sub(self.account.free());
        // Nothing is taken before it is certain that all can be had.
        let plan = self
            .account
            .plan(missing)
            .map_err(|shortage| Refusal::NotEnoughMemory { wanted: shortage.wanted, room: shortage.room })?;
        let chunks = self.account.take(wanted - missing, || Use::Reserved(namespace));
        if missing == 0 {
            self.namespace(namespace)?.reserved.extend(chunks);
            return Ok(Some(Answer::Done));
        }
        let number = self.number();
        let mut outstanding = 0;
        for (store, count) in plan {
            for first in (0..count).step_by(MAX_ORDER as usize) {
                let count = MAX_ORDER.min(count - first);
                let order = Order::Prepare { count, bytes: self.settings.chunk_bytes };
                self.order(store, order, Purpose::Reservation(number));
                outstanding += 1;
            }
        }
        let reservation = Reservation { call, client, namespace, chunks, outstanding, failure: None };
        self.reservations.insert(number, reservation);
        Ok(None)
    }

    /// Notes that a store has prepared chunks, or failed.
    pub(super) fn prepared(&mut self, number: u64, store: StoreId, count: u32, outcome: Outcome) {
        let mut failure = None;
        let mut chunks = Vec::new();
        match outcome {
            Outcome::Chunks(numbers) if self.are_new(store, &numbers, count) => {
                self.account.prepared(store, &numbers);
                chunks = numbers.into_iter().map(|number| ChunkId { store, number }).collect();
            }
            other => {
                self.account.unprepared(store, count);
                failure = Some(match other {
                    Outcome::Failed(error) => Refusal::StoreFailed { store, reason: error.to_string() },
                    Outcome::Chunks(_) => {
                        let reason = "it lists other chunks than were ordered".into();
                        Refusal::StoreFailed { store, reason }
                    }
                    Outcome::Done => Refusal::StoreLost(store),
                });
            }
        }
        let Some(reservation) = self.reservations.get_mut(&number) else { return };
        for chunk in chunks {
            self.account.set_use(chunk, Use::Reserved(reservation.namespace));
            reservation.chunks.push(chunk);
        }
        reservation.failure = reservation.failure.take().or(failure);
        reservation.outstanding -= 1;
        if reservation.outstanding == 0 {
            self.finish(number);
        }
    }

    /// Returns true if a store lists `count` chunks that the pool does not have.
    fn are_new(&self, store: StoreId, numbers: &[u32], count: u32) -> bool {
        let distinct: BTreeSet<u32> = numbers.iter().copied().collect();
        let is_known = |number: &u32| self.account.contains(ChunkId { store, number: *number });
        distinct.len() == count as usize && numbers.len() == distinct.len() && !numbers.iter().any(is_known)
    }

    fn finish(&mut self, number: u64) {
        let Some(reservation) = self.reservations.remove(&number) else { return };
        let namespace = self.namespaces.get_mut(&reservation.namespace);
        let deleted = namespace.is_none().then_some(Refusal::NamespaceDeleted);
        let answer = match (reservation.failure.or(deleted), namespace) {
            (None, Some(namespace)) => {
                // Chunks of a store that was lost meanwhile are in no account.
                let held = reservation.chunks.into_iter().filter(|chunk| self.account.contains(*chunk));
                namespace.reserved.extend(held);
                Answer::Done
            }
            (failure, _) => {
                reservation.chunks.into_iter().for_each(|chunk| self.account.set_free(chunk));
                Answer::Refused(failure.unwrap_or(Refusal::NamespaceDeleted))
            }
        };
        self.reply(reservation.call, Some(reservation.client), answer);
    }

    /// Returns reserved chunks to the pool. They stay prepared.
    pub(super) fn release(&mut self, id: NamespaceId, bytes: u64) -> Result<Answer, Refusal> {
        let wanted = self.chunks_of(bytes)?;
        for chunk in self.pick(id, wanted)? {
            self.account.set_free(chunk);
        }
        Ok(Answer::Done)
    }

    /// Lets stores discard free chunks beyond the limit of the cache.
    pub(super) fn shrink_cache(&mut self) {
        let surplus = self.account.free().saturating_sub(self.settings.cache_chunks);
        if surplus == 0 {
            return;
        }
        let mut of_stores: BTreeMap<StoreId, Vec<u32>> = BTreeMap::new();
        for chunk in self.account.withdraw(surplus) {
            of_stores.entry(chunk.store).or_default().push(chunk.number);
        }
        for (store, numbers) in of_stores {
            for part in numbers.chunks(MAX_ORDER as usize) {
                self.order(store, Order::Discard(part.to_vec()), Purpose::Discard(part.len() as u32));
            }
        }
    }
}
