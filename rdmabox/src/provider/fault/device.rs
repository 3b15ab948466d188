//! Devices and protection domains whose objects inject faults.

use std::{io, sync::Arc};

use super::{cq::FaultCq, plan::Plan, qp::FaultQp};
use crate::{
    mapping::Memory,
    verbs::{
        Access, AtomicOps, CompletionQueue, Device, DeviceAttr, MrHandle, ProtectionDomain, QpInit,
        QueuePair, VerbsError, own_cq,
    },
};

/// A device with faults.
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    attr: DeviceAttr,
    plan: Arc<Plan>,
}

impl FaultDevice {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Device>, plan: Arc<Plan>) -> FaultDevice {
        let mut attr = inner.attr().clone();
        if plan.faults().no_atomic_ops {
            attr.atomic_ops = AtomicOps::empty();
        }
        FaultDevice { inner, attr, plan }
    }
}

impl crate::verbs::Sealed for FaultDevice {}

impl Device for FaultDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        let (inner, plan) = (self.inner.alloc_pd()?, Arc::clone(&self.plan));
        Ok(Arc::new(FaultPd { inner, plan, atomic_ops: self.attr.atomic_ops }))
    }

    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(Arc::new(FaultCq::new(self.inner.create_cq(depth)?, Arc::clone(&self.plan))))
    }
}

/// A protection domain with faults.
#[derive(Debug)]
struct FaultPd {
    inner: Arc<dyn ProtectionDomain>,
    plan: Arc<Plan>,
    atomic_ops: AtomicOps,
}

impl crate::verbs::Sealed for FaultPd {}

impl ProtectionDomain for FaultPd {
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        self.inner.register(memory, offset, length, access)
    }

    unsafe fn register_borrowed(
        &self,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        if self.plan.refuses() {
            return Err(VerbsError::os("register (on purpose)", io::ErrorKind::OutOfMemory.into()));
        }
        // SAFETY: the caller keeps the contract of the inner domain.
        unsafe { self.inner.register_borrowed(addr, length, access) }
    }

    #[cfg(feature = "model")]
    fn copied(&self, bytes: u64) {
        self.inner.copied(bytes);
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        // Queue pairs for calls receive messages.
        let has_faults = self.plan.faults().calls || init.caps.max_recv_wr <= 1;
        let (send_cq, recv_cq) = (own_cq::<FaultCq>(init.send_cq)?, own_cq::<FaultCq>(init.recv_cq)?);
        let mut inner = QpInit { send_cq: send_cq.inner(), recv_cq: recv_cq.inner(), ..init };
        if has_faults && self.plan.faults().places > 0 {
            inner.caps.max_send_wr = self.plan.faults().places;
        }
        let qp = self.inner.create_qp(inner)?;
        if has_faults {
            send_cq.watch(&qp);
            recv_cq.watch(&qp);
        }
        Ok(Arc::new(FaultQp::new(qp, has_faults.then(|| Arc::clone(&self.plan)), self.atomic_ops)))
    }
}
