//! Exports that are added and withdrawn while the host runs.
//!
//! # Concurrency
//! Any thread may call these methods. A withdrawal takes `Inner::sessions` and
//! `Inner::releasing`, one at a time, and holds neither while it waits.

use std::{
    ops::RangeBounds,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use super::HostHandle;
use crate::{
    auth::Domain,
    mapping::Memory,
    rpc::{Handler, Reason},
    session::{
        address::ProviderKind,
        error::HostError,
        host::{
            host_session::HostSession,
            peer::{Export, Exported},
            stack::Stack,
            state::{Inner, mixed_atomics},
        },
    },
    verbs::{Access, VerbsError, offsets},
};

/// Time limit for local clients to finish their requests on withdrawn memory.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between checks whether sessions have ended.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

impl HostHandle {
    /// Creates another protection domain while the host runs, for the sessions of some
    /// [`Grant`](crate::Grant)s. A domain lasts as long as the host.
    ///
    /// # Errors
    /// The device has no further domain. A retry is safe.
    pub fn domain(&self) -> Result<Domain, HostError> {
        Ok(self.inner.soft.add_domain(self.inner.rdma.as_ref())?)
    }

    /// Exports all of `memory` in the default domain while the host runs, as
    /// [`Host::export`](crate::Host::export) does before. Existing sessions of the domain can
    /// access it at once.
    ///
    /// # Errors
    /// As for [`export_range`](Self::export_range).
    pub fn export(&self, memory: &Arc<Memory>, access: Access) -> Result<Export, HostError> {
        self.export_range(Domain::default(), memory, .., access)
    }

    /// Exports a part of `memory` to the peers of one domain, with the given access, while the host
    /// runs. Memory may be exported several times, with other parts, domains and rights.
    ///
    /// A client has the rights of the exports of its domain, and no others. To give each client
    /// rights of its own, give each key a domain of its own ([`Grant`](crate::Grant)).
    ///
    /// Over TCP and RDMA the host enforces part and rights. A local client that maps the memory
    /// gets a descriptor of the *whole* memory. The descriptor is for writing if one export of the
    /// client's domain allows writing. This crate keeps a well-behaved client to the exported part.
    /// Export a [`Memory`] of its own where a local client is not trusted.
    ///
    /// # Errors
    /// - [`HostError::Verbs`] if the part is not inside the memory, or the device has no room.
    /// - [`HostError::MixedAtomics`], as for [`listen`](crate::Host::listen).
    ///
    /// Nothing is exported then, and a retry is safe.
    ///
    /// # Panics
    /// If the domain belongs to another host.
    pub fn export_range(
        &self,
        domain: Domain,
        memory: &Arc<Memory>,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<Export, HostError> {
        let inner = &self.inner;
        inner.check_atomics(access)?;
        let (offset, length) = part(memory, &range);
        let region = inner.soft.pd(domain).register(memory, offset, length, access)?;
        let (memory, host) = (Arc::clone(memory), Arc::clone(&inner.identity));
        let exported = Exported { memory, region, rdma: OnceLock::new(), domain, access, host };
        if let Some(stack) = &inner.rdma {
            register_rdma(stack, inner.keys.is_some(), &exported)?;
        }
        Ok(Export(Arc::new(exported)))
    }

    /// Ends an export, and waits until no client can access the memory through it. Returns its
    /// memory, which can then have another use.
    ///
    /// | provider | requests under way | after the return |
    /// |-|-|-|
    /// | TCP | fail, with the others of their queue pair | are refused |
    /// | RDMA | the device completes or fails them | are refused by the device |
    /// | shared memory | the client finishes and confirms them | are refused by the client |
    ///
    /// Sessions go on, and local clients remove their mapping. The method blocks for requests under
    /// way of local clients, at most for 3 seconds. Do not call it in
    /// [`Service::call`](crate::Service::call), which serves all sessions.
    ///
    /// A local client can break the rule, as it can always: it may keep a mapping in
    /// [`Session::map`](crate::Session::map), or another descriptor of the memory. Only the end of
    /// its process removes these. The withdrawal does not end other exports of the memory.
    ///
    /// # Errors
    /// The export has ended in any case: no later request succeeds. The memory must not be reused
    /// yet.
    /// - [`HostError::StillMapped`] if local clients did not confirm in time, or are being ended
    ///   for another reason. Their sessions are ended as with an expired lease
    ///   ([`Fencing`](crate::Fencing)).
    /// - [`HostError::DeviceStuck`] if an RDMA device did not stop.
    ///
    /// # Panics
    /// If the export belongs to another host.
    pub fn withdraw(&self, export: Export) -> Result<Arc<Memory>, HostError> {
        let inner = &self.inner;
        assert!(Arc::ptr_eq(&export.0.host, &inner.identity), "an export of another host");
        // `listen` has released its reference before there was a handle.
        let Some(Exported { memory, region, rdma, domain, .. }) = Arc::into_inner(export.0) else {
            unreachable!("an export has one owner")
        };
        let device_stopped = rdma.into_inner().is_none_or(|region| region.revoke());
        region.revoke();
        let sessions = inner.await_release(domain);
        match (sessions.is_empty(), device_stopped) {
            (true, true) => Ok(memory),
            (true, false) => Err(HostError::DeviceStuck),
            (false, _) => Err(HostError::StillMapped { sessions }),
        }
    }
}

impl Inner {
    /// Refuses atomics that are not atomic towards those of other sessions.
    fn check_atomics(&self, access: Access) -> Result<(), HostError> {
        let Some(stack) = &self.rdma else { return Ok(()) };
        let device = stack.device.attr();
        let mixed = mixed_atomics(device, &self.addresses);
        match mixed.filter(|_| access.contains(Access::REMOTE_ATOMIC) && !self.allow_mixed_atomics) {
            Some(address) => {
                Err(HostError::MixedAtomics { address: address.clone(), device: device.name.clone() })
            }
            None => Ok(()),
        }
    }

    /// Waits until local clients of a domain have finished the requests that were under way when a
    /// region was revoked. Ends the sessions of clients that do not, and returns their numbers.
    fn await_release(&self, domain: Domain) -> Vec<u64> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        let is_local = |session: &&Arc<HostSession>| {
            session.peer.provider == ProviderKind::Shm && session.peer.domain == domain
        };
        let sessions: Vec<_> = self.sessions.lock().values().filter(is_local).cloned().collect();
        let late = sessions.iter().filter(|session| !session.queue_pairs.await_fences(deadline));
        let mut late: Vec<u64> = late
            .map(|session| {
                session.end(Reason::Misbehaved("it does not finish its requests on withdrawn memory"));
                session.peer.id
            })
            .collect();
        // A session that ended meanwhile, or before, has no queue pairs to ask any more.
        let ending = || -> Vec<u64> {
            let releasing = self.releasing.lock();
            releasing.iter().filter(|(_, of)| *of == domain).map(|(id, _)| *id).collect()
        };
        while !ending().is_empty() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        late.extend(ending());
        late.sort_unstable();
        late.dedup();
        late
    }
}

/// Returns offset and length of a part of a memory. A part that does not exist has a length that
/// no memory has.
pub(super) fn part(memory: &Memory, range: &impl RangeBounds<u64>) -> (u64, u64) {
    let (start, end) = offsets(range, memory.len() as u64);
    let start = start.unwrap_or(u64::MAX);
    (start, end.unwrap_or(u64::MAX).checked_sub(start).unwrap_or(u64::MAX))
}

/// Registers an export with the RDMA device, which pins its pages.
pub(super) fn register_rdma(stack: &Stack, with_keys: bool, export: &Exported) -> Result<(), VerbsError> {
    // With keys, no RDMA session is in the default domain, so its exports need not be pinned.
    if with_keys && export.domain == Domain::default() {
        return Ok(());
    }
    let offset = export.region.addr() - export.memory.addr();
    let pd = stack.pd(export.domain);
    let region = pd.register(&export.memory, offset, export.region.length(), export.access)?;
    // An export is registered once, so the cell is still empty.
    let _ = export.rdma.set(region);
    Ok(())
}
