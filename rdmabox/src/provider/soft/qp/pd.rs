//! Protection domains, their regions, and the memory that they share with peers of this host.
//!
//! # Concurrency
//! Any thread may use it. `sharing` is held while handles and fences are sent.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Weak, atomic::Ordering},
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::soft_qp::{SoftQp, SoftQpInit};
use crate::{
    mapping::Memory,
    provider::soft::{
        completion::SoftCq,
        device_state::DeviceState,
        limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE, limit},
        memory::{OwnTable, PeerMappings, Region, Regions},
        wire::{FLAG_PLACED, Header, Opcode},
    },
    verbs::{
        Access, MemoryRegion, MrHandle, Progress, ProtectionDomain, QpInit, QueuePair, VerbsError, own_cq,
    },
};

/// Memory whose handle peers of this host have or will get.
#[derive(Debug)]
struct SharedMemory {
    id: u64,
    memory: Weak<Memory>,
    writable: bool,
    /// Number of its regions that peers may name.
    regions: usize,
}

#[derive(Debug, Default)]
struct Sharing {
    table: Option<OwnTable>,
    memories: HashMap<u64, SharedMemory>,
    next_id: u64,
    peers: Vec<Weak<SoftQp>>,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct SoftPd {
    me: Weak<SoftPd>,
    device: Arc<DeviceState<SoftQp>>,
    regions: Regions,
    sharing: Mutex<Sharing>,
    /// Queue pairs of this domain, for the end of requests that use a revoked region.
    queue_pairs: Mutex<Vec<Weak<SoftQp>>>,
    peer_mappings: Arc<PeerMappings>,
}

impl SoftPd {
    pub(crate) fn new(device: Arc<DeviceState<SoftQp>>) -> Arc<SoftPd> {
        Arc::new_cyclic(|me| SoftPd {
            me: me.clone(),
            device,
            regions: Regions::default(),
            sharing: Mutex::default(),
            queue_pairs: Mutex::default(),
            peer_mappings: Arc::default(),
        })
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn peer_mappings(&self) -> &Arc<PeerMappings> {
        &self.peer_mappings
    }

    /// Returns the descriptor and length of the region table, for a peer that can map it.
    pub(crate) fn table_for_peer(&self, unix: bool) -> Result<Option<(OwnedFd, usize)>, VerbsError> {
        if !unix {
            return Ok(None);
        }
        let mut sharing = self.sharing.lock();
        let table = sharing.table()?;
        let fd = table.memory().peer_fd(false).map_err(memory_error)?;
        Ok(Some((fd, table.memory().len())))
    }

    /// Sends a newly connected peer every existing memory handle, and registers it for later
    /// handles.
    pub(crate) fn share_with(&self, qp: &Weak<SoftQp>) {
        let Some(strong) = qp.upgrade() else { return };
        if let Some(tether) = self.device.tether.get() {
            // The peer receives descriptors in order, so it has the tether before any memory.
            match (tether.0)(strong.connected_process()) {
                Ok(fd) => strong.send_descriptor(&Header::new(Opcode::Tether, 0), fd),
                Err(e) => {
                    log::error!("creating the tether failed, the peer gets no memory: {e}");
                    return;
                }
            }
        }
        let mut sharing = self.sharing.lock();
        for entry in sharing.memories.values() {
            if let Some(memory) = entry.memory.upgrade() {
                announce(&strong, &memory, entry.id, entry.writable);
            }
        }
        sharing.peers.retain(|peer| peer.strong_count() > 0);
        sharing.peers.push(qp.clone());
    }

    /// Makes a region visible to the peers of this host.
    fn publish(&self, region: &Region, memory: &Arc<Memory>) -> Result<(), VerbsError> {
        let writable = region.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let mut sharing = self.sharing.lock();
        sharing.table()?;
        sharing.memories.retain(|_, entry| entry.memory.strong_count() > 0);
        let (id, news) = match sharing.of(memory) {
            Some(entry) => {
                let news = writable && !entry.writable;
                entry.writable |= writable;
                entry.regions += 1;
                (entry.id, news)
            }
            None => {
                let id = sharing.next_id;
                sharing.next_id += 1;
                let entry = SharedMemory { id, memory: Arc::downgrade(memory), writable, regions: 1 };
                sharing.memories.insert(id, entry);
                (id, true)
            }
        };
        if let Some(table) = &sharing.table {
            table.publish(region, id, region.addr - memory.addr());
        }
        if news {
            sharing.peers().for_each(|peer| announce(&peer, memory, id, writable));
        }
        Ok(())
    }

    fn deregister(&self, region: &Region) {
        // The table entry goes first, because the index may be reused as soon as it is free.
        if region.access.intersects(Access::REMOTE_ANY) {
            let mut sharing = self.sharing.lock();
            if let Some(table) = &sharing.table {
                table.revoke(region);
            }
            if let Some(id) = region.memory.as_ref().and_then(|memory| sharing.release(memory)) {
                // Peers would keep their mapping of the memory, and a place in their limited list.
                sharing.peers().for_each(|peer| peer.fence(Some(id)));
            }
        }
        self.regions.remove(region.key);
    }

    /// Ends the requests of peers that use a deregistered region. Peers that still map the memory
    /// `id`, because other regions need it, are asked to finish. The others have been asked when
    /// the memory was released.
    fn end_uses(&self, region: &Arc<Region>, id: Option<u64>) {
        let sharing = self.sharing.lock();
        if id.is_some_and(|id| sharing.memories.contains_key(&id)) {
            sharing.peers().for_each(|peer| peer.fence(None));
        }
        drop(sharing);
        let queue_pairs: Vec<_> = self.queue_pairs.lock().iter().filter_map(Weak::upgrade).collect();
        queue_pairs.iter().for_each(|qp| qp.end_use_of(region));
    }

    fn add(
        &self,
        addr: u64,
        length: u64,
        access: Access,
        memory: Option<&Arc<Memory>>,
    ) -> Result<MrHandle, VerbsError> {
        let limit = Regions::limit(access) as u64;
        let too_many = VerbsError::Limit { what: "number of memory regions", asked: limit + 1, limit };
        let region = self.regions.insert(addr, length, access, memory.cloned()).ok_or(too_many)?;
        // This handle deregisters the region if a later step fails. The upgrade cannot fail,
        // because `self` is borrowed.
        let Some(pd) = self.me.upgrade() else { return Err(VerbsError::Foreign("the protection domain")) };
        let handle = SoftMr { region, pd };
        if let Some(memory) = memory
            && access.intersects(Access::REMOTE_ANY)
            && memory.fd().is_some()
        {
            self.publish(&handle.region, memory)?;
        }
        Ok(Arc::new(handle))
    }
}

impl Sharing {
    fn table(&mut self) -> Result<&OwnTable, VerbsError> {
        if self.table.is_none() {
            self.table = Some(OwnTable::new().map_err(memory_error)?);
        }
        self.table.as_ref().ok_or(VerbsError::PeerGone)
    }

