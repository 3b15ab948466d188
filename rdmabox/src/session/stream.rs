//! Streams between client and host before they become a queue pair: TCP, TLS or Unix, with
//! deadlines.
//!
//! # Concurrency
//! One thread reads and writes a [`Stream`]. Any thread may shut it down or query its state. No
//! locks.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{geteuid, getpid},
};
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::{Address, ConnectError, ProviderKind, resolve::resolve};
use crate::{
    provider::soft::{ConnectedProcess, replace_bbr, try_often},
    tls::{TlsClient, TlsStream},
    verbs::Rendezvous,
};

/// TCP_USER_TIMEOUT: with unacknowledged data, a dead network is detected after this time.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
const KEEPALIVE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(TlsStream),
    Unix(UnixStream),
    /// TCP, to an RDMA address. The data uses the device.
    Rdma(TcpStream),
}

/// Origin of a stream. Streams of one source probably belong to one party.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// This machine, over a Unix socket.
    Local,
    /// An IP address. For IPv6 the /64 network, because one machine may own all of it.
    Address(IpAddr),
    /// The peer is gone.
    Unknown,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Local => f.write_str("this host"),
            Source::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Source::Address(address) => address.fmt(f),
            Source::Unknown => f.write_str("somewhere"),
        }
    }
}

impl Source {
    fn of(address: IpAddr) -> Source {
        Source::Address(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

/// The user id that stands for all users unknown to a user namespace.
const NOBODY: u32 = 65534;

impl Stream {
    /// Connects by `deadline`. With `tls`, over TCP only, it also runs the TLS handshake.
    pub(crate) fn connect(
        address: &Address,
        tls: Option<&TlsClient>,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Stream, ConnectError> {
        let Some(tls) = tls else { return Stream::connect_plain(address, timeout, deadline) };
        let Address::Tcp { host, .. } = address else { return Err(no_tls(address)) };
        let Stream::Tcp(stream) = Stream::connect_plain(address, timeout, deadline)? else {
            return Err(no_tls(address));
        };
        tls.connect(stream, host, deadline).map(Stream::Tls).map_err(|source| match source.kind() {
            io::ErrorKind::TimedOut => ConnectError::Timeout { address: address.clone(), timeout },
            io::ErrorKind::UnexpectedEof => ConnectError::Refused {
                address: address.clone(),
                reason: "the server closed the connection instead of shaking hands: does it speak TLS?"
                    .into(),
            },
            io::ErrorKind::InvalidData => ConnectError::Authentication {
                address: address.clone(),
                reason: source.to_string(),
                source: Some(source),
            },
            _ => ConnectError::Io { address: address.clone(), source },
        })
    }

    fn connect_plain(
        address: &Address,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Stream, ConnectError> {
        let io = |source: io::Error| match source.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                ConnectError::Timeout { address: address.clone(), timeout }
            }
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => {
                ConnectError::Unreachable { address: address.clone(), source }
            }
            _ => ConnectError::Io { address: address.clone(), source },
        };
        match address {
            Address::Unix(path) => {
                let left = deadline.saturating_duration_since(Instant::now());
                connect_unix(path, left).map(Stream::Unix).map_err(io)
            }
            Address::Tcp { host, port } | Address::Rdma { host, port } => {
                let found = resolve(host, *port, deadline).map_err(|e| match e.kind() {
                    io::ErrorKind::TimedOut => ConnectError::Timeout { address: address.clone(), timeout },
                    _ => ConnectError::UnresolvedName {
                        address: address.clone(),
                        name: host.clone(),
                        source: e,
                    },
                })?;
                if found.is_empty() {
                    return Err(ConnectError::UnresolvedName {
                        address: address.clone(),
                        name: host.clone(),
                        source: io::Error::new(io::ErrorKind::NotFound, "the host has no address"),
                    });
                }
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for candidate in found {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(ConnectError::Timeout { address: address.clone(), timeout });
                    }
                    match connect_tcp(candidate, left) {
                        Ok(stream) => {
                            return Ok(match address {
                                Address::Rdma { .. } => Stream::tuned_rdma(stream),
                                _ => Stream::tuned_tcp(stream),
                            });
                        }
                        Err(e) => last = e,
                    }
                }
                Err(io(last))
            }
        }
    }

    pub(crate) fn tuned_tcp(stream: TcpStream) -> Stream {
        tune(&stream);
        Stream::Tcp(stream)
    }

    pub(crate) fn tuned_rdma(stream: TcpStream) -> Stream {
        tune(&stream);
        Stream::Rdma(stream)
    }

    /// Returns the provider of sessions over this stream.
    pub(crate) fn provider(&self) -> ProviderKind {
        match self {
            Stream::Tcp(_) | Stream::Tls(_) => ProviderKind::Tcp,
            Stream::Unix(_) => ProviderKind::Shm,
            Stream::Rdma(_) => ProviderKind::Rdma,
        }
    }

    fn sock(&self) -> SockRef<'_> {
        match self {
            Stream::Tcp(stream) | Stream::Rdma(stream) => SockRef::from(stream),
            Stream::Tls(stream) => SockRef::from(stream.tcp()),
            Stream::Unix(stream) => SockRef::from(stream),
        }
    }

    /// Limits every later read and write; `None` removes the limit.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        // A zero timeout would mean no limit.
        let timeout = timeout.map(|t| t.max(Duration::from_millis(1)));
        self.sock().set_read_timeout(timeout)?;
        self.sock().set_write_timeout(timeout)
    }

