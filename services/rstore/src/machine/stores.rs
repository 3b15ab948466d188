//! Stores: they register, get orders, vanish and come back.
//!
//! A store that the master cannot reach keeps its chunks for the grace time. A reservation that
//! waits for it fails at once, and the other orders wait. A store that comes back in the same run
//! has its chunks; chunks that it prepared for a failed reservation become free.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::BTreeSet;

use pool::{ChunkId, Order, Outcome, StoreId};

use super::{
    io::Output,
    state::{LinkState, Machine, PendingOrder, Purpose, StoreState},
};
use crate::{
    proto::{Answer, StoreCard},
    refusal::Refusal,
};

impl Machine {
    pub(super) fn register(&mut self, call: u64, card: StoreCard) {
        let answer = match self.enter_store(&card) {
            Ok((store, link)) => {
                let StoreCard { address, incarnation, .. } = card;
                self.outputs.push(Output::Connect { store, link, address, incarnation });
                Answer::Registered(store)
            }
            Err(refusal) => Answer::Refused(refusal),
        };
        self.reply(call, None, answer);
    }

    fn enter_store(&mut self, card: &StoreCard) -> Result<(StoreId, u64), Refusal> {
        let capacity = card.capacity / self.settings.chunk_bytes;
        if capacity == 0 {
            let reason = format!("it lends {} bytes, less than a chunk", card.capacity);
            return Err(Refusal::InvalidStore(reason));
        }
        if card.address.is_empty() || card.address.len() > 512 {
            return Err(Refusal::InvalidStore("its address has 1 to 512 bytes".into()));
        }
        // A new run at the address ends the run before, but never a store that still runs.
        let is_former =
            |state: &StoreState| state.address == card.address && state.incarnation != card.incarnation;
        let former: Vec<_> =
            self.stores.iter().filter(|(_, state)| is_former(state)).map(|(id, _)| *id).collect();
        if let Some(store) = former.iter().find(|store| self.stores[*store].state == LinkState::Up) {
            let reason = format!("{store} is up at {}: give each store an address of its own", card.address);
            return Err(Refusal::InvalidStore(reason));
        }
        former.into_iter().for_each(|store| self.lose_store(store));
        let known = self.stores.iter().find(|(_, state)| state.incarnation == card.incarnation);
        let (store, is_own) = match known.map(|(id, state)| (*id, state.is_own)) {
            Some((store, is_own)) => {
                self.store_gone(store);
                (store, is_own)
            }
            None => (StoreId(self.last_store.checked_add(1).ok_or(Refusal::TooManyStores)?), false),
        };
        self.last_store = self.last_store.max(store.0);
        let (address, incarnation) = (card.address.clone(), card.incarnation);
        let (state, link) = (LinkState::Down(self.now), self.number());
        self.stores.insert(store, StoreState { address, incarnation, capacity, state, link, is_own });
        // No room until it is ready.
        self.account.add_store(store, 0);
        Ok((store, link))
    }

    /// Notes that the master can give orders to a store. Orders that waited for it go out.
    pub(super) fn store_ready(&mut self, store: StoreId, link: u64, chunks: &[u32]) {
        let Some(state) = self.stores.get_mut(&store).filter(|state| state.link == link) else { return };
        let (capacity, listed) = (state.capacity, chunks.iter().copied().collect::<BTreeSet<u32>>());
        if !state.is_own && !listed.is_empty() {
            // Chunks of another master, whose clients may use them.
            log::error!("{store}: {}", Refusal::StrangeChunks(listed.len() as u64));
            self.lose_store(store);
            return;
        }
        let held: BTreeSet<u32> = self
            .account
            .chunks()
            .filter(|(chunk, _)| chunk.store == store)
            .map(|(chunk, _)| chunk.number)
            .collect();
        if !held.is_subset(&listed) {
            log::error!("{store} has lost chunks in one run, and is not used any more");
            self.lose_store(store);
            return;
        }
        (state.state, state.is_own) = (LinkState::Up, true);
        self.account.add_store(store, capacity);
        let waiting = self.orders_of(store);
        let discarded: BTreeSet<u32> = waiting
            .iter()
            .filter_map(
                |(_, order)| if let Order::Discard(numbers) = &order.order { Some(numbers) } else { None },
            )
            .flatten()
            .copied()
            .collect();
        let extra: Vec<u32> = listed
            .into_iter()
            .filter(|number| !held.contains(number) && !discarded.contains(number))
            .collect();
        self.account.enter(store, &extra);
        for (number, PendingOrder { order, .. }) in waiting {
            self.outputs.push(Output::Order { store, number, order });
        }
    }

