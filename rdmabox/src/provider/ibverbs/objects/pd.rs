//! Protection domains and memory regions.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys::ibv_access_flags as bits;
use parking_lot::RwLock;

use super::{core_state::Core, cq::IbvCq, qp::IbvQp};
use crate::{
    mapping::{Memory, Pin},
    provider::ibverbs::raw::{RawMr, RawPd},
    verbs::{
        Access, CompletionQueue, MemoryRegion, MrHandle, ProtectionDomain, QpInit, QueuePair, Sge,
        VerbsError, own_cq,
    },
};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct IbvPd {
    me: Weak<IbvPd>,
    raw: Arc<RawPd>,
    /// Regions that local requests may write to, by local key: first byte and length.
    writable: RwLock<HashMap<u32, (u64, u64)>>,
    /// True if a queue pair could not be stopped, so that the device may still write to regions of
    /// this domain.
    is_stuck: AtomicBool,
    core: Arc<Core>,
}

impl IbvPd {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Arc<IbvPd>, VerbsError> {
        let raw = RawPd::new(core.opened()).map_err(|e| VerbsError::os("ibv_alloc_pd", e))?;
        let (raw, core) = (Arc::new(raw), Arc::clone(core));
        Ok(Arc::new_cyclic(|me| IbvPd {
            me: Weak::clone(me),
            raw,
            writable: RwLock::default(),
            is_stuck: AtomicBool::new(false),
            core,
        }))
    }

    pub(crate) fn raw(&self) -> &Arc<RawPd> {
        &self.raw
    }

    /// Records that a queue pair could not be stopped. The memory of regions that are dropped from
    /// then on is leaked.
    pub(crate) fn set_stuck(&self) {
        self.is_stuck.store(true, Ordering::Release);
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Registers a range of memory at the device. Fails if it is longer than the device permits.
    /// The device does not learn of an empty range.
    ///
    /// # Safety
    /// The range stays mapped until the handle is dropped.
    unsafe fn add(
        &self,
        addr: u64,
        length: u64,
        access: Access,
        pin: Option<Pin>,
    ) -> Result<MrHandle, VerbsError> {
        let limit = self.core.attr().max_mr_size;
        if length > limit {
            return Err(VerbsError::Limit { what: "length of a memory region", asked: length, limit });
        }
        let bytes = usize::try_from(length).map_err(|_| VerbsError::Limit {
            what: "length of a memory region",
            asked: length,
            limit,
        })?;
        let raw = match bytes {
            // Devices do not support empty regions. Requests do not need them, because empty
            // elements are not checked.
            0 => None,
            // SAFETY: the caller keeps this function's contract.
            _ => Some(unsafe { self.raw.register(addr, bytes, access_flags(access)) }.map_err(refused)?),
        };
        let pd = self.me.upgrade().ok_or(VerbsError::Foreign("the protection domain"))?;
        let region = IbvMr { addr, length, access, raw, pd, pin };
        if access.contains(Access::LOCAL_WRITE) && length > 0 {
            self.writable.write().insert(region.lkey(), (addr, length));
        }
        Ok(Arc::new(region))
    }

    /// Returns true if the device may write the result of a request to this element. The device
    /// checks this too, but only after the peer has executed an atomic.
    pub(crate) fn may_write(&self, sge: &Sge) -> bool {
        let writable = self.writable.read();
        let Some(&(addr, length)) = writable.get(&sge.lkey) else { return false };
        let offset = sge.addr.checked_sub(addr);
        offset.and_then(|offset| offset.checked_add(sge.length.into())).is_some_and(|end| end <= length)
    }
}

/// Returns the device's access flags. A device requires local write access for remote write
/// access (specification 10.6.3.2).
fn access_flags(access: Access) -> u32 {
    let pairs = [
        (Access::LOCAL_WRITE, bits::IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, bits::IBV_ACCESS_LOCAL_WRITE | bits::IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, bits::IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, bits::IBV_ACCESS_LOCAL_WRITE | bits::IBV_ACCESS_REMOTE_ATOMIC),
    ];
    pairs.iter().filter(|(right, _)| access.contains(*right)).fold(0, |all, (_, flag)| all | flag.0)
}

/// Returns the error for a failed registration. Memory is pinned, and the most frequent cause is
/// the limit on pinned memory.
fn refused(error: std::io::Error) -> VerbsError {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => VerbsError::os(
            "ibv_reg_mr",
            std::io::Error::new(
                error.kind(),
                "cannot pin the memory: it is more than the limit on locked memory allows (ulimit -l, or \
                 LimitMEMLOCK= of a systemd unit), or than there is",
            ),
        ),
        _ => VerbsError::os("ibv_reg_mr", error),
    }
}

