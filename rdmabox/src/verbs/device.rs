//! Devices and protection domains.

use std::sync::Arc;

use super::{Access, AtomicOps, CompletionQueue, MrHandle, QpInit, QueuePair, VerbsError};
use crate::mapping::Memory;

/// Limits of a device, as `ibv_query_device` reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Name in logs and reports.
    pub name: String,
    /// Maximum number of outstanding requests per work queue.
    pub max_qp_wr: u32,
    /// Maximum number of elements per request.
    pub max_sge: u32,
    /// Maximum number of completions per completion queue.
    pub max_cqe: u32,
    /// Maximum message length in bytes.
    pub max_msg_sz: u64,
    /// Maximum region length in bytes.
    pub max_mr_size: u64,
    /// Maximum number of outstanding READs and atomics per queue pair.
    pub max_qp_rd_atom: u32,
    /// Maximum number of inline bytes per request.
    pub max_inline_data: u32,
    /// Scope within which the device's atomics are atomic.
    pub atomics: AtomicScope,
    /// Atomics beyond compare-and-swap and fetch-and-add that requests of this device can use.
    pub atomic_ops: AtomicOps,
}

/// Scope within which atomics are atomic, from the smallest to the largest (`enum ibv_atomic_cap`).
// Exhaustive: the specification has these three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AtomicScope {
    /// The device has no atomics.
    #[default]
    None,
    /// Atomics of all queue pairs of this device, but not of the processors or of another device.
    Device,
    /// Every atomic access to the memory, including the processors' own instructions.
    Global,
}

/// A device: RDMA hardware, or the software device of [`provider::soft`](crate::provider::soft).
pub trait Device: super::Sealed + Send + Sync + std::fmt::Debug {
    /// Returns the limits of the device.
    fn attr(&self) -> &DeviceAttr;

    /// Creates a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;

    /// Creates a completion queue that holds `depth` completions.
    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError>;
}

/// A protection domain. Its queue pairs can access the regions of this domain only.
pub trait ProtectionDomain: super::Sealed + Send + Sync + std::fmt::Debug {
    /// Registers `length` bytes of `memory`, starting at `offset`.
    ///
    /// # Errors
    /// - [`VerbsError::Range`] if the range does not lie inside the memory.
    /// - [`VerbsError::NotShareable`] if remote rights need shareable memory and `memory` is
    ///   private.
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError>;

    /// Registers memory that the caller does not own, for local use only.
    ///
    /// # Safety
    /// Whenever a request uses the handle, `addr..addr+length` must be valid for reads (and, with
    /// [`Access::LOCAL_WRITE`], for writes), and the same memory as at the registration. It must
    /// stay so until the request has completed. Until then no code may access the bytes in a way
    /// that conflicts with the request.
    unsafe fn register_borrowed(
        &self,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError>;

    /// Creates a queue pair in state Init.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the device does not support the requested queue sizes.
    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Notes that the caller has copied `bytes` to or from registered memory of this domain for a
    /// request. A device that models the cost of copies makes the calling thread wait for it; other
    /// devices do nothing.
    #[cfg(feature = "model")]
    fn copied(&self, bytes: u64) {
        let _ = bytes;
    }
}
