//! The invariants of the machine, checked from the whole state.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::BTreeMap;

use pool::{ChunkId, ClientId, Order, StoreId};

use super::state::{Machine, PendingOrder, Presence, Purpose, Use};
use crate::proto::{NamespaceId, RegionId};

/// Limit of the numbers that the master gives: more than it gives in a thousand years.
const MAX_NUMBER: u64 = 1 << 62;
/// Limit of the references of one client to one version.
const MAX_REFERENCES: u64 = 1 << 32;

impl Machine {
    /// Checks the invariants of [the module](super). A master checks the state that its log gives.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.check_numbers()?;
        self.check_orders()?;
        self.check_uses()?;
        self.check_regions()
    }

    /// Checks that no number was given twice, and that there are numbers for a long time.
    fn check_numbers(&self) -> Result<(), String> {
        let regions = || self.namespaces.values().flat_map(|namespace| namespace.regions.values());
        let used = [
            self.clients.keys().map(|client| client.0).max(),
            self.namespaces.keys().map(|namespace| namespace.0).max(),
            self.reservations.keys().copied().max(),
            self.fences.keys().copied().max(),
            self.orders.keys().copied().max(),
            self.stores.values().map(|store| store.link).max(),
            regions().flat_map(|region| region.versions.keys().copied()).max(),
            regions().filter_map(|region| region.lease.as_ref()).map(|lease| lease.number).max(),
        ];
        let last = used.into_iter().flatten().max().unwrap_or(0);
        if last > self.last_number || self.last_number > MAX_NUMBER {
            return Err(format!("number {last} is used, and {} was the last", self.last_number));
        }
        let is_named = |(name, id): (&String, &NamespaceId)| {
            self.namespaces.get(id).is_some_and(|namespace| namespace.name == *name)
        };
        if self.names.len() != self.namespaces.len() || !self.names.iter().all(is_named) {
            return Err("the names are not those of the namespaces".into());
        }
        Ok(())
    }

    /// Checks that each order in the account and in the reservations is outstanding.
    fn check_orders(&self) -> Result<(), String> {
        let mut changing: BTreeMap<StoreId, u64> = BTreeMap::new();
        let mut outstanding: BTreeMap<u64, u64> = BTreeMap::new();
        for PendingOrder { store, order, purpose } in self.orders.values() {
            match (purpose, order) {
                (Purpose::Reservation(number), Order::Prepare { count, .. }) => {
                    *outstanding.entry(*number).or_default() += 1;
                    *changing.entry(*store).or_default() += u64::from(*count);
                }
                (Purpose::Discard(count), Order::Discard(numbers)) if *count as usize == numbers.len() => {
                    *changing.entry(*store).or_default() += u64::from(*count);
                }
                (Purpose::Mark, Order::Mark { .. }) => {}
                (Purpose::EndClient(_) | Purpose::EndLease(_), Order::Fence { .. }) => {}
                other => return Err(format!("an order has another purpose: {other:?}")),
            }
        }
        let waiting = self.reservations.iter().map(|(number, waiting)| (*number, waiting.outstanding));
        if !waiting.eq(outstanding) {
            return Err("the reservations wait for other orders than there are".into());
        }
        for (store, ..) in self.account.stores() {
            let (of_account, of_orders) =
                (self.account.changing(store), changing.remove(&store).unwrap_or(0));
            if of_account != of_orders {
                return Err(format!("{store} changes {of_orders} chunks, and its account has {of_account}"));
            }
        }
        match changing.is_empty() && self.account.is_consistent() {
            true => Ok(()),
            false => Err("the account has other chunks or stores than there are".into()),
        }
    }

    /// Checks that each chunk has the use that its owner says.
    fn check_uses(&self) -> Result<(), String> {
        let mut uses: BTreeMap<ChunkId, Use> = BTreeMap::new();
        let mut enter = |chunk: ChunkId, used: Use| {
            if !self.account.contains(chunk) {
                let reserved = matches!(used, Use::Reserved(_) | Use::Fenced(_));
                let known = self.stores.contains_key(&chunk.store);
                // Regions keep the numbers of chunks that are lost with their store.
                return if reserved || known {
                    Err(format!("{chunk} does not exist: {used:?}"))
                } else {
                    Ok(())
                };
            }
            match uses.insert(chunk, used) {
                Some(other) if other != used => Err(format!("{chunk} is {used:?} and {other:?}")),
                _ => Ok(()),
            }
        };
        for reservation in self.reservations.values() {
            for chunk in &reservation.chunks {
                enter(*chunk, Use::Reserved(reservation.namespace))?;
            }
        }
        for (number, fence) in &self.fences {
            fence.chunks.iter().try_for_each(|chunk| enter(*chunk, Use::Fenced(*number)))?;
        }
        for (namespace, state) in &self.namespaces {
            state.reserved.iter().try_for_each(|chunk| enter(*chunk, Use::Reserved(*namespace)))?;
            for (address, region) in &state.regions {
                let id = RegionId { namespace: *namespace, address: *address };
                for chunk in region.versions.values().flat_map(|version| &version.chunks) {
                    enter(*chunk, Use::Bound(id))?;
                }
                if let Some(lease) = &region.lease {
                    lease.chunks.iter().try_for_each(|chunk| enter(*chunk, Use::Leased(id, lease.number)))?;
                }
            }
        }
        for (chunk, used) in self.account.chunks() {
            if used.copied() != uses.get(&chunk).copied() {
                return Err(format!("{chunk} is {used:?}, and its owner says {:?}", uses.get(&chunk)));
            }
        }
        Ok(())
    }

    fn check_regions(&self) -> Result<(), String> {
        for namespace in self.namespaces.values() {
            for (address, region) in &namespace.regions {
                let chunks = region.bytes.div_ceil(self.settings.chunk_bytes);
                if !region.versions.contains_key(&region.newest) {
                    return Err(format!("the region at {address:#x} has no version {}", region.newest));
                }
                for (number, version) in &region.versions {
                    if version.chunks.len() as u64 != chunks {
                        return Err(format!("version {number} has {} chunks", version.chunks.len()));
                    }
                    if version.references.is_empty() && *number != region.newest {
                        return Err(format!("version {number} is old and has no reference"));
                    }
                    let is_wrong = |(id, count): &(&ClientId, &u64)| {
                        **count == 0 || **count > MAX_REFERENCES || !self.clients.contains_key(id)
                    };
                    if let Some((client, _)) = version.references.iter().find(is_wrong) {
                        return Err(format!("{client} has no valid reference to version {number}"));
                    }
                }
                if let Some(lease) = &region.lease {
                    if !self.clients.contains_key(&lease.client) {
                        return Err(format!("{} is gone and has a lease", lease.client));
                    }
                    if u64::from(lease.first) + lease.chunks.len() as u64 > chunks {
                        return Err(format!("lease {} is not in its region", lease.number));
                    }
                }
            }
        }
        let empty = |presence: &Presence| matches!(presence, Presence::Ending(stores) if stores.is_empty());
        match self.clients.iter().find(|(_, state)| empty(&state.presence)) {
            Some((client, _)) => Err(format!("{client} has ended and is kept")),
            None => Ok(()),
        }
    }
}