    /// Notes that the link to a store has failed. The store registers again, and gets another link.
    pub(super) fn link_lost(&mut self, store: StoreId, link: u64) {
        if self.stores.get(&store).is_some_and(|state| state.link == link) {
            self.store_gone(store);
            self.outputs.push(Output::Disconnect(store));
        }
    }

    /// Notes that the master cannot give orders to a store for now.
    pub(super) fn store_gone(&mut self, store: StoreId) {
        let now = self.now;
        let Some(state) = self.stores.get_mut(&store) else { return };
        if state.state == LinkState::Up {
            state.state = LinkState::Down(now);
        }
        self.account.add_store(store, 0);
        // Reservations do not wait for a store that may never come back.
        for (number, order) in self.orders_of(store) {
            if matches!(order.purpose, Purpose::Reservation(_)) {
                self.orders.remove(&number);
                self.settle(order, Outcome::Done);
            }
        }
    }

    /// Takes all stores for vanished and all clients for disconnected. They have to come back
    /// within the grace time.
    pub(super) fn restart(&mut self) {
        let stores: Vec<_> = self.stores.keys().copied().collect();
        for store in stores {
            self.store_gone(store);
            if let Some(state) = self.stores.get_mut(&store) {
                state.state = LinkState::Down(self.now);
            }
        }
        let clients: Vec<_> = self.clients.keys().copied().collect();
        clients.into_iter().for_each(|client| self.client_gone(client));
    }

    /// Returns the stores that were down for at least `grace` milliseconds.
    pub(super) fn lost_stores(&self, now: u64, grace: u64) -> impl Iterator<Item = StoreId> {
        let is_lost = move |state: &StoreState| matches!(state.state, LinkState::Down(since) if now.saturating_sub(since) >= grace);
        self.stores.iter().filter(move |(_, state)| is_lost(state)).map(|(id, _)| *id)
    }

    pub(super) fn lose_stores(&mut self) {
        let lost: Vec<_> = self.lost_stores(self.now, self.settings.grace_millis).collect();
        lost.into_iter().for_each(|store| self.lose_store(store));
    }

    /// Gives a store up, with its chunks. Regions that had some stay until they are freed.
    fn lose_store(&mut self, store: StoreId) {
        if self.stores.remove(&store).is_none() {
            return;
        }
        self.outputs.push(Output::Disconnect(store));
        for (number, order) in self.orders_of(store) {
            self.orders.remove(&number);
            self.settle(order, Outcome::Done);
        }
        self.account.remove_store(store);
        let is_here = |chunk: &ChunkId| chunk.store == store;
        for namespace in self.namespaces.values_mut() {
            namespace.reserved.retain(|chunk| !is_here(chunk));
        }
        self.reservations.values_mut().for_each(|waiting| waiting.chunks.retain(|chunk| !is_here(chunk)));
        self.fences.values_mut().for_each(|fence| fence.chunks.retain(|chunk| !is_here(chunk)));
    }

    fn orders_of(&self, store: StoreId) -> Vec<(u64, PendingOrder)> {
        let of_store = self.orders.iter().filter(|(_, order)| order.store == store);
        of_store.map(|(number, order)| (*number, order.clone())).collect()
    }

    /// Notes the answer of a store.
    pub(super) fn order_done(&mut self, link: u64, number: u64, outcome: Outcome) {
        // An order of a store that vanished was settled then.
        let Some(order) = self.orders.get(&number) else { return };
        // The next link gives the order again.
        if self.stores.get(&order.store).is_some_and(|state| state.link == link)
            && let Some(order) = self.orders.remove(&number)
        {
            self.settle(order, outcome);
        }
    }

    /// Applies an outcome. A store that is lost has the outcome `Done`: nothing reaches it any
    /// more.
    fn settle(&mut self, order: PendingOrder, outcome: Outcome) {
        let PendingOrder { store, order, purpose } = order;
        match purpose {
            Purpose::Reservation(number) => {
                let count = if let Order::Prepare { count, .. } = order { count } else { 0 };
                self.prepared(number, store, count, outcome);
            }
            Purpose::Discard(count) => self.account.unprepared(store, count),
            Purpose::Mark => {}
            Purpose::EndClient(client) => self.finish_client(client, Some(store)),
            Purpose::EndLease(number) => self.finish_fence(number, Some(store)),
        }
    }
}
