//! The host's end: what it exports, its listeners, and how it stops.
//!
//! A thread per listener accepts; a short-lived thread reads each new stream's preamble, and connects the queue pair of
//! one that joins a session, so that a slow client holds up nobody; the thread of a control stream stays for as long
//! as its session (`hosted`). Queue pairs are served by the device's engine and by the threads of the call server.

use std::{
    collections::HashMap,
    io,
    net::TcpListener,
    os::unix::{fs::FileTypeExt, net::UnixListener},
    path::PathBuf,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    Address, Ender, Export, HostError, ProviderKind, RdmaOptions, Service,
    handshake::{self, Answer, HostId, Purpose},
    hosted::{self, HostSession},
    peer::Exported,
    strangers::{Stranger, Strangers},
    stream::{self, Stream},
};
use crate::{
    memory::Memory,
    provider::{rdma, soft::SoftDevice},
    rpc::{LATE_DEPTH, QUEUE_DEPTH, RpcServer},
    verbs::{Access, AtomicScope, Device, ProtectionDomain},
};

/// Sessions at a time, with those that are being made.
pub(super) const MAX_SESSIONS: usize = 1000;
/// Streams that belong to no session yet.
const MAX_STRANGERS: usize = 256;
/// Sessions that are being made at a time. Fewer than strangers, so that the streams that they wait for can come in.
pub(super) const MAX_IN_MAKING: usize = MAX_STRANGERS / 2;
/// Time for a preamble, for a queue pair, and for all queue pairs of a session that is made.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time to find out whether somebody listens on a Unix socket.
const PROBE: Duration = Duration::from_secs(1);

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
#[derive(Debug)]
pub struct Host {
    device: Arc<SoftDevice>,
    pd: Arc<dyn ProtectionDomain>,
    rdma: RdmaOptions,
    fencing: Fencing,
    exports: Mutex<Vec<(Weak<Exported>, Access)>>,
}

