//! The host's end: listeners, and the life of its sessions.
//!
//! A thread per listener accepts; a short-lived thread reads each new stream's preamble, so that a slow client holds
//! up nobody; the thread of a control stream stays for as long as its session. Queue pairs are served by the
//! device's engine and by the threads of the call server.

use std::{
    collections::HashMap,
    io::{self, Read},
    net::TcpListener,
    os::unix::{fs::FileTypeExt, net::UnixListener},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

use super::{
    Address, Export, HostError, Peer, ProviderKind, Service,
    handshake::{self, Answer, HostId, Purpose, Token},
    stream::Stream,
};
use crate::{
    memory::Memory,
    provider::soft::SoftDevice,
    rpc::{Handler, QUEUE_DEPTH, Reason, RpcServer},
    verbs::{
        Access, CompletionQueue, Device, Progress, ProtectionDomain, QpCaps, QpInit, QueuePair, VerbsError,
    },
};

/// Sessions at a time.
const MAX_SESSIONS: usize = 1000;
/// Streams whose preamble has not been read.
const MAX_STRANGERS: usize = 256;
/// Time for a preamble, and for all queue pairs of a session to connect.
const HANDSHAKE: Duration = Duration::from_secs(5);
const MAX_QUEUE_PAIRS: u32 = 16;

/// A host that does not listen yet: a place to export memory from.
#[derive(Debug)]
pub struct Host {
    device: Arc<SoftDevice>,
    pd: Arc<dyn ProtectionDomain>,
}

impl Host {
    /// Makes a host.
    pub fn new() -> Result<Host, HostError> {
        let device = SoftDevice::new()?;
        let pd = device.alloc_pd()?;
        Ok(Host { device, pd })
    }

    /// Lets peers reach all of `memory`, as far as `access` goes.
    pub fn export(&self, memory: &Arc<Memory>, access: Access) -> Result<Export, HostError> {
        let region = self.pd.register(memory, 0, memory.len() as u64, access)?;
        Ok(Export { memory: Arc::clone(memory), region })
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
        let bound: Vec<Address> = listeners.iter().map(|l| l.address.clone()).collect();
        let unix = bound.iter().find_map(|address| match address {
            Address::Unix(path) => std::path::absolute(path).ok(),
            Address::Tcp { .. } => None,
        });
        let cq = self.device.create_cq((MAX_SESSIONS + 8) * 2 * QUEUE_DEPTH as usize)?;
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(4);
        let rpc = RpcServer::start(cq, threads).map_err(HostError::Thread)?;
        let inner = Arc::new(Inner {
            device: self.device,
            pd: self.pd,
            service,
            rpc,
            host_id: handshake::host_id(),
            unix: unix.map(|path| path.display().to_string()).unwrap_or_default(),
            joining: Mutex::default(),
            sessions: Mutex::default(),
            next_id: AtomicU64::new(1),
            strangers: AtomicUsize::new(0),
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
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        for (handle, thread) in self.listeners.drain(..) {
            handle.close();
            let _ = thread.join();
        }
        for session in self.inner.sessions.lock().values() {
            session.control.shutdown();
        }
        self.inner.joining.lock().clear();
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

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[derive(Debug)]
struct Listener {
    socket: Socket,
    address: Address,
}

/// What it takes to stop a listener from another thread.
#[derive(Debug)]
struct ListenerHandle {
    socket: socket2::Socket,
    path: Option<PathBuf>,
}

impl ListenerHandle {
    fn close(&self) {
        // Makes accept return.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => {
                let socket = TcpListener::bind((host.as_str(), *port))?;
                let port = socket.local_addr()?.port();
                Ok(Listener {
                    socket: Socket::Tcp(socket),
                    address: Address::Tcp { host: host.clone(), port },
                })
            }
            Address::Unix(path) => {
                if let Ok(meta) = std::fs::symlink_metadata(path) {
                    if !meta.file_type().is_socket() {
                        return Err(io::Error::new(
                            io::ErrorKind::AlreadyExists,
                            "there is a file of that name",
                        ));
                    }
                    match std::os::unix::net::UnixStream::connect(path) {
                        Ok(_) => {
                            return Err(io::Error::new(
                                io::ErrorKind::AddrInUse,
                                "a server is listening there",
                            ));
                        }
                        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                        Err(e) => return Err(e),
                    }
                }
                let socket = Socket::Unix(UnixListener::bind(path)?);
                Ok(Listener { socket, address: address.clone() })
            }
        }
    }

    fn handle(&self) -> io::Result<ListenerHandle> {
        let (socket, path) = match (&self.socket, &self.address) {
            (Socket::Tcp(socket), _) => (socket.try_clone()?.into(), None),
            (Socket::Unix(socket), Address::Unix(path)) => (socket.try_clone()?.into(), Some(path.clone())),
            (Socket::Unix(socket), Address::Tcp { .. }) => (socket.try_clone()?.into(), None),
        };
        Ok(ListenerHandle { socket, path })
    }

    fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => socket.accept().map(|(stream, _)| Stream::accepted_tcp(stream)),
            Socket::Unix(socket) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Gone already when the host was stopped in order.
            let _ = std::fs::remove_file(path);
        }
    }
}

struct Inner {
    device: Arc<SoftDevice>,
    pd: Arc<dyn ProtectionDomain>,
    service: Arc<dyn Service>,
    rpc: RpcServer,
    host_id: HostId,
    unix: String,
    joining: Mutex<HashMap<Token, mpsc::Sender<(u32, Stream)>>>,
    sessions: Mutex<HashMap<u64, Arc<HostSession>>>,
    next_id: AtomicU64,
    strangers: AtomicUsize,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("rpc", &self.rpc)
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

/// A session at the host.
struct HostSession {
    peer: Peer,
    service: Arc<dyn Service>,
    control: Stream,
    /// True while calls may run; each holds it for reading.
    open: RwLock<bool>,
}

impl std::fmt::Debug for HostSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSession").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Handler for HostSession {
    fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), String> {
        let open = self.open.read();
        if !*open {
            return Err("the session is closed".into());
        }
        self.service.call(&self.peer, request, reply)
    }

    fn end(&self, reason: Reason<'_>) {
        match reason {
            // The end of the control stream tells the same, and that is logged.
            Reason::Gone => {}
            Reason::Misbehaved(why) => log::warn!("{}: ending: {why}", self.peer),
        }
        self.control.shutdown();
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
        if inner.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
            inner.strangers.fetch_sub(1, Ordering::AcqRel);
            log::warn!("{}: too many connections at once: one refused", listener.address);
            continue;
        }
        let thread = std::thread::Builder::new().name("rdmabox-session".into()).spawn({
            let inner = Arc::clone(inner);
            move || receive(&inner, stream)
        });
        match thread {
            Ok(thread) => {
                let mut threads = inner.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(e) => {
                inner.strangers.fetch_sub(1, Ordering::AcqRel);
                log::error!("cannot start a thread for a connection: {e}");
            }
        }
    }
}

