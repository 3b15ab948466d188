//! The state that all sessions of a host share.
//!
//! # Concurrency
//! Any thread may use it. `sessions`, `threads` and `releasing` are never held together.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    host_session::HostSession, peer::Service, pending_connections::PendingConnections, stack::Stack,
};
use crate::{
    auth::{Domain, Keyring, Limits},
    session::{
        address::{Address, ProviderKind},
        handshake::HostId,
    },
    tls::TlsServer,
    verbs::{AtomicScope, DeviceAttr},
};

/// Detection and fencing of lost clients.
///
/// A session ends with its control stream, which a dying client closes. Only a lease detects
/// a client that is stopped, hangs, or is cut off from the network. The end of a session destroys
/// its queue pairs, so later requests have no effect.
///
/// A client with mapped memory (shared memory) must release the mapping itself, and a running
/// client does so at once. If a client does not release the mapping within 3 seconds, the host
/// waits for the end of its process. Until then the host does not call
/// [`Service::disconnected`], and the service reuses nothing.
///
/// By default there is no lease. A client that is stopped or cut off keeps its session, and all its
/// claims in memory, for ever. [Claims and lost clients](crate::guide#claims-and-lost-clients) has
/// a service that frees the claims of lost clients.
///
/// ```
/// use std::time::Duration;
/// use rdmabox::{Fencing, Host};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = Host::new()?.fencing(Fencing::new(Duration::from_secs(10), false));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fencing {
    /// Length of the lease. A client that stays silent for this long loses its session. Clients
    /// renew three times per lease by themselves. `None`: a session lasts until its connection
    /// ends. Default: `None`.
    pub lease: Option<Duration>,
    /// Kills (SIGKILL) a local client that does not release mapped memory, instead of waiting
    /// without limit. The host must run as the same user or have CAP_KILL. Default: false.
    pub kill: bool,
}

impl Fencing {
    /// Returns the options with this lease (a duration, or `None`) and this choice of `kill`.
    pub fn new(lease: impl Into<Option<Duration>>, kill: bool) -> Fencing {
        Fencing { lease: lease.into(), kill }
    }
}

/// The state of a listening host.
pub(crate) struct Inner {
    pub(crate) soft: Stack,
    pub(crate) rdma: Option<Stack>,
    /// Tells exports of this host from those of others.
    pub(crate) identity: Arc<()>,
    /// Bound addresses. Port 0 is replaced by the actual port.
    pub(crate) addresses: Vec<Address>,
    pub(crate) allow_mixed_atomics: bool,
    pub(crate) fencing: Fencing,
    pub(crate) limits: Limits,
    pub(crate) keys: Option<Arc<dyn Keyring>>,
    pub(crate) any_local_user: bool,
    pub(crate) tls: Option<Arc<TlsServer>>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) host_id: HostId,
    pub(crate) unix: String,
    /// Sessions by id, from the start of the handshake to the start of their end.
    pub(crate) sessions: Mutex<HashMap<u64, Arc<HostSession>>>,
    /// Sessions over shared memory from before their removal from `sessions` until their client has
    /// released the memory: their ids and domains.
    pub(crate) releasing: Mutex<Vec<(u64, Domain)>>,
    pub(crate) next_id: AtomicU64,
    pub(crate) pending: Arc<PendingConnections>,
    pub(crate) in_making: AtomicUsize,
    pub(crate) stopping: AtomicBool,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Inner {
    /// Returns the stack that serves sessions of this provider.
    pub(crate) fn stack(&self, provider: ProviderKind) -> &Stack {
        match provider {
            ProviderKind::Shm | ProviderKind::Tcp => &self.soft,
            // Only a host with an RDMA device has an RDMA listener.
            ProviderKind::Rdma => self.rdma.as_ref().unwrap_or(&self.soft),
        }
    }

    /// Returns the scope of the atomics of sessions over `provider`; `None` if the host does not
    /// listen for it. Atomics of devices whose scopes do not cover each other have the scope of
    /// their own device.
    pub(crate) fn atomic_scope(&self, provider: ProviderKind) -> AtomicScope {
        if !self.addresses.iter().any(|address| address.provider() == provider) {
            return AtomicScope::None;
        }
        let own = self.stack(provider).device.attr().atomics;
        match self.mixes_atomics() {
            true => own.min(AtomicScope::Device),
            false => own,
        }
    }

    /// Returns true if sessions over one provider make atomics that are not atomic towards the
    /// sessions of another one.
    fn mixes_atomics(&self) -> bool {
        let device = self.rdma.as_ref().map(|stack| stack.device.attr());
        device.is_some_and(|device| mixed_atomics(device, &self.addresses).is_some())
    }
}

/// Returns the first address whose clients make atomics that are not atomic towards those of an
/// RDMA device.
pub(super) fn mixed_atomics<'a>(device: &DeviceAttr, addresses: &'a [Address]) -> Option<&'a Address> {
    let other = addresses.iter().find(|address| address.provider() != ProviderKind::Rdma);
    other.filter(|_| device.atomics == AtomicScope::Device)
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("soft", &self.soft)
            .field("rdma", &self.rdma)
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}
