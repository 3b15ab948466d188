//! Memory that peers of a host may access.
//!
//! # Concurrency
//! Any number of threads; no locks.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use crate::{
    auth::Domain,
    mapping::Memory,
    session::address::ProviderKind,
    verbs::{Access, MrHandle},
};

/// Memory that peers may access: a registration of a part of a [`Memory`], with rights, for the
/// peers of one domain. [`Host::export`](crate::Host::export) and
/// [`HostHandle::export`](crate::HostHandle::export) make it. Usually the service keeps it, and
/// tells each client the address ([`Peer::remote_mr`](super::Peer::remote_mr)).
///
/// It keeps the memory mapped. Dropping it revokes the access: later requests are refused, with
/// [`WcStatus::RemAccessErr`](crate::WcStatus::RemAccessErr).
///
/// A drop does not wait: a request that is under way may still access the memory, which stays
/// mapped until then. [`HostHandle::withdraw`](crate::HostHandle::withdraw) waits, so that the
/// memory can have another use.
#[derive(Debug)]
pub struct Export(pub(crate) Arc<Exported>);

/// Exported memory, registered with each device that the host serves.
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) memory: Arc<Memory>,
    pub(crate) region: MrHandle,
    /// Registration with the RDMA device, once the host listens there.
    pub(crate) rdma: OnceLock<MrHandle>,
    pub(crate) domain: Domain,
    pub(crate) access: Access,
    /// Identity of its host.
    pub(crate) host: Arc<()>,
}

impl Exported {
    pub(super) fn region(&self, provider: ProviderKind) -> &MrHandle {
        match provider {
            ProviderKind::Shm | ProviderKind::Tcp => &self.region,
            // Sessions over RDMA exist only if the host listens on RDMA.
            ProviderKind::Rdma => self.rdma.get().unwrap_or(&self.region),
        }
    }
}

impl Export {
    /// Returns the exported memory. The export may be a part of it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Returns the exported part of the memory, in bytes.
    pub fn range(&self) -> Range<u64> {
        let region = &self.0.region;
        let start = region.addr() - self.0.memory.addr();
        start..start + region.length()
    }

    /// Returns the domain of the peers that may access it.
    pub fn domain(&self) -> Domain {
        self.0.domain
    }

    /// Returns the rights of the peers.
    pub fn access(&self) -> Access {
        self.0.access
    }
}
