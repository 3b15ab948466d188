//! Regions: alloc binds reserved chunks to addresses, init finds them, free gives them back.
//!
//! A region has an address range of its own in its namespace. Addresses are not used twice.
//! References are counted for each client and version.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::BTreeMap;

use pool::{ChunkId, ClientId, StoreId, turns};

use super::state::{Machine, Region, Use, Version};
use crate::{
    proto::{Answer, NamespaceId, PAGE_CHUNKS, RegionId, RegionInfo},
    refusal::Refusal,
};

impl Machine {
    /// Takes reserved chunks of a namespace, of all stores in turn.
    pub(super) fn pick(&mut self, id: NamespaceId, wanted: u64) -> Result<Vec<ChunkId>, Refusal> {
        let last = self.last_turn;
        let namespace = self.namespace(id)?;
        let reserved = namespace.reserved.len() as u64;
        if reserved < wanted {
            return Err(Refusal::NotReserved { wanted, reserved });
        }
        let mut of_stores: BTreeMap<StoreId, Vec<ChunkId>> = BTreeMap::new();
        for chunk in namespace.reserved.iter().rev() {
            of_stores.entry(chunk.store).or_default().push(*chunk);
        }
        let room: Vec<_> = of_stores.iter().map(|(store, chunks)| (*store, chunks.len() as u64)).collect();
        let order = turns(&room, last, wanted);
        let next = |store: &StoreId| of_stores.get_mut(store).and_then(Vec::pop);
        let chunks: Vec<ChunkId> = order.iter().filter_map(next).collect();
        chunks.iter().for_each(|chunk| _ = namespace.reserved.remove(chunk));
        self.last_turn = order.last().copied().or(last);
        Ok(chunks)
    }

    /// Gives chunks back to the reservation of a namespace, or to the pool if it was deleted.
    pub(super) fn give_back(&mut self, id: NamespaceId, chunks: impl IntoIterator<Item = ChunkId>) {
        for chunk in chunks {
            if !self.account.contains(chunk) {
                continue;
            }
            match self.namespaces.get_mut(&id) {
                Some(namespace) => {
                    namespace.reserved.insert(chunk);
                    self.account.set_use(chunk, Use::Reserved(id));
                }
                None => self.account.set_free(chunk),
            }
        }
    }

    pub(super) fn alloc(
        &mut self,
        client: ClientId,
        id: NamespaceId,
        bytes: u64,
        copy_on_write: bool,
    ) -> Result<Answer, Refusal> {
        let wanted = self.chunks_of(bytes)?;
        let chunk_bytes = self.settings.chunk_bytes;
        let address = self.namespace(id)?.next_address;
        let after = wanted.checked_mul(chunk_bytes).and_then(|length| address.checked_add(length));
        let after = after.ok_or(Refusal::InvalidSize(bytes))?;
        let chunks = self.pick(id, wanted)?;
        let newest = self.number();
        let region = RegionId { namespace: id, address };
        chunks.iter().for_each(|chunk| self.account.set_use(*chunk, Use::Bound(region)));
        let version = Version { chunks, references: BTreeMap::from([(client, 1)]) };
        let versions = BTreeMap::from([(newest, version)]);
        let namespace = self.namespace(id)?;
        namespace.next_address = after;
        namespace.regions.insert(address, Region { bytes, copy_on_write, newest, versions, lease: None });
        self.describe(region, newest)
    }