impl crate::verbs::Sealed for IbvPd {}

impl ProtectionDomain for IbvPd {
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
        // SAFETY: the range was checked, and the region keeps the memory mapped.
        unsafe { self.add(memory.addr() + offset, length, access, Some(Pin::new(memory))) }
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
        // SAFETY: the caller keeps the range mapped until the handle is dropped.
        unsafe { self.add(addr, length, access, None) }
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let own = |cq: Arc<dyn CompletionQueue>| -> Result<Arc<IbvCq>, VerbsError> {
            let cq = own_cq::<IbvCq>(cq)?;
            match Arc::ptr_eq(cq.core(), &self.core) {
                true => Ok(cq),
                false => Err(VerbsError::Foreign("the completion queue")),
            }
        };
        let (send_cq, recv_cq) = (own(init.send_cq)?, own(init.recv_cq)?);
        let pd = self.me.upgrade().ok_or(VerbsError::Foreign("the protection domain"))?;
        Ok(IbvQp::new(pd, send_cq, recv_cq, init.caps)?)
    }
}

/// A registered region. The drop deregisters it and then releases the memory.
#[derive(Debug)]
struct IbvMr {
    addr: u64,
    length: u64,
    access: Access,
    raw: Option<RawMr>,
    pin: Option<Pin>,
    pd: Arc<IbvPd>,
}

impl Drop for IbvMr {
    fn drop(&mut self) {
        if self.access.contains(Access::LOCAL_WRITE) && self.length > 0 {
            // Before the device can reuse the key for another region.
            self.pd.writable.write().remove(&self.lkey());
        }
        let let_go = self.raw.as_mut().is_none_or(RawMr::deregister);
        if (!let_go || self.pd.is_stuck.load(Ordering::Acquire))
            && let Some(pin) = self.pin.take()
        {
            log::error!("{} bytes leaked: the RDMA device may still write to them", self.length);
            std::mem::forget(pin);
        }
    }
}

impl crate::verbs::Sealed for IbvMr {}

impl MemoryRegion for IbvMr {
    fn revoke(self: Arc<Self>) -> bool {
        let pd = Arc::clone(&self.pd);
        // The device deregisters a region only when it no longer accesses it.
        drop(self);
        !pd.is_stuck.load(Ordering::Acquire)
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn lkey(&self) -> u32 {
        self.raw.as_ref().map_or(0, |raw| raw.keys().0)
    }

    fn rkey(&self) -> u32 {
        self.raw.as_ref().map_or(0, |raw| raw.keys().1)
    }

    fn access(&self) -> Access {
        self.access
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RdmaOptions;
    use crate::provider::ibverbs::device::IbvDevice;

    #[test]
    fn remote_write_access_implies_local_write_access() {
        assert_eq!(access_flags(Access::empty()), 0);
        assert_eq!(access_flags(Access::LOCAL_WRITE), 1);
        assert_eq!(access_flags(Access::REMOTE_WRITE), 1 | 2);
        assert_eq!(access_flags(Access::REMOTE_READ), 4);
        assert_eq!(access_flags(Access::REMOTE_ATOMIC), 1 | 8);
        assert_eq!(access_flags(Access::REMOTE_ALL), 15);
    }

    /// No device here stops flushing its queue pairs, so the test says that one did.
    #[test]
    #[ignore = "needs an RDMA device"]
    fn memory_that_a_stuck_device_may_write_to_is_leaked_over_rdma() {
        let device = IbvDevice::open(&RdmaOptions::default()).expect("an RDMA device");
        let pd = IbvPd::new(device.core()).unwrap();
        let registered = || {
            let memory = Arc::new(Memory::shared("test", 8192).unwrap());
            let region = pd.register(&memory, 0, 8192, Access::LOCAL_WRITE | Access::REMOTE_ALL).unwrap();
            (Arc::downgrade(&memory), region)
        };
        let (released, region) = registered();
        drop(region);
        assert!(released.upgrade().is_none());
        let (leaked, region) = registered();
        pd.set_stuck();
        drop(region);
        assert!(leaked.upgrade().is_some());
    }

    #[test]
    fn memory_that_cannot_be_pinned_is_explained() {
        let text = refused(std::io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(text.contains("ulimit -l"), "{text}");
    }
}
