//! Devices and protection domains.

use std::sync::Arc;

use super::{Access, CompletionQueue, MrHandle, QpInit, QueuePair, VerbsError};
use crate::memory::Memory;

/// Limits of a device, as `ibv_query_device` reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Name for logs and reports.
    pub name: String,
    /// Most outstanding requests of a work queue.
    pub max_qp_wr: u32,
    /// Most elements of a request.
    pub max_sge: u32,
    /// Most completions of a completion queue.
    pub max_cqe: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u64,
    /// Longest region in bytes.
    pub max_mr_size: u64,
    /// Most READs and atomics under way per queue pair.
    pub max_qp_rd_atom: u32,
    /// Most inline bytes of a request.
    pub max_inline_data: u32,
    /// What its atomics are atomic with.
    pub atomics: AtomicScope,
}

/// What the atomics of a device are atomic with (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// There are none.
    None,
    /// Atomics of all queue pairs of the same device; not those of the processors, nor of another device.
    Device,
    /// Everything that is atomic on that memory, the processors' own instructions included.
    Global,
}

/// A device: hardware, or the software of [`provider::soft`](crate::provider::soft).
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Its limits.
    fn attr(&self) -> &DeviceAttr;

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;

    /// Makes a completion queue that holds `depth` completions.
    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError>;
}

/// A protection domain: queue pairs reach the regions of their own domain and no others.
pub trait ProtectionDomain: Send + Sync + std::fmt::Debug {
    /// Registers `length` bytes of `memory` from `offset` on.
    ///
    /// # Errors
    /// [`VerbsError::Range`]; [`VerbsError::NotShareable`] where remote rights need shareable memory.
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError>;

    /// Registers memory that somebody else owns, for local use only.
    ///
    /// # Safety
    /// `addr..addr+length` stays valid for reads (and, with [`Access::LOCAL_WRITE`], writes) until the handle
    /// is dropped and every request that uses it has completed; nobody touches the bytes in a way that
    /// conflicts with a request under way.
    unsafe fn register_borrowed(
        &self,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError>;

    /// Makes a queue pair, in state Init.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] when the device cannot have queues of that size.
    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError>;
}