    /// Returns the entry of a memory.
    fn of(&mut self, memory: &Arc<Memory>) -> Option<&mut SharedMemory> {
        self.memories.values_mut().find(|entry| std::ptr::eq(entry.memory.as_ptr(), Arc::as_ptr(memory)))
    }

    fn peers(&self) -> impl Iterator<Item = Arc<SoftQp>> {
        self.peers.iter().filter_map(Weak::upgrade)
    }

    /// Counts a region less. Returns the number of the memory if that was its last region. Later
    /// peers do not get the memory.
    fn release(&mut self, memory: &Arc<Memory>) -> Option<u64> {
        let entry = self.of(memory)?;
        entry.regions -= 1;
        let id = (entry.regions == 0).then_some(entry.id)?;
        self.memories.remove(&id);
        Some(id)
    }
}

fn memory_error(e: crate::mapping::MemoryError) -> VerbsError {
    match e {
        crate::mapping::MemoryError::Os { what, source } => VerbsError::Os { what, source },
        other => VerbsError::os("memory", std::io::Error::other(other.to_string())),
    }
}

fn announce(qp: &SoftQp, memory: &Memory, id: u64, writable: bool) {
    let mut header = Header::new(Opcode::Memory, 0);
    header.flags = if writable { FLAG_PLACED } else { 0 };
    header.arg0 = (memory.len() as u64).into();
    header.arg1 = id.into();
    match memory.peer_fd(writable) {
        Ok(fd) => qp.send_descriptor(&header, fd),
        Err(e) => log::error!("cannot pass memory to a peer, its requests will fail: {e}"),
    }
}

impl crate::verbs::Sealed for SoftPd {}

impl ProtectionDomain for SoftPd {
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        let size = memory.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(VerbsError::Range { offset, length, size });
        }
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !memory.is_writable() {
            return Err(VerbsError::NotShareable { access, why: "the mapping is read-only" });
        }
        self.add(memory.addr() + offset, length, access, Some(memory))
    }

