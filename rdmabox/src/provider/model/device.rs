//! Devices and protection domains over a modelled card.
//!
//! # Concurrency
//! As the wrapped objects. A registration makes the calling thread wait, without a lock.

use std::sync::Arc;

use super::{ModelledCard, card::PeerKey, cq::ModelCq, qp::ModelQp};
use crate::{
    mapping::Memory,
    verbs::{
        Access, CompletionQueue, Device, DeviceAttr, MrHandle, ProtectionDomain, QpInit, QueuePair,
        VerbsError, own_cq,
    },
};

/// A device whose requests take the time of a modelled card. All its queue pairs lead to one peer.
#[derive(Debug)]
pub struct ModelDevice {
    inner: Arc<dyn Device>,
    attr: DeviceAttr,
    card: Arc<ModelledCard>,
    peer: PeerKey,
}

impl ModelDevice {
    /// Wraps `inner`, which moves the bytes. The card's limits are those of `inner`.
    pub fn new(inner: Arc<dyn Device>, card: Arc<ModelledCard>) -> ModelDevice {
        let mut attr = inner.attr().clone();
        attr.name = format!("model:{}", card.parameters().name());
        let peer = card.card().add_peer();
        ModelDevice { inner, attr, card, peer }
    }
}

impl crate::verbs::Sealed for ModelDevice {}

impl Device for ModelDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        let (inner, card) = (self.inner.alloc_pd()?, Arc::clone(&self.card));
        Ok(Arc::new(ModelPd { inner, card, peer: self.peer }))
    }

    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(Arc::new(ModelCq::new(self.inner.create_cq(depth)?, Arc::clone(&self.card))))
    }
}

/// A protection domain over a modelled card.
#[derive(Debug)]
struct ModelPd {
    inner: Arc<dyn ProtectionDomain>,
    card: Arc<ModelledCard>,
    peer: PeerKey,
}

impl crate::verbs::Sealed for ModelPd {}

impl ProtectionDomain for ModelPd {
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        // Memory of a program's whole life. Its registration is not part of any request.
        self.inner.register(memory, offset, length, access)
    }

    unsafe fn register_borrowed(
        &self,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        // SAFETY: the caller keeps the contract of the inner domain.
        let handle = unsafe { self.inner.register_borrowed(addr, length, access) }?;
        self.card.registered(length);
        Ok(handle)
    }

    fn copied(&self, bytes: u64) {
        self.card.copied(bytes);
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let (send_cq, recv_cq) = (own_cq::<ModelCq>(init.send_cq)?, own_cq::<ModelCq>(init.recv_cq)?);
        let inner = QpInit { send_cq: send_cq.inner(), recv_cq: recv_cq.inner(), ..init };
        let inner = self.inner.create_qp(inner)?;
        Ok(Arc::new(ModelQp::new(inner, Arc::clone(&self.card), self.peer, send_cq)))
    }
}