/// Reads a stream's preamble and sends it where it belongs.
fn receive(inner: &Arc<Inner>, mut stream: Stream) {
    let name = stream.peer_name();
    let purpose = stream.set_timeout(Some(HANDSHAKE)).and_then(|()| handshake::receive_preamble(&mut stream));
    inner.strangers.fetch_sub(1, Ordering::AcqRel);
    match purpose {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            log::debug!("{name}: closed before it said anything")
        }
        Err(e) => log::warn!("{name}: connection closed: {e}"),
        Ok(Purpose::Join { token, index }) => {
            let joining = inner.joining.lock().get(&token).cloned();
            match joining {
                // Fails only if that session has been given up meanwhile.
                Some(sender) => drop(sender.send((index, stream))),
                None => log::warn!("{name}: connection closed: it joins no session"),
            }
        }
        Ok(Purpose::Probe) => {
            let answer =
                Answer { ok: true, host: inner.host_id, text: inner.unix.clone(), ..Answer::default() };
            if let Err(e) = handshake::send_answer(&mut stream, &answer) {
                log::debug!("{name}: asked who this is and went: {e}");
            }
        }
        Ok(Purpose::Control { queue_pairs }) => {
            if let Err(e) = session(inner, stream, queue_pairs) {
                log::warn!("{name}: no session: {e}");
            }
        }
    }
}

/// Makes a session, and stays until it is over.
fn session(inner: &Arc<Inner>, mut control: Stream, queue_pairs: u32) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let refuse = |control: &mut Stream, reason: String| {
        let answer = Answer { ok: false, text: reason.clone(), ..Answer::default() };
        // The client may be gone; the reason is logged in any case.
        let _ = handshake::send_answer(control, &answer);
        Err(reason)
    };
    if !(1..=MAX_QUEUE_PAIRS).contains(&queue_pairs) {
        return refuse(&mut control, format!("{queue_pairs} queue pairs: choose 1 to {MAX_QUEUE_PAIRS}"));
    }
    if inner.sessions.lock().len() >= MAX_SESSIONS || inner.stopping.load(Ordering::SeqCst) {
        return refuse(&mut control, format!("the server takes no more than {MAX_SESSIONS} sessions"));
    }
    let mut token = Token::default();
    getrandom::fill(&mut token).map_err(|e| text(&e))?;
    let (sender, streams) = mpsc::channel();
    inner.joining.lock().insert(token, sender);
    let answer = Answer { ok: true, token, host: inner.host_id, text: inner.unix.clone() };
    let made = handshake::send_answer(&mut control, &answer)
        .map_err(|e| text(&e))
        .and_then(|()| assemble(inner, &control, &streams, queue_pairs));
    inner.joining.lock().remove(&token);
    let (session, queue_pairs) = match made {
        Ok(made) => made,
        Err(reason) => return refuse(&mut control, reason),
    };
    let id = session.peer.id;
    inner.sessions.lock().insert(id, Arc::clone(&session));
    log::info!("{}: connected", session.peer);

    if handshake::send_answer(&mut control, &Answer { ok: true, ..Answer::default() }).is_ok() {
        // A host that is being stopped may have missed this session when it closed them all.
        if !inner.stopping.load(Ordering::SeqCst) {
            watch(&mut control);
        }
    }

    // Order matters: no new call, no running call, no queue pair; then the service may reuse what it held.
    *session.open.write() = false;
    for (index, qp) in queue_pairs.iter().enumerate() {
        if index == 0 {
            inner.rpc.remove(qp.qp_num());
        }
        qp.to_error();
    }
    drop(queue_pairs);
    inner.sessions.lock().remove(&id);
    inner.service.disconnected(&session.peer);
    log::info!("{}: closed", session.peer);
    Ok(())
}