    unsafe fn register_borrowed(
        &self,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        if access.intersects(Access::REMOTE_ANY) {
            return Err(VerbsError::NotShareable { access, why: "borrowed memory is for local use only" });
        }
        self.add(addr, length, access, None)
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Ok(self.create_soft_qp(init)?)
    }
}

impl SoftPd {
    pub(crate) fn create_soft_qp(&self, init: QpInit) -> Result<Arc<SoftQp>, VerbsError> {
        let send_cq = own_cq::<SoftCq<SoftQp>>(init.send_cq)?;
        let recv_cq = own_cq::<SoftCq<SoftQp>>(init.recv_cq)?;
        let caps = init.caps;
        limit("send queue depth", caps.max_send_wr.into(), MAX_QP_WR.into())?;
        limit("receive queue depth", caps.max_recv_wr.into(), MAX_QP_WR.into())?;
        limit("send scatter/gather elements", caps.max_send_sge.into(), MAX_SGE.into())?;
        limit("receive scatter/gather elements", caps.max_recv_sge.into(), MAX_SGE.into())?;
        limit("inline data", caps.max_inline_data.into(), MAX_INLINE.into())?;
        let mut sets = SmallVec::new();
        match init.progress {
            Progress::Engine => sets.push(self.device.engine_set()?),
            Progress::Caller => {
                sets.push(Arc::clone(send_cq.set()));
                if !Arc::ptr_eq(&send_cq, &recv_cq) {
                    sets.push(Arc::clone(recv_cq.set()));
                }
            }
        }
        let num = self.device.next_qp.fetch_add(1, Ordering::Relaxed);
        let pd = self.me.upgrade().ok_or(VerbsError::Foreign("the protection domain"))?;
        let qp = SoftQp::new(SoftQpInit { num, caps, pd, send_cq, recv_cq, sets, maps: init.maps });
        let mut queue_pairs = self.queue_pairs.lock();
        queue_pairs.retain(|qp| qp.strong_count() > 0);
        queue_pairs.push(Arc::downgrade(&qp));
        Ok(qp)
    }
}

/// A registered region. The drop deregisters it.
#[derive(Debug)]
struct SoftMr {
    region: Arc<Region>,
    pd: Arc<SoftPd>,
}

impl crate::verbs::Sealed for SoftMr {}

impl MemoryRegion for SoftMr {
    fn addr(&self) -> u64 {
        self.region.addr
    }

    fn length(&self) -> u64 {
        self.region.length
    }

    fn lkey(&self) -> u32 {
        self.region.key
    }

    fn rkey(&self) -> u32 {
        self.region.key
    }

    fn access(&self) -> Access {
        self.region.access
    }

    fn revoke(self: Arc<Self>) -> bool {
        let (region, pd) = (Arc::clone(&self.region), Arc::clone(&self.pd));
        let id = region.memory.as_ref().and_then(|memory| pd.sharing.lock().of(memory).map(|entry| entry.id));
        drop(self);
        pd.end_uses(&region, id);
        true
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        self.pd.deregister(&self.region);
    }
}