    pub(super) fn free(&mut self, client: ClientId, id: RegionId) -> Result<Answer, Refusal> {
        let region = self.region(id)?;
        let of = |client| region.versions.values().filter_map(move |v| v.references.get(client)).sum::<u64>();
        let own = of(&client);
        let all: u64 = region.versions.values().flat_map(|version| version.references.values()).sum();
        let writer = region.lease.as_ref().is_some_and(|lease| lease.client != client);
        if own == 0 {
            return Err(Refusal::NoReference);
        }
        if all > 1 || writer {
            return Err(Refusal::RegionInUse { references: all - 1 + u64::from(writer) });
        }
        let region = self.namespace(id.namespace)?.regions.remove(&id.address);
        if let Some(region) = region {
            let leased = region.lease.into_iter().flat_map(|lease| lease.chunks);
            let bound = region.versions.into_values().flat_map(|version| version.chunks);
            self.give_back(id.namespace, bound.chain(leased).collect::<Vec<_>>());
        }
        Ok(Answer::Done)
    }

    pub(super) fn init(
        &mut self,
        client: ClientId,
        namespace: NamespaceId,
        address: u64,
        bytes: u64,
    ) -> Result<Answer, Refusal> {
        let missing = Refusal::NoSuchRegion { address, bytes };
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(Refusal::InvalidSize(bytes))?;
        let regions = &mut self.namespace(namespace)?.regions;
        let (start, region) = regions.range_mut(..=address).next_back().ok_or(missing.clone())?;
        if region.bytes < end - start {
            return Err(missing);
        }
        let id = RegionId { namespace, address: *start };
        let newest = region.newest;
        let chunks = region.versions.get(&newest).map(|version| version.chunks.clone());
        self.check_held(&chunks.unwrap_or_default())?;
        self.add_reference(client, id, newest)?;
        self.describe(id, newest)
    }

    pub(super) fn add_reference(
        &mut self,
        client: ClientId,
        id: RegionId,
        version: u64,
    ) -> Result<(), Refusal> {
        let version = self.region(id)?.versions.get_mut(&version).ok_or(Refusal::NoReference)?;
        *version.references.entry(client).or_insert(0) += 1;
        Ok(())
    }

    /// Fails if a chunk was on a store that is lost.
    pub(super) fn check_held(&self, chunks: &[ChunkId]) -> Result<(), Refusal> {
        match chunks.iter().find(|chunk| !self.account.contains(**chunk)) {
            Some(chunk) => Err(Refusal::RegionLost(chunk.store)),
            None => Ok(()),
        }
    }

    /// Describes a version of a region, with its first places.
    pub(super) fn describe(&mut self, id: RegionId, version: u64) -> Result<Answer, Refusal> {
        let region = self.region(id)?;
        let (bytes, copy_on_write) = (region.bytes, region.copy_on_write);
        let chunks = region.versions.get(&version).map(|version| version.chunks.as_slice());
        let chunks: Vec<_> = chunks.unwrap_or_default().iter().take(PAGE_CHUNKS).copied().collect();
        let stores = self.addresses(&chunks);
        Ok(Answer::Region(RegionInfo { region: id, bytes, copy_on_write, version, chunks, stores }))
    }

    pub(super) fn places(
        &mut self,
        client: ClientId,
        id: RegionId,
        version: u64,
        from: u32,
    ) -> Result<Answer, Refusal> {
        let version = self.region(id)?.versions.get(&version);
        let version = version.filter(|version| version.references.contains_key(&client));
        let chunks = &version.ok_or(Refusal::NoReference)?.chunks;
        let outside = Refusal::InvalidChunks { first: from, count: 1 };
        let rest = chunks.get(from as usize..).filter(|rest| !rest.is_empty()).ok_or(outside)?;
        let chunks: Vec<_> = rest.iter().take(PAGE_CHUNKS).copied().collect();
        let stores = self.addresses(&chunks);
        Ok(Answer::Places(chunks, stores))
    }

    /// Returns the addresses of the stores of chunks.
    pub(super) fn addresses(&self, chunks: &[ChunkId]) -> Vec<(StoreId, String)> {
        let stores: std::collections::BTreeSet<_> = chunks.iter().map(|chunk| chunk.store).collect();
        let address = |id| Some((id, self.stores.get(&id)?.address.clone()));
        stores.into_iter().filter_map(address).collect()
    }
}