impl Host {
    /// Makes a host.
    pub fn new() -> Result<Host, HostError> {
        let device = SoftDevice::new()?;
        let pd = device.alloc_pd()?;
        let (rdma, fencing) = (RdmaOptions::default(), Fencing::default());
        Ok(Host { device, pd, rdma, fencing, exports: Mutex::default() })
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

    /// Lets peers reach all of `memory`, as far as `access` goes.
    pub fn export(&self, memory: &Arc<Memory>, access: Access) -> Result<Export, HostError> {
        let region = self.pd.register(memory, 0, memory.len() as u64, access)?;
        let exported = Arc::new(Exported { memory: Arc::clone(memory), region, rdma: OnceLock::new() });
        self.exports.lock().push((Arc::downgrade(&exported), access));
        Ok(Export(exported))
    }

    /// Opens the RDMA device, and registers with it what is exported: its pages are pinned from then on.
    fn open_rdma(&self, address: &Address) -> Result<Stack, HostError> {
        let device =
            rdma::open(&self.rdma).map_err(|source| HostError::Rdma { address: address.clone(), source })?;
        let stack = Stack::new(device)?;
        for (export, access) in &*self.exports.lock() {
            let Some(export) = export.upgrade() else { continue };
            let len = export.memory.len() as u64;
            let region = stack.pd.register(&export.memory, 0, len, *access)?;
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

    /// Listens on every address, or on none if one fails, and serves on threads of its own. The socket file of a
    /// dead host is replaced; that of a live one is an error.
    pub fn listen(self, addresses: &[Address], service: Arc<dyn Service>) -> Result<Running, HostError> {
        let mut listeners = Vec::new();
        for address in addresses {
            let listener = Listener::bind(address)
                .map_err(|source| HostError::Listen { address: address.clone(), source })?;
            listeners.push(listener);
        }
        let rdma = addresses.iter().find(|address| address.provider() == ProviderKind::Rdma);
        let rdma = rdma.map(|address| self.open_rdma(address)).transpose()?;
        let bound: Vec<Address> = listeners.iter().map(|l| l.address.clone()).collect();
        let unix = bound.iter().find_map(|address| match address {
            Address::Unix(path) => std::path::absolute(path).ok(),
            Address::Tcp { .. } | Address::Rdma { .. } => None,
        });
        let inner = Arc::new(Inner {
            soft: Stack::with_pd(self.device, self.pd)?,
            rdma,
            fencing: self.fencing,
            service,
            host_id: handshake::host_id(),
            unix: unix.map(|path| path.display().to_string()).unwrap_or_default(),
            sessions: Mutex::default(),
            next_id: AtomicU64::new(1),
            strangers: Strangers::new(MAX_STRANGERS),
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
                .spawn(move || accept(&inner, &listener))
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
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) rpc: RpcServer,
    /// Sessions, with those that are being made; and the most that there can be.
    pub(super) admitted: AtomicUsize,
    pub(super) max_sessions: usize,
}

impl Stack {
    fn new(device: Arc<dyn Device>) -> Result<Stack, HostError> {
        let pd = device.alloc_pd()?;
        Stack::with_pd(device, pd)
    }

    fn with_pd(device: Arc<dyn Device>, pd: Arc<dyn ProtectionDomain>) -> Result<Stack, HostError> {
        // Completions that a session can have waiting, and some of sessions that have just ended.
        let each = 2 * (QUEUE_DEPTH + LATE_DEPTH) as usize;
        let depth = ((MAX_SESSIONS + 8) * each).min(device.attr().max_cqe as usize);
        let max_sessions = (depth / each).saturating_sub(8).min(MAX_SESSIONS);
        // One may be looking at requests that are written into memory; others have messages to take.
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(2, 4);
        let rpc = RpcServer::start(device.create_cq(depth)?, threads).map_err(HostError::Thread)?;
        Ok(Stack { device, pd, rpc, admitted: AtomicUsize::new(0), max_sessions })
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    /// Where peers find each other that go on over RDMA.
    Rdma(TcpListener),
}

#[derive(Debug)]
struct Listener {
    socket: Socket,
    address: Address,
    file: Option<Arc<SocketFile>>,
}

/// The file of a Unix socket. It is removed once: later another host may have one of that name.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    removed: AtomicBool,
}

impl SocketFile {
    fn remove(&self) {
        if !self.removed.swap(true, Ordering::AcqRel) {
            // Somebody may have done so by hand.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// What it takes to stop a listener from another thread.
#[derive(Debug)]
struct ListenerHandle {
    socket: socket2::Socket,
    file: Option<Arc<SocketFile>>,
}

impl ListenerHandle {
    fn close(&self) {
        // While somebody still listens there: a file that nobody listens at is anybody's to replace.
        if let Some(file) = &self.file {
            file.remove();
        }
        // Makes accept return.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Listener {
    fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => {
                let (socket, host, port) = bind_tcp(host, *port)?;
                let address = Address::Tcp { host, port };
                Ok(Listener { socket: Socket::Tcp(socket), address, file: None })
            }
            Address::Rdma { host, port } => {
                let (socket, host, port) = bind_tcp(host, *port)?;
                let address = Address::Rdma { host, port };
                Ok(Listener { socket: Socket::Rdma(socket), address, file: None })
            }
            Address::Unix(path) => {
                if let Ok(meta) = std::fs::symlink_metadata(path) {
                    if !meta.file_type().is_socket() {
                        return Err(io::Error::new(
                            io::ErrorKind::AlreadyExists,
                            "there is a file of that name",
                        ));
                    }
                    match stream::connect_unix(path, PROBE) {
                        Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
                            if e.kind() != io::ErrorKind::ConnectionRefused {
                                return Err(e);
                            }
                            std::fs::remove_file(path)?;
                        }
                        // A listener whose queue is full is one.
                        _ => {
                            return Err(io::Error::new(
                                io::ErrorKind::AddrInUse,
                                "a server is listening there",
                            ));
                        }
                    }
                }
                let socket = Socket::Unix(UnixListener::bind(path)?);
                let file = SocketFile { path: path.clone(), removed: AtomicBool::new(false) };
                Ok(Listener { socket, address: address.clone(), file: Some(Arc::new(file)) })
            }
        }
    }

    fn handle(&self) -> io::Result<ListenerHandle> {
        let socket = match &self.socket {
            Socket::Tcp(socket) | Socket::Rdma(socket) => socket.try_clone()?.into(),
            Socket::Unix(socket) => socket.try_clone()?.into(),
        };
        Ok(ListenerHandle { socket, file: self.file.clone() })
    }

    fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => socket.accept().map(|(stream, _)| Stream::tuned_tcp(stream)),
            Socket::Rdma(socket) => socket.accept().map(|(stream, _)| Stream::tuned_rdma(stream)),
            Socket::Unix(socket) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

/// With the host's name, and the port that it got.
fn bind_tcp(host: &str, port: u16) -> io::Result<(TcpListener, String, u16)> {
    let socket = TcpListener::bind((host, port))?;
    let port = socket.local_addr()?.port();
    Ok((socket, host.to_owned(), port))
}

pub(super) struct Inner {
    soft: Stack,
    rdma: Option<Stack>,
    pub(super) fencing: Fencing,
    pub(super) service: Arc<dyn Service>,
    pub(super) host_id: HostId,
    pub(super) unix: String,
    /// With those that are being made, until they begin to end.
    pub(super) sessions: Mutex<HashMap<u64, Arc<HostSession>>>,
    pub(super) next_id: AtomicU64,
    strangers: Arc<Strangers>,
    pub(super) in_making: AtomicUsize,
    pub(super) stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
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

fn accept(inner: &Arc<Inner>, listener: &Listener) {
    while !inner.stopping.load(Ordering::SeqCst) {
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(_) if inner.stopping.load(Ordering::SeqCst) => return,
            Err(e) => {
                log::warn!("{}: accept: {e}", listener.address);
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let stranger = match inner.strangers.admit(&stream) {
            Ok(stranger) => stranger,
            Err(e) => {
                log::warn!("{}: connection refused: {e}", listener.address);
                continue;
            }
        };
        let thread = std::thread::Builder::new().name("rdmabox-session".into()).spawn({
            let inner = Arc::clone(inner);
            move || receive(&inner, stream, stranger)
        });
        match thread {
            Ok(thread) => {
                let mut threads = inner.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(e) => log::error!("cannot start a thread for a connection: {e}"),
        }
    }
}

/// Reads a stream's preamble and sends it where it belongs.
fn receive(inner: &Arc<Inner>, mut stream: Stream, stranger: Stranger) {
    let name = stream.peer_name();
    let deadline = Instant::now() + HANDSHAKE;
    // The limit is that of the answers, too.
    let purpose = stream
        .set_timeout(Some(HANDSHAKE))
        .and_then(|()| handshake::receive_preamble(&mut stream, deadline))
        .and_then(|purpose| stream.set_timeout(Some(HANDSHAKE)).map(|()| purpose));
    match purpose {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            log::debug!("{name}: closed before it said anything")
        }
        Err(e) => {
            log::warn!("{name}: connection closed: {e}");
            if e.kind() == io::ErrorKind::Unsupported {
                let answer = Answer { ok: false, text: e.to_string(), ..Answer::default() };
                // It may be gone already.
                let _ = handshake::send_answer(&mut stream, &answer);
            }
        }
        Ok(Purpose::Join { token, index }) => {
            // Every token is looked at, so that the time tells nothing.
            let session = inner.sessions.lock().values().fold(None, |found, session| {
                if *session.token() == token { Some(Arc::clone(session)) } else { found }
            });
            let joined = match session {
                Some(session) => {
                    // It keeps its place until it is connected, but its session ends it.
                    stranger.adopt();
                    session.join(inner, index, stream)
                }
                None => Err("it joins no session".into()),
            };
            if let Err(reason) = joined {
                log::warn!("{name}: connection closed: {reason}");
            }
        }
        Ok(Purpose::Probe) => {
            let answer =
                Answer { ok: true, host: inner.host_id, text: inner.unix.clone(), ..Answer::default() };
            if let Err(e) = handshake::send_answer(&mut stream, &answer) {
                log::debug!("{name}: asked who this is and went: {e}");
            }
        }
        Ok(Purpose::Control { queue_pairs, fetch }) => {
            if let Err(e) = hosted::session(inner, stream, stranger, queue_pairs, fetch) {
                log::warn!("{name}: no session: {e}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_stops_leaves_the_socket_of_its_successor_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        let old = Listener::bind(&address).unwrap();
        let handle = old.handle().unwrap();
        assert_eq!(Listener::bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        handle.close();
        assert!(!path.exists());
        let new = Listener::bind(&address).unwrap();
        // As the thread that accepts ends, which takes its time.
        drop((old, handle));
        stream::connect_unix(&path, PROBE).unwrap();
        drop(new);
        assert!(!path.exists());
    }
}
