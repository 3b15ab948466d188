//! The sockets of an NBD server.
//!
//! # Concurrency
//! One thread accepts connections, and each connection has a thread. They share the paged memory,
//! without a lock: requests of several connections for the same bytes have no order. The lock of
//! the list of connections is a leaf.

use std::{
    fmt, fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    conversation::{Conversation, Effect},
    memory::{Scratch, SharedMemory},
    protocol::NbdError,
};
use crate::memory::PagedMemory;

/// Most connections at the same time.
const MAX_CONNECTIONS: usize = 64;
/// Bytes for which the server takes memory before the client has sent them.
const PIECE: usize = 256 << 10;
/// How long a client may take for a part of the negotiation.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an error of accept, for example if there are no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A Unix socket, which only its user and root may use.
    Unix(PathBuf),
    /// A loopback address and a port. Every program of this machine can connect.
    Tcp(String),
}

/// A text is no [`NbdAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither unix:/PATH nor HOST:PORT")]
pub struct ParseNbdAddressError(String);

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
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    memory: SharedMemory,
    stops: AtomicBool,
    connections: Mutex<Vec<(u64, Stream)>>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
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
        let (listener, address) = match address {
            NbdAddress::Unix(path) => {
                let listener = bind_unix(path).map_err(failed)?;
                (Listener::Unix(listener), address.clone())
            }
            NbdAddress::Tcp(text) => {
                let all: Vec<_> = text.to_socket_addrs().map_err(failed)?.collect();
                if !all.iter().all(|address| address.ip().is_loopback()) {
                    return Err(NbdServerError::NotLoopback(address.clone()));
                }
                let listener = TcpListener::bind(&*all).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), NbdAddress::Tcp(bound.to_string()))
            }
        };
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            memory: SharedMemory::new(memory),
            stops: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = thread::Builder::new().name("nbd-accept".into());
        let acceptor = acceptor.spawn(move || accept(&listener, &accepting));
        let failed = |source| NbdServerError::Listen { address: address.clone(), source };
        Ok(NbdServer { acceptor: Some(acceptor.map_err(failed)?), address, shared })
    }

    /// The address, with the port that was chosen.
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
        // A connection ends the wait of accept.
        match &self.address {
            NbdAddress::Unix(path) => drop(UnixStream::connect(path)),
            NbdAddress::Tcp(address) => drop(TcpStream::connect(address)),
        }
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        if let NbdAddress::Unix(path) = &self.address {
            fs::remove_file(path).ok();
        }
    }
}

/// Makes a Unix socket. Replaces one that no process listens at.
fn bind_unix(path: &PathBuf) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        outcome => outcome?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
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
    stream.set_timeout(Some(NEGOTIATION_TIMEOUT))?;
    stream.write_all(&Conversation::greeting())?;
    let (mut bytes, scratch) = (Vec::new(), Scratch::new()?);
    loop {
        if !fill(stream, &mut bytes, conversation.needed())? {
            return Ok(());
        }
        let was_transmitting = conversation.is_transmitting();
        let step = conversation.advance(&bytes)?;
        if conversation.is_transmitting() && !was_transmitting {
            stream.set_timeout(None)?;
        }
        stream.write_all(&step.send)?;
        match step.effect {
            Effect::None => {}
            Effect::Close => return Ok(()),
            Effect::Read { cookie, offset, len } => {
                bytes.clear();
                bytes.resize(len as usize, 0);
                let is_done = is_done(shared.memory.read(&scratch, offset, &mut bytes));
                stream.write_all(&Conversation::reply(cookie, is_done))?;
                // An error has no data.
                stream.write_all(if is_done { &bytes } else { &[] })?;
            }
            Effect::Write { cookie, offset } => {
                let outcome = shared.memory.write(&scratch, offset, &bytes);
                stream.write_all(&Conversation::reply(cookie, is_done(outcome)))?;
            }
            Effect::Zero { cookie, offset, len } => {
                let outcome = shared.memory.zero(&scratch, offset, len);
                stream.write_all(&Conversation::reply(cookie, is_done(outcome)))?;
            }
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

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Stream {
    fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
        })
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(timeout),
            Stream::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    fn shutdown(&self) {
        // Fails if the client has closed the connection.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdAddress::Tcp(address) => f.write_str(address),
        }
    }
}

impl FromStr for NbdAddress {
    type Err = ParseNbdAddressError;

    /// Parses `unix:/PATH` or `HOST:PORT`.
    fn from_str(text: &str) -> Result<NbdAddress, ParseNbdAddressError> {
        let wrong = || ParseNbdAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| NbdAddress::Unix(path.into())).ok_or_else(wrong);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_valid = !host.is_empty() && port.parse::<u16>().is_ok();
        is_valid.then(|| NbdAddress::Tcp(text.to_owned())).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["unix:/run/nbd.sock", "127.0.0.1:10809", "localhost:0", "[::1]:10809"] {
            assert_eq!(text.parse::<NbdAddress>().expect("an address").to_string(), text);
        }
        for wrong in ["", "unix:", "unix:x", "10809", ":10809", "localhost:", "localhost:65536"] {
            assert!(wrong.parse::<NbdAddress>().is_err(), "{wrong}");
        }
    }
}
