//! A host: exported memory, listeners, and their shutdown.
//!
//! [`Host`] collects options and exports. [`Host::listen`] starts the threads and returns
//! [`HostHandle`], which stops everything when dropped. [`Inner`] is the state that all sessions
//! share. A [`Stack`] is a device with its protection domains and call server; RDMA has a stack
//! of its own.
//!
//! # Concurrency
//! Each listener has a thread, and each stream has a thread that lasts as long as its session.
//! Data queue pairs are served by the device's engine, calls by the threads of the call server.
//! `Inner::sessions` and `Inner::threads` are never held together.

mod exports;

use std::{
    io,
    ops::RangeBounds,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    accept,
    listener::{Listener, ListenerHandle, SocketPermissions},
    peer::{Export, Exported, Service},
    pending_connections::PendingConnections,
    session_terminator::SessionTerminator,
    stack::Stack,
    state::{Fencing, Inner, mixed_atomics},
};
use crate::{
    auth::{Domain, Keyring, Limits},
    mapping::Memory,
    provider::{
        rdma::{self, RdmaOptions},
        soft::{ConnectedProcess, SoftDevice},
    },
    rpc::AnswerCounts,
    session::{
        address::{Address, ProviderKind},
        error::HostError,
        handshake,
    },
    tls::TlsServer,
    verbs::{Access, AtomicScope, Device, DeviceAttr, ProtectionDomain},
};

/// A host that does not listen yet. It exports memory and collects options. Each method that takes
/// `self` sets an option; [`listen`](Self::listen) starts the host.
///
/// | option | default |
/// |-|-|
/// | [`rdma`](Self::rdma) | the first device with an active port, if an address is `rdma:` |
/// | [`fencing`](Self::fencing) | no lease; no client is killed |
/// | [`engine_look`](Self::engine_look) | 400 µs |
/// | [`tether`](Self::tether) | none |
/// | [`limits`](Self::limits) | 1000 sessions; see [`Limits`] |
/// | [`keys`](Self::keys) | none: every peer is accepted over TCP and RDMA |
/// | [`any_local_user`](Self::any_local_user) | false |
/// | [`allow_mixed_atomics`](Self::allow_mixed_atomics) | false |
/// | [`tls`](Self::tls) | none |
/// | [`socket_permissions`](Self::socket_permissions) | by the umask, and the process's group |
///
/// ```
/// use std::sync::Arc;
/// use rdmabox::{Access, Host, Memory, MemoryServer, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = Host::new()?;
/// let memory = Arc::new(Memory::shared("readings", 4096)?);
/// // Clients may read it. This process writes it.
/// let export = host.export(&memory, Access::REMOTE_READ)?;
/// let host = host.listen(&["127.0.0.1:0".parse()?], Arc::new(MemoryServer::new(export)))?;
/// memory.write(0, b"42");
///
/// let session = Session::builder().connect(&host.addresses()[0])?;
/// let mut reading = [0; 2];
/// session.read(MemoryServer::locate(&session)?.for_read(0, 2)?, &mut reading)?;
/// assert_eq!(&reading, b"42");
/// # Ok(())
/// # }
/// ```
pub struct Host {
    device: Arc<SoftDevice>,
    /// Indexed by domain.
    pds: Mutex<Vec<Arc<dyn ProtectionDomain>>>,
    rdma: RdmaOptions,
    fencing: Fencing,
    limits: Limits,
    keys: Option<Arc<dyn Keyring>>,
    any_local_user: bool,
    allow_mixed_atomics: bool,
    tls: Option<Arc<TlsServer>>,
    permissions: SocketPermissions,
    exports: Mutex<Vec<Weak<Exported>>>,
    /// Tells exports of this host from those of others.
    identity: Arc<()>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl Host {
    /// Creates a host with default options.
    ///
    /// # Errors
    /// [`HostError::Verbs`] if the process has no file descriptors or no threads left. A retry is
    /// safe.
    pub fn new() -> Result<Host, HostError> {
        let device = SoftDevice::new()?;
        let pds = Mutex::new(vec![device.alloc_pd()?]);
        Ok(Host {
            device,
            pds,
            rdma: RdmaOptions::default(),
            fencing: Fencing::default(),
            limits: Limits::default(),
            keys: None,
            any_local_user: false,
            allow_mixed_atomics: false,
            tls: None,
            permissions: SocketPermissions::default(),
            exports: Mutex::default(),
            identity: Arc::default(),
        })
    }

    /// Sets the device for RDMA addresses. Default: the first device with an active port.
    #[must_use]
    pub fn rdma(self, rdma: RdmaOptions) -> Host {
        Host { rdma, ..self }
    }

    /// Sets the detection and fencing of lost clients.
    #[must_use]
    pub fn fencing(self, fencing: Fencing) -> Host {
        Host { fencing, ..self }
    }

    /// Sets the maximum time that the TCP engine polls before it blocks, as
    /// [`SessionOptions::engine_look`](crate::SessionOptions::engine_look). Zero: it blocks at
    /// once. Default: 400 µs.
    #[must_use]
    pub fn engine_look(self, look: Duration) -> Host {
        self.device.engine_look(look);
        self
    }

    /// Gives every connection that maps memory a descriptor from `make`. The client holds the
    /// descriptor until its last request on the connection is over, or its process ends.
    ///
    /// A thread of the host calls `make` with the process of the client. The argument is `None` if
    /// the kernel cannot name the process here (another pid namespace, Linux before 6.5). If `make`
    /// fails, the connection gets no memory and is unusable. The descriptor outlives the host. With
    /// the write end of a FIFO, a reader notices the end of its last holder. The next process that
    /// exports the same memory can therefore detect clients of a killed host that may still write.
    #[must_use]
    pub fn tether(
        self,
        make: impl Fn(Option<ConnectedProcess>) -> std::io::Result<OwnedFd> + Send + Sync + 'static,
    ) -> Host {
        self.device.tether(make);
        self
    }

    /// Sets the limits on resources spent on clients.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Host {
        Host { limits, ..self }
    }

