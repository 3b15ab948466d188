//! The sockets of an NBD server.
//!
//! # Concurrency
//! One thread accepts connections, and each connection has a thread. They share the paged memory,
//! without a lock: requests of several connections for the same bytes have no order. The lock of
//! the list of connections is a leaf.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    address::NbdAddress,
    conversation::{Conversation, Effect},
    memory::{Scratch, SharedMemory},
    protocol::NbdError,
    room::{Room, SHORT},
    socket::{Listener, SocketFile, Stream},
};
use crate::pager::PagedMemory;

/// Most connections at the same time.
const MAX_CONNECTIONS: usize = 64;
/// Bytes for which the server takes memory before the client has sent them.
const PIECE: usize = 256 << 10;
/// How long a client may take for a part of the negotiation.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send the next bytes of a long request.
const PAYLOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to receive the next bytes of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after an error of accept, for example if there are no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdServerError {
    /// The address is not on this machine.
    #[error("{0} is no loopback address: NBD has no keys, so only programs of this machine may connect")]
    NotLoopback(NbdAddress),
    /// The socket could not be made.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: NbdAddress,
        /// The reason.
        source: io::Error,
    },
}

/// A server of one export, until it is dropped.
#[derive(Debug)]
pub struct NbdServer {
    address: NbdAddress,
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    acceptor: Option<JoinHandle<()>>,
    _file: Option<SocketFile>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    memory: SharedMemory,
    stops: AtomicBool,
    connections: Mutex<Vec<(u64, Stream)>>,
    room: Room,
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Protocol(#[from] NbdError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl NbdServer {
    /// Starts to serve memory under a name.
    ///
    /// # Errors
    /// [`NbdServerError`]; nothing is left behind.
    pub fn listen(
        address: &NbdAddress,
        name: &str,
        memory: PagedMemory,
    ) -> Result<NbdServer, NbdServerError> {
        let failed = |source| NbdServerError::Listen { address: address.clone(), source };
        let (listener, file, address) = match address {
            NbdAddress::Unix(path) => {
                let (listener, file) = Listener::unix(path).map_err(failed)?;
                (listener, Some(file), address.clone())
            }
            NbdAddress::Tcp(text) => {
                let all: Vec<_> = text.to_socket_addrs().map_err(failed)?.collect();
                if !all.iter().all(|address| address.ip().is_loopback()) {
                    return Err(NbdServerError::NotLoopback(address.clone()));
                }
                let listener = TcpListener::bind(&*all).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), None, NbdAddress::Tcp(bound.to_string()))
            }
        };
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            memory: SharedMemory::new(memory),
            stops: AtomicBool::new(false),
            connections: Mutex::default(),
            room: Room::new(),
        });
        let listener = Arc::new(listener);
        let (accepting, waits) = (Arc::clone(&shared), Arc::clone(&listener));
        let acceptor = thread::Builder::new().name("nbd-accept".into());
        let acceptor = acceptor.spawn(move || accept(&waits, &accepting));
        let failed = |source| NbdServerError::Listen { address: address.clone(), source };
        let acceptor = Some(acceptor.map_err(failed)?);
        Ok(NbdServer { acceptor, address, shared, listener, _file: file })
    }

    /// Returns the address, with the port that was chosen.
    pub fn address(&self) -> &NbdAddress {
        &self.address
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::SeqCst);
        for (_, stream) in self.shared.connections.lock().iter() {
            stream.shutdown();
        }
        self.listener.stop();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
    }
}