/// Returns at the end of the control stream. Clients say nothing on it.
fn watch(control: &mut Stream) {
    if control.set_timeout(None).is_err() {
        return;
    }
    let mut byte = [0];
    loop {
        match control.read(&mut byte) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(1) => {
                log::warn!("unexpected data on a control stream: session ended");
                return;
            }
            _ => return,
        }
    }
}

type Assembled = (Arc<HostSession>, Vec<Arc<dyn QueuePair>>);

/// Connects the queue pairs of a session as their streams come in. Index 0 is for calls.
fn assemble(
    inner: &Arc<Inner>,
    control: &Stream,
    streams: &mpsc::Receiver<(u32, Stream)>,
    queue_pairs: u32,
) -> Result<Assembled, String> {
    let provider = match control {
        Stream::Unix(_) => ProviderKind::Shm,
        Stream::Tcp(_) => ProviderKind::Tcp,
    };
    let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
    let session = Arc::new(HostSession {
        peer: Peer { id, provider, name: control.peer_name() },
        service: Arc::clone(&inner.service),
        control: control.try_clone().map_err(|e| e.to_string())?,
        open: RwLock::new(false),
    });
    // Data queue pairs here are only acted upon: nothing is posted on them.
    let sink: Arc<dyn CompletionQueue> = inner.device.create_cq(16).map_err(|e| e.to_string())?;
    let deadline = Instant::now() + HANDSHAKE;
    let mut made: Vec<Option<Arc<dyn QueuePair>>> = vec![None; queue_pairs as usize + 1];
    let connect = |made: &mut Vec<Option<Arc<dyn QueuePair>>>| -> Result<(), String> {
        while made.iter().any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (index, stream) = streams
                .recv_timeout(left)
                .map_err(|_| "the client did not connect all its queue pairs".to_string())?;
            let place = made.get_mut(index as usize).filter(|place| place.is_none());
            let Some(place) = place else { return Err(format!("no place for queue pair {index}")) };
            let unix = matches!(stream, Stream::Unix(_));
            if unix != (provider == ProviderKind::Shm) {
                return Err("a queue pair came in on another kind of socket".into());
            }
            let qp = queue_pair(inner, &session, &sink, index == 0).map_err(|e| e.to_string())?;
            *place = Some(Arc::clone(&qp));
            qp.connect(stream.into_rendezvous(), left).map_err(|e| e.to_string())?;
        }
        Ok(())
    };
    let connected = connect(&mut made);
    let queue_pairs: Vec<_> = made.iter().flatten().cloned().collect();
    let result = connected.and_then(|()| {
        inner.service.connected(&session.peer)?;
        *session.open.write() = true;
        Ok(())
    });
    match result {
        Ok(()) => Ok((session, queue_pairs)),
        Err(reason) => {
            for qp in &queue_pairs {
                inner.rpc.remove(qp.qp_num());
                qp.to_error();
            }
            Err(reason)
        }
    }
}

fn queue_pair(
    inner: &Inner,
    session: &Arc<HostSession>,
    sink: &Arc<dyn CompletionQueue>,
    calls: bool,
) -> Result<Arc<dyn QueuePair>, VerbsError> {
    if calls {
        let cq = inner.rpc.cq();
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        let qp = inner.pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller })?;
        let handler: Arc<dyn Handler> = Arc::<HostSession>::clone(session);
        inner.rpc.add(&*inner.pd, Arc::clone(&qp), handler)?;
        return Ok(qp);
    }
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() };
    let (send_cq, recv_cq) = (Arc::clone(sink), Arc::clone(sink));
    inner.pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Engine })
}