    /// Requires clients to prove one of these keys. The host proves the key to the client in turn.
    ///
    /// Over Unix sockets, clients of the host's user and of root need no key, because they can read
    /// the host's memory anyway. A host without keys accepts every client over TCP and RDMA.
    #[must_use]
    pub fn keys(self, keys: Arc<dyn Keyring>) -> Host {
        Host { keys: Some(keys), ..self }
    }

    /// Sets whether a host with mixed atomics may export memory for atomics. Such a host serves TCP
    /// or shared memory beside an RDMA device whose atomics are not the processor's
    /// ([`AtomicScope::Device`]). By default [`listen`](Self::listen) and [`HostHandle::export`]
    /// fail with [`HostError::MixedAtomics`].
    ///
    /// Allow it only if no word is changed by atomics over both. Each session then reports
    /// [`AtomicScope::Device`].
    #[must_use]
    pub fn allow_mixed_atomics(self, allow: bool) -> Host {
        Host { allow_mixed_atomics: allow, ..self }
    }

    /// Lets a host without keys accept clients of every user over its Unix sockets.
    ///
    /// By default such a host accepts its own user and root. The kernel reports the user
    /// (`SO_PEERCRED`) outside of the client's user namespaces, so root of a user namespace
    /// (`unshare -Ur`) does not count as root.
    #[must_use]
    pub fn any_local_user(self, any: bool) -> Host {
        Host { any_local_user: any, ..self }
    }

    /// Requires TLS on TCP addresses. RDMA addresses are then refused, because the device's traffic
    /// is not encrypted. Unix sockets stay unencrypted; they do not leave this machine.
    #[must_use]
    pub fn tls(self, tls: Arc<TlsServer>) -> Host {
        Host { tls: Some(tls), ..self }
    }

    /// Sets the mode and the group of the files of Unix sockets. A client needs the right to write
    /// to the file. `None` leaves the mode to the umask, and the group to the process.
    ///
    /// [`listen`](Self::listen) fails if the process may not give a file to the group.
    #[must_use]
    pub fn socket_permissions(self, mode: Option<u32>, group: Option<u32>) -> Host {
        Host { permissions: SocketPermissions { mode, group }, ..self }
    }

    /// Creates another protection domain, for the sessions of some [`Grant`](crate::Grant)s. A
    /// domain lasts as long as the host.
    ///
    /// # Errors
    /// [`HostError::Verbs`] if the device has no further domain. A retry is safe.
    pub fn domain(&self) -> Result<Domain, HostError> {
        let mut pds = self.pds.lock();
        pds.push(self.device.alloc_pd()?);
        Ok(Domain(pds.len() - 1))
    }

    /// Exports all of `memory` in the default domain, with the given access. Peers without a key
    /// are in that domain, and so are peers whose key names no other domain.
    ///
    /// # Errors
    /// [`HostError::Verbs`] if the device has no room for another region. Nothing is exported then,
    /// and a retry is safe.
    pub fn export(&self, memory: &Arc<Memory>, access: Access) -> Result<Export, HostError> {
        self.export_in(Domain::default(), memory, access)
    }