/// Accepts connections until the server ends. Waits for the ends of their threads.
fn accept(listener: &Listener, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut number = 0;
    loop {
        let stream = listener.accept();
        if shared.stops.load(Ordering::SeqCst) {
            break;
        }
        threads.retain(|thread| !thread.is_finished());
        let started = stream.and_then(|stream| {
            if threads.len() >= MAX_CONNECTIONS {
                return Err(io::Error::other("there are too many NBD connections"));
            }
            number += 1;
            start(number, stream, shared)
        });
        match started {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                log::warn!("an NBD connection is refused: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// Starts the thread of a connection.
fn start(number: u64, mut stream: Stream, shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let copy = stream.try_clone()?;
    let shared = Arc::clone(shared);
    thread::Builder::new().name("nbd".into()).spawn(move || {
        shared.connections.lock().push((number, copy));
        // The end of the server may have passed the list before.
        if !shared.stops.load(Ordering::SeqCst)
            && let Err(error) = converse(&mut stream, &shared)
        {
            log::warn!("an NBD connection ended: {error}");
        }
        shared.connections.lock().retain(|(other, _)| *other != number);
        stream.shutdown();
    })
}

/// Serves a connection until its end.
fn converse(stream: &mut Stream, shared: &Shared) -> Result<(), ConnectionError> {
    let mut conversation = Conversation::new(&shared.name, shared.memory.len() as u64);
    stream.set_read_timeout(Some(NEGOTIATION_TIMEOUT))?;
    stream.set_write_timeout(REPLY_TIMEOUT)?;
    stream.write_all(&Conversation::greeting())?;
    let (mut bytes, scratch) = (Vec::new(), Scratch::new()?);
    loop {
        // A client that stops in a long request would keep the room of others.
        let room = shared.room.take(conversation.needed());
        if room.is_some() {
            stream.set_read_timeout(Some(PAYLOAD_TIMEOUT))?;
        }
        if !fill(stream, &mut bytes, conversation.needed())? {
            return Ok(());
        }
        let was_transmitting = conversation.is_transmitting();
        let step = conversation.advance(&bytes)?;
        if room.is_some() || conversation.is_transmitting() && !was_transmitting {
            stream.set_read_timeout(None)?;
        }
        stream.write_all(&step.send)?;
        if step.effect == Effect::Close {
            return Ok(());
        }
        carry_out(step.effect, stream, &mut bytes, &scratch, shared)?;
        // Before the room is given up.
        bytes.clear();
        bytes.shrink_to(SHORT);
        drop(room);
    }
}

/// Carries a request out, and sends the reply. `bytes` has the bytes of a WRITE.
fn carry_out(
    effect: Effect,
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    scratch: &Scratch,
    shared: &Shared,
) -> io::Result<()> {
    match effect {
        Effect::None | Effect::Close => Ok(()),
        Effect::Read { cookie, offset, len } => {
            let _room = shared.room.take(len as usize);
            bytes.clear();
            bytes.resize(len as usize, 0);
            let is_done = is_done(shared.memory.read(scratch, offset, bytes));
            stream.write_all(&Conversation::reply(cookie, is_done))?;
            // An error has no data.
            let sent = stream.write_all(if is_done { bytes } else { &[] });
            // Before the room is given up.
            bytes.clear();
            bytes.shrink_to(SHORT);
            sent
        }
        Effect::Write { cookie, offset } => {
            let outcome = shared.memory.write(scratch, offset, bytes);
            stream.write_all(&Conversation::reply(cookie, is_done(outcome)))
        }
        Effect::Zero { cookie, offset, len } => {
            let outcome = shared.memory.zero(scratch, offset, len);
            stream.write_all(&Conversation::reply(cookie, is_done(outcome)))
        }
    }
}

/// Reads `len` bytes. Returns false if the client closed the connection before the first one.
fn fill(stream: &mut Stream, bytes: &mut Vec<u8>, len: usize) -> io::Result<bool> {
    bytes.clear();
    while bytes.len() < len {
        let begin = bytes.len();
        bytes.resize(len.min(begin + PIECE), 0);
        let mut rest = &mut bytes[begin..];
        while !rest.is_empty() {
            match stream.read(rest) {
                Ok(0) if rest.len() == len.min(PIECE) && begin == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => rest = &mut rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(true)
}

/// Logs the error of an access.
fn is_done(outcome: io::Result<()>) -> bool {
    if let Err(error) = &outcome {
        log::error!("an access to paged memory failed: {error}");
    }
    outcome.is_ok()
}
