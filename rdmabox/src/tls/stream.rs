//! A TCP connection with TLS, and its handshake.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::Connection;

use super::Channel;

/// A TCP connection after its TLS handshake. Clones share the connection.
#[derive(Debug)]
pub struct TlsStream {
    stream: TcpStream,
    channel: Arc<Channel>,
}

impl TlsStream {
    pub(crate) fn new(stream: TcpStream, channel: Arc<Channel>) -> TlsStream {
        TlsStream { stream, channel }
    }

    /// Returns the TCP connection. Bytes written to it directly break the TLS stream.
    pub fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn into_parts(self) -> (TcpStream, Arc<Channel>) {
        (self.stream, self.channel)
    }

    /// Returns a second handle to the connection.
    pub fn try_clone(&self) -> io::Result<TlsStream> {
        Ok(TlsStream { stream: self.stream.try_clone()?, channel: Arc::clone(&self.channel) })
    }

    /// Moves the stream to another connection to the same peer.
    #[cfg(feature = "faults")]
    pub(crate) fn over(
        self,
        other: impl FnOnce(TcpStream) -> io::Result<TcpStream>,
    ) -> io::Result<TlsStream> {
        Ok(TlsStream { stream: other(self.stream)?, channel: self.channel })
    }

    /// Returns a value that only the two ends of the connection know (RFC 9266, `tls-exporter`).
    pub(crate) fn binding(&self) -> &[u8; 32] {
        self.channel.binding()
    }

    /// Sends as many bytes as the socket takes without blocking.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.channel.write(&self.stream, bytes, libc::MSG_DONTWAIT)
    }
}

impl Read for TlsStream {
    /// Waits for the socket at most once, and returns [`Interrupted`](io::ErrorKind::Interrupted)
    /// if that yielded no byte. So a caller can check its deadline after each read timeout.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.channel.read(&self.stream, buf)
    }
}

impl Write for TlsStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.channel.write(&self.stream, buf, 0)
    }

    /// Returns [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket does not take all output.
    fn flush(&mut self) -> io::Result<()> {
        match self.channel.flush(&self.stream)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Limits every later call to the time until `deadline`.
pub(super) fn limit(stream: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    // Zero would mean no limit.
    let left = left.max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

/// Performs the handshake before `deadline`, however slowly the peer sends. `received` has been
/// read from the stream already. Leaves shorter timeouts on the stream.
pub(super) fn handshake(
    stream: &TcpStream,
    connection: Connection,
    received: &[u8],
    deadline: Instant,
) -> io::Result<Arc<Channel>> {
    let mut state = super::channel::State::new(connection, received);
    let wait = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => e,
    };
    loop {
        limit(stream, deadline)?;
        if !state.flush(stream, 0)? {
            continue;
        }
        if !state.is_handshaking() {
            return Channel::new(state).map(Arc::new);
        }
        match state.advance(stream) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                if e.kind() == io::ErrorKind::InvalidData {
                    // Sends an alert with the reason to the peer.
                    let _ = state.flush(stream, 0);
                }
                return Err(wait(e));
            }
        }
    }
}
