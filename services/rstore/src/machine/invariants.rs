//! The invariants of the machine, checked from the whole state.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::BTreeMap;

use pool::ChunkId;

use super::state::{Machine, Presence, Use};
use crate::proto::RegionId;

impl Machine {
    /// Checks the invariants of [the module](super). A master checks the state that its log gives.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
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
        self.check_regions()
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
                    if let Some((client, _)) =
                        version.references.iter().find(|(id, n)| **n == 0 || !self.clients.contains_key(id))
                    {
                        return Err(format!("{client} has no valid reference to version {number}"));
                    }
                }
                if let Some(lease) = region.lease.as_ref().filter(|l| !self.clients.contains_key(&l.client)) {
                    return Err(format!("{} is gone and has a lease", lease.client));
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
