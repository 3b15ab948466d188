//! A connected stream socket with vectored non-blocking I/O, descriptor passing on Unix sockets,
//! and optional TLS.
//!
//! The functions are thin wrappers around system calls. Callers guarantee that the memory may be
//! accessed.
//!
//! # Concurrency
//! No locks, except inside the TLS channel. The queue pair serializes sends and receives.

use std::{
    io,
    net::TcpStream,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{congestion, connected_process::ConnectedProcess};
use crate::{
    mapping::IoVec,
    tls::Channel,
    verbs::{Rendezvous, VerbsError},
};

/// Control data of one message. A message carries at most one descriptor; space for more makes a
/// surplus visible.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    kind: Kind,
    /// True if descriptors are expected. Otherwise the kernel drops them, and this process never
    /// owns them. Closing a received descriptor could block, for example for a file of a FUSE mount
    /// that does not respond.
    takes_descriptors: bool,
}

/// Transport of the bytes.
#[derive(Debug)]
enum Kind {
    Tcp,
    Unix,
    Tls(Arc<Channel>),
}

impl Socket {
    /// Takes over a rendezvous stream. It stays blocking, with `timeout` on every call.
    pub(crate) fn new(
        stream: Rendezvous,
        timeout: Duration,
        takes_descriptors: bool,
    ) -> Result<Socket, VerbsError> {
        let (fd, kind) = match stream {
            Rendezvous::Tcp(stream) => (tuned(stream)?, Kind::Tcp),
            Rendezvous::Tls(stream) => {
                let (stream, channel) = stream.into_parts();
                channel.widen();
                (tuned(stream)?, Kind::Tls(channel))
            }
            Rendezvous::Unix(stream) => (OwnedFd::from(stream), Kind::Unix),
        };
        let socket = Socket { fd, kind, takes_descriptors };
        socket.set_timeouts(Some(timeout))?;
        Ok(socket)
    }

    /// Ends the handshake and makes the socket non-blocking.
    pub(crate) fn into_nonblocking(self) -> Result<Socket, VerbsError> {
        let sock = socket2::SockRef::from(&self.fd);
        sock.set_nonblocking(true).map_err(|e| VerbsError::os("fcntl(O_NONBLOCK)", e))?;
        self.set_timeouts(None)?;
        Ok(self)
    }