    /// Exports all of `memory` to the peers of one domain, with the given access.
    ///
    /// # Errors
    /// As for [`export`](Self::export).
    ///
    /// # Panics
    /// If the domain belongs to another host.
    pub fn export_in(
        &self,
        domain: Domain,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Result<Export, HostError> {
        self.export_range(domain, memory, .., access)
    }

    /// Exports a part of `memory` to the peers of one domain, with the given access, as
    /// [`HostHandle::export_range`].
    ///
    /// # Errors
    /// [`HostError::Verbs`] with [`VerbsError::Range`](crate::verbs::VerbsError::Range) if the part
    /// is not inside the memory. Otherwise as for [`export`](Self::export).
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
        let pd = Arc::clone(&self.pds.lock()[domain.0]);
        let (offset, length) = exports::part(memory, &range);
        let region = pd.register(memory, offset, length, access)?;
        let (memory, host) = (Arc::clone(memory), Arc::clone(&self.identity));
        let exported = Arc::new(Exported { memory, region, rdma: OnceLock::new(), domain, access, host });
        self.exports.lock().push(Arc::downgrade(&exported));
        Ok(Export(exported))
    }

    /// Opens the RDMA device and registers the exports with it, which pins their pages.
    fn open_rdma(&self, address: &Address) -> Result<Stack, HostError> {
        let device =
            rdma::open(&self.rdma).map_err(|source| HostError::Rdma { address: address.clone(), source })?;
        let pds = self.pds.lock().iter().map(|_| device.alloc_pd()).collect::<Result<_, _>>()?;
        let stack = Stack::new(device, pds, &self.limits)?;
        for export in self.exports.lock().iter().filter_map(Weak::upgrade) {
            exports::register_rdma(&stack, self.keys.is_some(), &export)?;
            if export.access.contains(Access::REMOTE_ATOMIC)
                && stack.device.attr().atomics != AtomicScope::Global
            {
                log::warn!(
                    "{}: atomics of its peers are atomic among themselves, and not with those of peers over TCP or \
                     shared memory, nor with this machine's processors",
                    stack.device.attr().name
                );
            }
        }
        Ok(stack)
    }

    /// Rejects combinations in which clients change the same words with atomics that are not atomic
    /// towards each other.
    fn check_atomics(&self, device: &DeviceAttr, addresses: &[Address]) -> Result<(), HostError> {
        let exports = self.exports.lock();
        let mut exports = exports.iter().filter_map(Weak::upgrade);
        let atomic = exports.any(|export| export.access.contains(Access::REMOTE_ATOMIC));
        match mixed_atomics(device, addresses).filter(|_| atomic && !self.allow_mixed_atomics) {
            Some(address) => {
                Err(HostError::MixedAtomics { address: address.clone(), device: device.name.clone() })
            }
            None => Ok(()),
        }
    }

