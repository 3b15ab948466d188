//! The host's end: what it exports, its listeners, and how it stops.
//!
//! New streams are received by threads of their own (`reception`), one of which stays for as long as its session (`hosted`). Queue
//! pairs are served by the device's engine and by the threads of the call server.

use std::{
    collections::HashMap,
    io,
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
    Address, Domain, Ender, Export, HostError, Keyring, Limits, ProviderKind, RdmaOptions, Service,
    handshake::{self, HostId},
    hosted::HostSession,
    listener::{Listener, ListenerHandle},
    peer::Exported,
    reception,
    strangers::Strangers,
};
use crate::{
    memory::Memory,
    provider::{rdma, soft::SoftDevice},
    rpc::{LATE_DEPTH, QUEUE_DEPTH, RpcServer},
    tls::TlsServer,
    verbs::{Access, AtomicScope, Device, DeviceAttr, ProtectionDomain},
};

/// Sessions at a time, with those that are being made: whatever the limits say.
const MAX_SESSIONS: usize = 1000;
/// Time for each answer, for a queue pair, and for all queue pairs of a session that is made.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// When a host takes a client for lost, and how it sees to it that a lost client touches its memory no more.
///
/// A session ends when its control connection does, which a client that dies closes. One that is stopped, hangs or is cut off
/// from the network is noticed by its lease only. The end of a session destroys its queue pairs, so that nothing arrives any
/// more. A client that has the memory mapped (shared memory) has to let go of it by itself, which a running one does at once; for
/// one that does not within a few seconds there is nothing but to wait until its process ends. Before that
/// [`Service::disconnected`] is not called, and the service reuses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fencing {
    /// A client that has not been heard of for so long has lost its session. Clients report three times in that time by
    /// themselves. `None`: it lasts until the connection ends.
    pub lease: Option<Duration>,
    /// Kill (SIGKILL) the process of a client of this host that does not let go, instead of waiting for ever. It takes the right to
    /// do so: the same user, or CAP_KILL.
    pub kill: bool,
}