    fn set_timeouts(&self, timeout: Option<Duration>) -> Result<(), VerbsError> {
        let sock = socket2::SockRef::from(&self.fd);
        sock.set_nonblocking(timeout.is_none()).map_err(|e| VerbsError::os("fcntl(O_NONBLOCK)", e))?;
        sock.set_read_timeout(timeout).map_err(|e| VerbsError::os("setsockopt(SO_RCVTIMEO)", e))?;
        sock.set_write_timeout(timeout).map_err(|e| VerbsError::os("setsockopt(SO_SNDTIMEO)", e))
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.kind, Kind::Unix)
    }

    /// Returns the process that connected a Unix socket, if the kernel can name it here.
    pub(crate) fn connected_process(&self) -> Option<ConnectedProcess> {
        self.is_unix().then(|| ConnectedProcess::of(&self.fd))?
    }

    /// Returns true if received bytes exist that epoll does not report.
    pub(crate) fn holds_input(&self) -> bool {
        match &self.kind {
            Kind::Tcp | Kind::Unix => false,
            Kind::Tls(channel) => channel.holds_input(),
        }
    }

    /// Returns true if accepted output has not been written to the socket.
    pub(crate) fn holds_output(&self) -> bool {
        match &self.kind {
            Kind::Tcp | Kind::Unix => false,
            Kind::Tls(channel) => channel.holds_output(),
        }
    }

    /// Writes accepted output to the socket. Returns false if the socket takes no more.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        match &self.kind {
            Kind::Tcp | Kind::Unix => Ok(true),
            Kind::Tls(channel) => channel.flush(&self.fd),
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sends as many bytes as possible. A descriptor travels with the first byte.
    ///
    /// # Safety
    /// Every vector is readable for its length.
    pub(crate) unsafe fn send(
        &self,
        vectors: &[IoVec],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<usize> {
        if let Kind::Tls(channel) = &self.kind {
            // SAFETY: the caller guarantees that the vectors are readable.
            return unsafe { channel.send(&self.fd, vectors) };
        }
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: msghdr is plain data; zero is a valid value for each field.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_ptr().cast_mut().cast();
        message.msg_iovlen = vectors.len();
        if let Some(descriptor) = descriptor {
            let raw = descriptor.as_raw_fd();
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: the control buffer is aligned and larger than the header and data of one
            // descriptor.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
                std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), raw);
            }
        }
        // SAFETY: the message refers to live buffers, which the kernel only reads.
        let sent = unsafe { libc::sendmsg(self.raw_fd(), &message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Receives the available bytes. `Ok(0)` means the end of the stream. Appends descriptors to
    /// `descriptors`.
    ///
    /// # Safety
    /// Every vector is writable for its length, and no other code depends on the bytes.
    pub(crate) unsafe fn receive(
        &self,
        vectors: &[IoVec],
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        if let Kind::Tls(channel) = &self.kind {
            // SAFETY: the caller guarantees that the vectors are writable and may change.
            let received = unsafe { channel.receive(&self.fd, vectors) };
            return received.inspect_err(|e| {
                if e.kind() == io::ErrorKind::InvalidData {
                    log::warn!("closing a connection: {e}");
                }
            });
        }
        let takes = self.is_unix() && self.takes_descriptors;
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: msghdr is plain data; zero is a valid value for each field.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_ptr().cast_mut().cast();
        message.msg_iovlen = vectors.len();
        if takes {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len();
        }
        // SAFETY: the message refers to live buffers; the caller guarantees that they are writable.
        let received = unsafe { libc::recvmsg(self.raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        if takes {
            // SAFETY: the kernel filled the control buffer and set its length. The macros stay
            // inside it, and every descriptor in it is new and owned by this process.
            unsafe {
                let mut header = libc::CMSG_FIRSTHDR(&message);
                while !header.is_null() {
                    if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                        let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                        for i in 0..bytes / size_of::<RawFd>() {
                            let data = libc::CMSG_DATA(header).cast::<RawFd>().add(i);
                            descriptors.push(OwnedFd::from_raw_fd(std::ptr::read_unaligned(data)));
                        }
                    }
                    header = libc::CMSG_NXTHDR(&message, header);
                }
            }
        }
        Ok(received as usize)
    }

    /// Sends all of `bytes` during the handshake, while the socket blocks.
    pub(crate) fn send_all(&self, bytes: &[u8], mut fd: Option<BorrowedFd<'_>>) -> Result<(), VerbsError> {
        let mut vector = IoVec::new(bytes.as_ptr().cast_mut(), bytes.len());
        while vector.len() > 0 {
            // SAFETY: the vector lies inside `bytes`, which is only read.
            match unsafe { self.send(&[vector], fd.take()) } {
                Ok(count) => vector.skip(count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(handshake_error("send", e)),
            }
        }
        match self.holds_output() {
            true => Err(handshake_error("send", io::ErrorKind::WouldBlock.into())),
            false => Ok(()),
        }
    }

    /// Receives exactly `bytes.len()` bytes before `deadline`, however slowly they arrive, during
    /// the handshake.
    pub(crate) fn receive_exact(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        deadline: Option<Instant>,
    ) -> Result<(), VerbsError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(handshake_error("receive", io::ErrorKind::WouldBlock.into()));
                }
                // Zero would mean no limit.
                self.set_timeouts(Some(left.max(Duration::from_millis(1))))?;
            }
            let received = match &self.kind {
                // Waits at most once, so that the deadline is checked after each wait.
                Kind::Tls(channel) => channel.read(&self.fd, rest),
                Kind::Tcp | Kind::Unix => {
                    let vector = IoVec::new(rest.as_mut_ptr(), rest.len());
                    // SAFETY: the vector is `rest`, which is borrowed exclusively.
                    unsafe { self.receive(&[vector], fds) }
                }
            };
            match received {
                Ok(0) => return Err(VerbsError::PeerGone),
                Ok(_) if fds.len() > 1 => {
                    return Err(VerbsError::Protocol("more than one handle with a greeting".into()));
                }
                Ok(count) => rest = &mut rest[count..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(handshake_error("receive", e)),
            }
        }
        Ok(())
    }

    /// Shuts down both directions. The peer sees the end of the stream after the sent bytes.
    pub(crate) fn shutdown(&self) {
        // Fails only if the peer has disconnected.
        let _ = socket2::SockRef::from(&self.fd).shutdown(std::net::Shutdown::Both);
    }

    /// Shuts down the sending direction, so that the peer can read the last frame even while it
    /// sends.
    pub(crate) fn shutdown_write(&self) {
        let _ = socket2::SockRef::from(&self.fd).shutdown(std::net::Shutdown::Write);
    }
}

/// Configures a network stream for low latency.
fn tuned(stream: TcpStream) -> Result<OwnedFd, VerbsError> {
    stream.set_nodelay(true).map_err(|e| VerbsError::os("setsockopt(TCP_NODELAY)", e))?;
    congestion::replace_bbr(&stream);
    Ok(OwnedFd::from(stream))
}

fn handshake_error(what: &'static str, error: io::Error) -> VerbsError {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            VerbsError::os(what, io::Error::new(io::ErrorKind::TimedOut, "the peer does not answer"))
        }
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => VerbsError::PeerGone,
        _ => VerbsError::os(what, error),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn a_handshake_ends_at_its_deadline_even_if_bytes_arrive() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let socket = Socket::new(Rendezvous::Unix(a), Duration::from_secs(60), true).unwrap();
        b.write_all(&[1, 2]).unwrap();
        let (mut bytes, mut fds) = ([0; 3], Vec::new());
        match socket.receive_exact(&mut bytes, &mut fds, Some(Instant::now())) {
            Err(VerbsError::Os { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::TimedOut),
            other => panic!("{other:?}"),
        }
        b.write_all(&[3]).unwrap();
        socket.receive_exact(&mut bytes, &mut fds, None).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
    }

    /// An unexpected descriptor is never installed in this process.
    #[test]
    fn the_kernel_drops_unexpected_descriptors() {
        for takes in [false, true] {
            let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
            let (mut reader, passed) = std::io::pipe().unwrap();
            let sender = Socket::new(Rendezvous::Unix(b), Duration::from_secs(60), false).unwrap();
            let socket = Socket::new(Rendezvous::Unix(a), Duration::from_secs(60), takes).unwrap();
            sender.send_all(b"x", Some(std::os::fd::AsFd::as_fd(&passed))).unwrap();
            drop(passed);
            let (mut byte, mut fds) = ([0], Vec::new());
            socket.receive_exact(&mut byte, &mut fds, None).unwrap();
            assert_eq!((byte, fds.len()), (*b"x", usize::from(takes)));
            if !takes {
                // No other process holds the write end of the pipe any more.
                assert_eq!(std::io::Read::read(&mut reader, &mut byte).unwrap(), 0);
            }
        }
    }
}