    /// Listens on all addresses, or on none after an error, and serves on background threads.
    /// Replaces the socket file of a dead host. The socket file of a live host is an error.
    ///
    /// # Errors
    /// [`HostError`] explains each error. The host and its options are gone; a retry begins with
    /// [`Host::new`].
    pub fn listen(self, addresses: &[Address], service: Arc<dyn Service>) -> Result<HostHandle, HostError> {
        self.limits.check()?;
        let mut listeners = Vec::new();
        for address in addresses {
            if self.tls.is_some() && address.provider() == ProviderKind::Rdma {
                let why = "RDMA is not available with TLS: TLS cannot encrypt a device's traffic";
                let source = io::Error::new(io::ErrorKind::Unsupported, why);
                return Err(HostError::Listen { address: address.clone(), source });
            }
            let listener = Listener::bind(address, self.permissions)
                .map_err(|source| HostError::Listen { address: address.clone(), source })?;
            listeners.push(listener);
        }
        let rdma = addresses.iter().find(|address| address.provider() == ProviderKind::Rdma);
        let rdma = rdma.map(|address| self.open_rdma(address)).transpose()?;
        if let Some(stack) = &rdma {
            self.check_atomics(stack.device.attr(), addresses)?;
        }
        let bound: Vec<Address> = listeners.iter().map(|l| l.address.clone()).collect();
        let unix = bound.iter().find_map(|address| match address {
            Address::Unix(path) => std::path::absolute(path).ok(),
            Address::Tcp { .. } | Address::Rdma { .. } => None,
        });
        let inner = Arc::new(Inner {
            soft: Stack::new(self.device, self.pds.into_inner(), &self.limits)?,
            rdma,
            identity: self.identity,
            addresses: bound,
            allow_mixed_atomics: self.allow_mixed_atomics,
            fencing: self.fencing,
            limits: self.limits,
            keys: self.keys,
            any_local_user: self.any_local_user,
            tls: self.tls,
            service,
            host_id: handshake::host_id(),
            unix: unix.map(|path| path.display().to_string()).unwrap_or_default(),
            sessions: Mutex::default(),
            releasing: Mutex::default(),
            next_id: AtomicU64::new(1),
            pending: PendingConnections::new(self.limits.pending_connections),
            in_making: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let mut running = HostHandle { inner: Arc::clone(&inner), listeners: Vec::new() };
        for listener in listeners {
            let inner = Arc::clone(&inner);
            let handle = listener.handle().map_err(HostError::Thread)?;
            let thread = std::thread::Builder::new()
                .name("rdmabox-accept".into())
                .spawn(move || accept::run(&inner, &listener))
                .map_err(HostError::Thread)?;
            running.listeners.push((handle, thread));
        }
        Ok(running)
    }
}

/// A host that serves. [`Host::listen`] and [`MemoryServer::listen`](crate::MemoryServer::listen)
/// return it. It can be shared by threads, and exports memory while it serves
/// ([`export_range`](Self::export_range), [`withdraw`](Self::withdraw)):
/// [Exports that come and go](crate::guide#exports-that-come-and-go) has an example.
///
/// Dropping it stops the host: it ends every session, calls [`Service::disconnected`] for each,
/// removes its Unix sockets, and joins its threads. Clients get
/// [`RequestError::Disconnected`](crate::RequestError::Disconnected). The drop blocks: for service
/// calls that are running, and up to 3 seconds for local clients that do not release mapped memory
/// ([`Peer::clings`](crate::Peer::clings)). Do not drop it in a call of its own service, whose
/// thread the drop would wait for. Afterwards another host can export the memory, at the same
/// addresses.
#[derive(Debug)]
pub struct HostHandle {
    pub(super) inner: Arc<Inner>,
    listeners: Vec<(ListenerHandle, JoinHandle<()>)>,
}

impl HostHandle {
    /// Returns the bound addresses, in the order given to [`Host::listen`]. Port 0 is replaced by
    /// the actual port.
    pub fn addresses(&self) -> &[Address] {
        &self.inner.addresses
    }

    /// Returns the scope of the atomics of sessions over `provider`, as
    /// [`Session::atomic_scope`](crate::Session::atomic_scope) reports it to them; `None` if the
    /// host does not listen for the provider.
    pub fn atomic_scope(&self, provider: ProviderKind) -> AtomicScope {
        self.inner.atomic_scope(provider)
    }

    /// Returns the counts of the answers to calls, of all sessions so far.
    pub fn answers(&self) -> AnswerCounts {
        let stacks = std::iter::once(&self.inner.soft).chain(&self.inner.rdma);
        stacks.map(|stack| stack.rpc.answers()).fold(AnswerCounts::default(), |sum, stack| sum + stack)
    }

    /// Returns a handle that ends single sessions. Any number of threads may have a clone.
    pub fn ender(&self) -> SessionTerminator {
        SessionTerminator(Arc::downgrade(&self.inner))
    }
}

impl Drop for HostHandle {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        for (handle, thread) in self.listeners.drain(..) {
            handle.close();
            let _ = thread.join();
        }
        for session in self.inner.sessions.lock().values() {
            session.shutdown();
        }
        self.inner.pending.close();
        loop {
            let thread = self.inner.threads.lock().pop();
            match thread {
                Some(thread) => {
                    let _ = thread.join();
                }
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_atomics_are_not_mixed_with_other_atomics() {
        let host = || Host::new().unwrap();
        let device = |atomics| DeviceAttr { atomics, ..SoftDevice::new().unwrap().attr().clone() };
        let memory = Arc::new(Memory::shared("test", 4096).unwrap());
        let rdma = || Address::Rdma { host: "127.0.0.1".into(), port: 0 };
        let both = [rdma(), Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
        let check = |host: Host, scope, access, addresses: &[Address]| {
            let _export = host.export(&memory, access).unwrap();
            host.check_atomics(&device(scope), addresses)
        };
        let refused = check(host(), AtomicScope::Device, Access::REMOTE_ALL, &both);
        assert!(
            matches!(&refused, Err(HostError::MixedAtomics { address, .. }) if *address == both[1]),
            "{refused:?}"
        );
        check(host(), AtomicScope::Global, Access::REMOTE_ALL, &both).unwrap();
        check(host(), AtomicScope::None, Access::REMOTE_ALL, &both).unwrap();
        check(host(), AtomicScope::Device, Access::REMOTE_READ, &both).unwrap();
        check(host(), AtomicScope::Device, Access::REMOTE_ALL, &[rdma()]).unwrap();
        check(host().allow_mixed_atomics(true), AtomicScope::Device, Access::REMOTE_ALL, &both).unwrap();
    }
}