/// A host that does not listen yet: a place to export memory from.
pub struct Host {
    device: Arc<SoftDevice>,
    /// By number of the domain.
    pds: Mutex<Vec<Arc<dyn ProtectionDomain>>>,
    rdma: RdmaOptions,
    fencing: Fencing,
    limits: Limits,
    keys: Option<Arc<dyn Keyring>>,
    any_local_user: bool,
    allow_mixed_atomics: bool,
    tls: Option<Arc<TlsServer>>,
    exports: Mutex<Vec<(Weak<Exported>, Access)>>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl Host {
    /// Makes a host.
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
            allow_mixed_atomics: true,
            tls: None,
            exports: Mutex::default(),
        })
    }

    /// The device that addresses of RDMA are for.
    #[must_use]
    pub fn rdma(self, rdma: RdmaOptions) -> Host {
        Host { rdma, ..self }
    }

    /// What becomes of clients that are not heard of.
    #[must_use]
    pub fn fencing(self, fencing: Fencing) -> Host {
        Host { fencing, ..self }
    }

    /// For how long the thread that moves the data of TCP looks for more before it sleeps, as [`SessionOptions::engine_look`](crate::SessionOptions).
    #[must_use]
    pub fn engine_look(self, look: Duration) -> Host {
        self.device.engine_look(look);
        self
    }

    /// Passes a descriptor from `make` to every connection of a client that maps memory. The client holds it for exactly as long as the
    /// connection may access the memory: until its last request is over, or its process has ended.
    ///
    /// `make` is called on a thread of the host with the number of the client's process, or `None` if the kernel cannot name the process
    /// here. If it fails, the connection gets no memory and is of no use. The descriptor outlives the host. The write end of a FIFO has
    /// a reader learn when the last holder is gone: so the next process that exports the same memory learns whether clients of a host
    /// that was killed may still write to it.
    #[must_use]
    pub fn tether(
        self,
        make: impl Fn(Option<i32>) -> std::io::Result<OwnedFd> + Send + Sync + 'static,
    ) -> Host {
        self.device.tether(make);
        self
    }

    /// What is spent on clients at most.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Host {
        Host { limits, ..self }
    }

    /// Takes clients only that prove that they have one of these keys; the host proves to them that it has it, too.
    ///
    /// Over its Unix sockets a host also takes clients without a key if they run as its own user or as root: these can look into its
    /// memory in any case. Without keys a host takes every client that connects over TCP or RDMA.
    #[must_use]
    pub fn keys(self, keys: Arc<dyn Keyring>) -> Host {
        Host { keys: Some(keys), ..self }
    }

    /// Says whether the host listens for clients over TCP or shared memory beside RDMA where the device's atomics are not the processor's
    /// ([`AtomicScope`]), and exports memory for atomics. It does unless told otherwise: some services use no word over both.
    #[must_use]
    pub fn allow_mixed_atomics(self, allow: bool) -> Host {
        Host { allow_mixed_atomics: allow, ..self }
    }

    /// Lets a host without keys take clients of every user through its Unix sockets.
    ///
    /// By default such a host takes its own user and root only, by the kernel's word (`SO_PEERCRED`). That word names the user outside
    /// of a client's user namespaces, so root of a user namespace (`unshare -Ur`) is not root here.
    #[must_use]
    pub fn any_local_user(self, any: bool) -> Host {
        Host { any_local_user: any, ..self }
    }

    /// Takes clients over TCP with TLS only. There must be no addresses for RDMA then: what a device carries is not encrypted. Unix
    /// sockets, which lead nowhere but to this host, are as without.
    #[must_use]
    pub fn tls(self, tls: Arc<TlsServer>) -> Host {
        Host { tls: Some(tls), ..self }
    }

    /// Another protection domain, for the sessions of some [`Grant`](super::Grant)s.
    pub fn domain(&self) -> Result<Domain, HostError> {
        let mut pds = self.pds.lock();
        pds.push(self.device.alloc_pd()?);
        Ok(Domain(pds.len() - 1))
    }

    /// Lets peers reach all of `memory`, as far as `access` goes: those without a key, and those whose key is for the default
    /// domain.
    pub fn export(&self, memory: &Arc<Memory>, access: Access) -> Result<Export, HostError> {
        self.export_in(Domain::default(), memory, access)
    }

    /// Lets the peers of a domain of this host reach all of `memory`, as far as `access` goes.
    ///
    /// # Panics
    /// If the domain is another host's.
    pub fn export_in(
        &self,
        domain: Domain,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Result<Export, HostError> {
        let pd = Arc::clone(&self.pds.lock()[domain.0]);
        let region = pd.register(memory, 0, memory.len() as u64, access)?;
        let memory = Arc::clone(memory);
        let exported = Arc::new(Exported { memory, region, rdma: OnceLock::new(), domain });
        self.exports.lock().push((Arc::downgrade(&exported), access));
        Ok(Export(exported))
    }

    /// Opens the RDMA device, and registers with it what is exported: its pages are pinned from then on.
    fn open_rdma(&self, address: &Address) -> Result<Stack, HostError> {
        let device =
            rdma::open(&self.rdma).map_err(|source| HostError::Rdma { address: address.clone(), source })?;
        let pds = self.pds.lock().iter().map(|_| device.alloc_pd()).collect::<Result<_, _>>()?;
        let stack = Stack::new(device, pds)?;
        for (export, access) in &*self.exports.lock() {
            let Some(export) = export.upgrade() else { continue };
            // Nobody is without a key there then, and what is registered is pinned once more.
            if self.keys.is_some() && export.domain == Domain::default() {
                continue;
            }
            let len = export.memory.len() as u64;
            let region = stack.pd(export.domain).register(&export.memory, 0, len, *access)?;
            // Nobody else sets it: a host listens once.
            let _ = export.rdma.set(region);
            if access.contains(Access::REMOTE_ATOMIC) && stack.device.attr().atomics != AtomicScope::Global {
                log::warn!(
                    "{}: atomics of its peers are atomic among themselves, and not with those of peers over TCP or \
                     shared memory, nor with this machine's processors",
                    stack.device.attr().name
                );
            }
        }
        Ok(stack)
    }

    /// Checks that no two kinds of clients change the same words with atomics that do not know of each other.
    fn check_atomics(&self, device: &DeviceAttr, addresses: &[Address]) -> Result<(), HostError> {
        let exports = self.exports.lock();
        let atomic = exports.iter().any(|(_, access)| access.contains(Access::REMOTE_ATOMIC));
        let other = addresses.iter().find(|address| address.provider() != ProviderKind::Rdma);
        match other.filter(|_| atomic && !self.allow_mixed_atomics && device.atomics != AtomicScope::Global) {
            Some(address) => {
                Err(HostError::MixedAtomics { address: address.clone(), device: device.name.clone() })
            }
            None => Ok(()),
        }
    }

    /// Listens on every address, or on none if one fails, and serves on threads of its own. The socket file of a
    /// dead host is replaced; that of a live one is an error.
    pub fn listen(self, addresses: &[Address], service: Arc<dyn Service>) -> Result<Running, HostError> {
        let mut listeners = Vec::new();
        for address in addresses {
            if self.tls.is_some() && address.provider() == ProviderKind::Rdma {
                let why = "with TLS there is no RDMA: what a device carries cannot be encrypted by it";
                let source = io::Error::new(io::ErrorKind::Unsupported, why);
                return Err(HostError::Listen { address: address.clone(), source });
            }
            let listener = Listener::bind(address)
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
            soft: Stack::new(self.device, self.pds.into_inner())?,
            rdma,
            fencing: self.fencing,
            limits: self.limits,
            keys: self.keys,
            any_local_user: self.any_local_user,
            tls: self.tls,
            service,
            host_id: handshake::host_id(),
            unix: unix.map(|path| path.display().to_string()).unwrap_or_default(),
            sessions: Mutex::default(),
            next_id: AtomicU64::new(1),
            strangers: Strangers::new(self.limits.strangers),
            in_making: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let mut running = Running { inner: Arc::clone(&inner), listeners: Vec::new(), addresses: bound };
        for listener in listeners {
            let inner = Arc::clone(&inner);
            let handle = listener.handle().map_err(HostError::Thread)?;
            let thread = std::thread::Builder::new()
                .name("rdmabox-accept".into())
                .spawn(move || reception::accept(&inner, &listener))
                .map_err(HostError::Thread)?;
            running.listeners.push((handle, thread));
        }
        Ok(running)
    }
}

/// A host that serves. Dropping it ends every session, removes its Unix sockets and waits for its threads.
#[derive(Debug)]
pub struct Running {
    inner: Arc<Inner>,
    listeners: Vec<(ListenerHandle, JoinHandle<()>)>,
    addresses: Vec<Address>,
}

impl Running {
    /// Where it listens: as asked for, with port 0 replaced by the port that it got.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What ends its sessions one by one.
    pub fn ender(&self) -> Ender {
        Ender(Arc::downgrade(&self.inner))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        for (handle, thread) in self.listeners.drain(..) {
            handle.close();
            let _ = thread.join();
        }
        for session in self.inner.sessions.lock().values() {
            session.shutdown();
        }
        self.inner.strangers.close();
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

/// A device, and what serves the sessions on it.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) device: Arc<dyn Device>,
    pds: Vec<Arc<dyn ProtectionDomain>>,
    pub(super) rpc: RpcServer,
    /// Sessions, with those that are being made; and the most that there can be.
    pub(super) admitted: AtomicUsize,
    pub(super) max_sessions: usize,
}

impl Stack {
    fn new(device: Arc<dyn Device>, pds: Vec<Arc<dyn ProtectionDomain>>) -> Result<Stack, HostError> {
        // Completions that a session can have waiting, and some of sessions that have just ended.
        let each = 2 * (QUEUE_DEPTH + LATE_DEPTH) as usize;
        let depth = ((MAX_SESSIONS + 8) * each).min(device.attr().max_cqe as usize);
        let max_sessions = (depth / each).saturating_sub(8).min(MAX_SESSIONS);
        // One may be looking at requests that are written into memory; others have messages to take.
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(2, 4);
        let rpc = RpcServer::start(device.create_cq(depth)?, threads).map_err(HostError::Thread)?;
        Ok(Stack { device, pds, rpc, admitted: AtomicUsize::new(0), max_sessions })
    }

    /// A domain of it. There are as many as the host has.
    pub(super) fn pd(&self, domain: Domain) -> &Arc<dyn ProtectionDomain> {
        &self.pds[domain.0]
    }
}

pub(super) struct Inner {
    soft: Stack,
    rdma: Option<Stack>,
    pub(super) fencing: Fencing,
    pub(super) limits: Limits,
    pub(super) keys: Option<Arc<dyn Keyring>>,
    pub(super) any_local_user: bool,
    pub(super) tls: Option<Arc<TlsServer>>,
    pub(super) service: Arc<dyn Service>,
    pub(super) host_id: HostId,
    pub(super) unix: String,
    /// With those that are being made, until they begin to end.
    pub(super) sessions: Mutex<HashMap<u64, Arc<HostSession>>>,
    pub(super) next_id: AtomicU64,
    pub(super) strangers: Arc<Strangers>,
    pub(super) in_making: AtomicUsize,
    pub(super) stopping: AtomicBool,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Inner {
    /// What serves sessions of that kind.
    pub(super) fn stack(&self, provider: ProviderKind) -> &Stack {
        match provider {
            ProviderKind::Shm | ProviderKind::Tcp => &self.soft,
            // There is a listener of that kind only where there is a device.
            ProviderKind::Rdma => self.rdma.as_ref().unwrap_or(&self.soft),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_of_a_device_are_not_mixed_with_others() {
        let host = || Host::new().unwrap().allow_mixed_atomics(false);
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
        check(host(), AtomicScope::Device, Access::REMOTE_READ, &both).unwrap();
        check(host(), AtomicScope::Device, Access::REMOTE_ALL, &[rdma()]).unwrap();
        check(host().allow_mixed_atomics(true), AtomicScope::Device, Access::REMOTE_ALL, &both).unwrap();
    }
}