    /// Reads exactly `out.len()` bytes by `deadline`, regardless of how slowly they arrive.
    pub(crate) fn read_exact_by(&mut self, mut out: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !out.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.set_timeout(Some(left))?;
            match self.read(out) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => out = &mut out[count..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The time is up; the next round returns the error.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends as many bytes as the socket takes without blocking.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tls(stream) => stream.send_now(bytes),
            _ => self.sock().send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
        }
    }

    /// Returns the TLS channel binding, which only the two ends of the connection know.
    pub(crate) fn binding(&self) -> Option<&[u8; 32]> {
        match self {
            Stream::Tls(stream) => Some(stream.binding()),
            _ => None,
        }
    }

    /// Stops sending, then reads until the peer closes, `deadline` passes, or too many bytes have
    /// arrived. A socket that is closed with unread bytes would drop the data that it sent last.
    pub(crate) fn linger(self, deadline: Instant) {
        const MAX_BYTES: usize = 64 << 10;
        self.shutdown_write();
        let (mut heard, mut scratch) = (0, [0; 4096]);
        while heard < MAX_BYTES {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.set_timeout(Some(left)).is_err() {
                return;
            }
            match (&*self.sock()).read(&mut scratch) {
                Ok(0) => return,
                Ok(count) => heard += count,
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(_) => return,
            }
        }
    }

    /// Ends the peer's reads. Data of the peer can still be read.
    pub(crate) fn shutdown_write(&self) {
        let _ = self.sock().shutdown(std::net::Shutdown::Write);
    }

    /// Makes the peer give up a stream that joins a session. If memory may be mapped over the
    /// stream, only the peer closes the other direction, to signal its release of the memory.
    pub(crate) fn give_up(&self) {
        if self.is_unix() { self.shutdown_write() } else { self.shutdown() }
    }

    /// Ends all reads and writes, on both sides.
    pub(crate) fn shutdown(&self) {
        let _ = self.sock().shutdown(std::net::Shutdown::Both);
    }

