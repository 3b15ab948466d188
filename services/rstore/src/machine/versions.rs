//! Versions of copy-on-write regions: leases, commits, and the end of old versions.
//!
//! A writer leases chunks, writes them, and commits. The commit makes a version that has the leased
//! chunks in place of old ones, whose marks then get its number. A mark above the number of a
//! reader's version says that there is a newer one. Versions are numbered across all regions, so a
//! mark that is left in a reused chunk says nothing to readers of its new version.
//!
//! A lease ends with its time or its client. Its chunks get no other use until the client cannot
//! reach them.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::{BTreeMap, BTreeSet};

use pool::{ChunkId, ClientId, Order, StoreId};

use super::state::{Lease, LeaseFence, Machine, Purpose, Use, Version};
use crate::{
    proto::{Answer, LeaseInfo, PAGE_CHUNKS, RegionId},
    refusal::Refusal,
};

impl Machine {
    pub(super) fn lease(
        &mut self,
        client: ClientId,
        id: RegionId,
        first: u32,
        count: u32,
    ) -> Result<Answer, Refusal> {
        self.expire_leases();
        let region = self.region(id)?;
        if !region.copy_on_write {
            return Err(Refusal::NotCopyOnWrite);
        }
        if !region.versions.values().any(|version| version.references.contains_key(&client)) {
            return Err(Refusal::NoReference);
        }
        if let Some(lease) = &region.lease {
            return Err(Refusal::WriterExists(lease.client));
        }
        let length = region.versions.get(&region.newest).map_or(0, |version| version.chunks.len()) as u64;
        let is_inside = u64::from(first) + u64::from(count) <= length;
        if count == 0 || count as usize > PAGE_CHUNKS || !is_inside {
            return Err(Refusal::InvalidChunks { first, count });
        }
        let chunks = self.pick(id.namespace, u64::from(count))?;
        let number = self.number();
        chunks.iter().for_each(|chunk| self.account.set_use(*chunk, Use::Leased(id, number)));
        // A lease that ends with its call would have the epoch after its fence.
        let (stores, millis) = (self.addresses(&chunks), self.settings.lease_millis.max(1));
        let end = self.now.saturating_add(millis);
        self.region(id)?.lease = Some(Lease { number, client, first, chunks: chunks.clone(), end });
        Ok(Answer::Lease(LeaseInfo { lease: number, chunks, stores, millis }))
    }

    pub(super) fn commit(&mut self, client: ClientId, id: RegionId, number: u64) -> Result<Answer, Refusal> {
        self.expire_leases();
        let next = self.number();
        let region = self.region(id)?;
        let is_own = |lease: &&mut Lease| lease.number == number && lease.client == client;
        let lease = region.lease.as_mut().filter(is_own).ok_or(Refusal::LeaseExpired)?.clone();
        let newest = region.newest;
        let mut chunks = region.versions.get(&newest).map(|v| v.chunks.clone()).unwrap_or_default();
        let mut held = chunks.clone();
        held.splice(lease.first as usize..lease.first as usize + lease.chunks.len(), lease.chunks.clone());
        self.check_held(&held)?;
        let mut replaced = Vec::new();
        for (at, chunk) in (lease.first as usize..).zip(&lease.chunks) {
            replaced.push(std::mem::replace(&mut chunks[at], *chunk));
        }
        let region = self.region(id)?;
        region.lease = None;
        region.newest = next;
        region.versions.insert(next, Version { chunks, references: BTreeMap::from([(client, 1)]) });
        lease.chunks.iter().for_each(|chunk| self.account.set_use(*chunk, Use::Bound(id)));
        self.mark(&replaced, next);
        self.collect(id);
        self.describe(id, next)
    }

    pub(super) fn abort(&mut self, client: ClientId, id: RegionId, number: u64) -> Result<Answer, Refusal> {
        let region = self.region(id)?;
        let is_own = |lease: &mut Lease| lease.number == number && lease.client == client;
        let lease = region.lease.take_if(is_own).ok_or(Refusal::LeaseExpired)?;
        self.give_back(id.namespace, lease.chunks);
        Ok(Answer::Done)
    }

