//! A TCP connection with TLS on it, from the handshake on.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::Connection;

use super::Channel;

/// A TCP connection on which both sides have shaken hands. Clones are the same connection.
#[derive(Debug)]
pub struct TlsStream {
    stream: TcpStream,
    channel: Arc<Channel>,
}

impl TlsStream {
    pub(crate) fn new(stream: TcpStream, channel: Arc<Channel>) -> TlsStream {
        TlsStream { stream, channel }
    }

    /// The connection below. What is said there directly is the end of the stream for both sides.
    pub fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn into_parts(self) -> (TcpStream, Arc<Channel>) {
        (self.stream, self.channel)
    }

    /// The same connection once more.
    pub fn try_clone(&self) -> io::Result<TlsStream> {
        Ok(TlsStream { stream: self.stream.try_clone()?, channel: Arc::clone(&self.channel) })
    }

    /// The same stream over another connection to the same place.
    #[cfg(feature = "faults")]
    pub(crate) fn over(
        self,
        other: impl FnOnce(TcpStream) -> io::Result<TcpStream>,
    ) -> io::Result<TlsStream> {
        Ok(TlsStream { stream: other(self.stream)?, channel: self.channel })
    }

    /// What only the two ends of this connection know of it (RFC 9266, `tls-exporter`).
    pub(crate) fn binding(&self) -> &[u8; 32] {
        self.channel.binding()
    }

    /// Sends what the socket takes without waiting.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.channel.write(&self.stream, bytes, libc::MSG_DONTWAIT)
    }
}

impl Read for TlsStream {
    /// Waits for the socket once at most: [`Interrupted`](io::ErrorKind::Interrupted) if what came is not enough for a byte,
    /// so that nobody waits longer than he has set as the limit of a call and then looks at the clock.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.channel.read(&self.stream, buf)
    }
}

impl Write for TlsStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.channel.write(&self.stream, buf, 0)
    }

    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket does not take all that was written.
    fn flush(&mut self) -> io::Result<()> {
        match self.channel.flush(&self.stream)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Limits every later call to the time that is left.
pub(super) fn limit(stream: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    // Less would mean no limit.
    let left = left.max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

/// Shakes hands by `deadline`, however slowly the other side talks. `heard` has been read already. The time limits of the
/// connection are those of before or less.
pub(super) fn shake_hands(
    stream: &TcpStream,
    connection: Connection,
    heard: &[u8],
    deadline: Instant,
) -> io::Result<Arc<Channel>> {
    let mut state = super::channel::State::new(connection, heard);
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
                    // The other side hears why, if it still listens.
                    let _ = state.flush(stream, 0);
                }
                return Err(wait(e));
            }
        }
    }
}