    /// Returns the socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) | Stream::Rdma(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.tcp().as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    /// Returns true if the peer has closed the stream or stopped sending, even if earlier bytes are
    /// still unread.
    pub(crate) fn is_over(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::RDHUP)];
        // `poll` fails only for an invalid argument or without memory; then the state is unknown.
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Returns the origin of the stream.
    pub(crate) fn source(&self) -> Source {
        let stream = match self {
            Stream::Unix(_) => return Source::Local,
            Stream::Tcp(stream) | Stream::Rdma(stream) => stream,
            Stream::Tls(stream) => stream.tcp(),
        };
        stream.peer_addr().map_or(Source::Unknown, |address| Source::of(address.ip()))
    }

    /// Returns true for a Unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }

    /// Returns true for a Unix socket whose peer runs as root or as this process's user, as the
    /// kernel reports it.
    pub(crate) fn is_of_same_user(&self) -> bool {
        let Stream::Unix(stream) = self else { return false };
        let own = geteuid();
        socket_peercred(stream)
            .is_ok_and(|peer| peer.uid.is_root() || (peer.uid == own && own.as_raw() != NOBODY))
    }

    /// Returns the process that connected a Unix stream. Returns `None` for other streams, for this
    /// process, for an ended process, and for a process of a foreign pid namespace.
    pub(crate) fn connected_process(&self) -> Option<ConnectedProcess> {
        let Stream::Unix(stream) = self else { return None };
        // Before Linux 6.5 only its number is known. While the stream is open, the process has not
        // ended, and its number was not reused.
        let by_number = || ConnectedProcess::open(socket_peercred(stream).ok()?.pid.as_raw_nonzero().get());
        let process = ConnectedProcess::of(stream).or_else(by_number)?;
        let is_other = process.pid != getpid().as_raw_nonzero().get();
        // A child may hold the socket of a process that has ended.
        (is_other && !process.has_ended() && !self.is_over()).then_some(process)
    }

    /// Describes the peer, for people.
    pub(crate) fn peer_name(&self) -> String {
        let stream = match self {
            Stream::Tcp(stream) | Stream::Rdma(stream) => stream,
            Stream::Tls(stream) => stream.tcp(),
            Stream::Unix(_) => return "this host".into(),
        };
        match stream.peer_addr() {
            Ok(addr) => format!("{}:{addr}", self.provider()),
            Err(_) => self.provider().to_string(),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Tls(stream) => Stream::Tls(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
            Stream::Rdma(stream) => Stream::Rdma(stream.try_clone()?),
        })
    }

    pub(crate) fn into_rendezvous(self) -> Rendezvous {
        match self {
            Stream::Tcp(stream) | Stream::Rdma(stream) => Rendezvous::Tcp(stream),
            Stream::Tls(stream) => Rendezvous::Tls(stream),
            Stream::Unix(stream) => Rendezvous::Unix(stream),
        }
    }
}

/// Returns the error for TLS on an address that has none.
pub(super) fn no_tls(address: &Address) -> ConnectError {
    let why = match address {
        Address::Rdma { .. } => "TLS cannot encrypt the traffic of an RDMA device: give tcp:host:port",
        _ => "a Unix socket needs no TLS, and TLS cannot encrypt mapped memory: give tcp:host:port",
    };
    ConnectError::option("tls", address, format!("TLS requires a TCP address: {why}"))
}

/// Connects within `timeout`, even if the listener's queue is full.
pub(crate) fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The send timeout also limits `connect`.
    socket.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_write_timeout(None)?;
    Ok(socket.into())
}

fn connect_tcp(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    replace_bbr(&socket);
    socket.connect_timeout(&address.into(), timeout)?;
    Ok(socket.into())
}

/// Sets options that detect a dead peer, and that resume quickly when a network recovers. Missing
/// options are skipped.
fn tune(stream: &TcpStream) {
    replace_bbr(stream);
    let sock = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 5).with_retries(3);
    for result in [
        sock.set_tcp_nodelay(true),
        sock.set_tcp_keepalive(&keepalive),
        sock.set_tcp_user_timeout(Some(USER_TIMEOUT)),
        try_often(stream),
    ] {
        if let Err(e) = result {
            log::debug!("socket option: {e}");
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) | Stream::Rdma(stream) => stream.read(buf),
            Stream::Tls(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) | Stream::Rdma(stream) => stream.write(buf),
            Stream::Tls(stream) => stream.write(buf),
            Stream::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_sources_are_addresses_and_ipv6_sources_are_networks() {
        let source = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.2"), source("192.0.2.1"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8::1"));
        assert_eq!(source("2001:db8::7").to_string(), "2001:db8::/64");
        let (a, _b) = UnixStream::pair().unwrap();
        let unix = Stream::Unix(a);
        assert_eq!(unix.source(), Source::Local);
        assert!(unix.is_of_same_user() || geteuid().as_raw() == NOBODY);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = Stream::Tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        assert!(!tcp.is_of_same_user());
        assert_eq!(tcp.source(), source("127.0.0.1"));
    }

    #[test]
    fn the_end_of_a_stream_is_seen_behind_unread_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, mut b) = (Stream::Unix(a), Stream::Unix(b));
        assert!(!a.is_over());
        b.write_all(&[1]).unwrap();
        assert!(!a.is_over());
        b.shutdown_write();
        assert!(a.is_over() && !b.is_over());
        drop(a);
        assert!(b.is_over());
    }

    #[test]
    fn only_another_process_is_a_client_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(Stream::Unix(a).connected_process().is_none(), "this process");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(Stream::Tcp(tcp).connected_process().is_none());
    }
}