    pub(super) fn drop_reference(
        &mut self,
        client: ClientId,
        id: RegionId,
        version: u64,
    ) -> Result<Answer, Refusal> {
        if !self.remove_reference(client, id, version) {
            return Err(Refusal::NoReference);
        }
        self.collect(id);
        Ok(Answer::Done)
    }

    fn remove_reference(&mut self, client: ClientId, id: RegionId, version: u64) -> bool {
        let Ok(region) = self.region(id) else { return false };
        let Some(version) = region.versions.get_mut(&version) else { return false };
        let Some(count) = version.references.get_mut(&client) else { return false };
        *count -= 1;
        if *count == 0 {
            version.references.remove(&client);
        }
        true
    }

    /// Ends versions that are neither the newest nor referred to. Chunks that no version has any
    /// more go back to the reservation.
    pub(super) fn collect(&mut self, id: RegionId) {
        let Ok(region) = self.region(id) else { return };
        let newest = region.newest;
        let (kept, ended): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut region.versions)
            .into_iter()
            .partition(|(number, version)| *number == newest || !version.references.is_empty());
        region.versions = kept;
        let used: BTreeSet<ChunkId> =
            region.versions.values().flat_map(|version| version.chunks.iter().copied()).collect();
        let chunks: BTreeSet<_> = ended.into_values().flat_map(|version| version.chunks).collect();
        self.give_back(id.namespace, chunks.difference(&used).copied().collect::<Vec<_>>());
    }

    /// Marks chunks that a newer version has replaced.
    fn mark(&mut self, chunks: &[ChunkId], value: u64) {
        let mut of_stores: BTreeMap<StoreId, Vec<u32>> = BTreeMap::new();
        // A replaced chunk may have been lost with its store.
        for chunk in chunks.iter().filter(|chunk| self.account.contains(**chunk)) {
            of_stores.entry(chunk.store).or_default().push(chunk.number);
        }
        for (store, chunks) in of_stores {
            self.order(store, Order::Mark { chunks, value }, Purpose::Mark);
        }
    }

    /// Ends leases whose time is over, or whose client is lost.
    pub(super) fn expire_leases(&mut self) {
        let now = self.now;
        let mut ended = Vec::new();
        for (namespace, state) in &mut self.namespaces {
            for region in state.regions.values_mut() {
                let lease = region.lease.take_if(|lease| lease.end <= now);
                ended.extend(lease.map(|lease| (*namespace, lease)));
            }
        }
        for (namespace, lease) in ended {
            self.fence_lease(namespace, lease);
        }
    }

    fn fence_lease(&mut self, namespace: crate::proto::NamespaceId, lease: Lease) {
        let Some(client) = self.clients.get_mut(&lease.client) else {
            // No request of the client can reach a store any more.
            self.give_back(namespace, lease.chunks);
            return;
        };
        let epoch = client.epoch;
        client.epoch = client.epoch.saturating_add(1);
        let held = lease.chunks.into_iter().filter(|chunk| self.account.contains(*chunk));
        let chunks: Vec<ChunkId> = held.collect();
        chunks.iter().for_each(|chunk| self.account.set_use(*chunk, Use::Fenced(lease.number)));
        let stores: BTreeSet<_> = chunks.iter().map(|chunk| chunk.store).collect();
        for store in &stores {
            self.order(*store, Order::Fence { client: lease.client, epoch }, Purpose::EndLease(lease.number));
        }
        self.fences.insert(lease.number, LeaseFence { namespace, chunks, stores });
        self.finish_fence(lease.number, None);
    }

    /// Notes that a store has confirmed that the writer of an ended lease cannot reach it, or is
    /// lost.
    pub(super) fn finish_fence(&mut self, number: u64, store: Option<StoreId>) {
        let Some(fence) = self.fences.get_mut(&number) else { return };
        store.iter().for_each(|store| _ = fence.stores.remove(store));
        if fence.stores.is_empty()
            && let Some(fence) = self.fences.remove(&number)
        {
            self.give_back(fence.namespace, fence.chunks);
        }
    }
}
