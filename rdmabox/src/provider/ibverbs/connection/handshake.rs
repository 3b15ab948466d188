//! The exchange of endpoints over the rendezvous stream of two queue pairs.
//!
//! Each side sends a greeting and its endpoint, then a byte when it is ready to receive. One
//! deadline covers the whole exchange.

use std::{
    io::{self, Read, Write},
    time::Instant,
};

use socket2::SockRef;
use zerocopy::{FromZeros, IntoBytes};

use super::endpoint::{Endpoint, Greeting};
use crate::verbs::{Rendezvous, VerbsError};

const READY: u8 = b'r';

/// The stream of a rendezvous.
#[derive(Debug)]
pub(crate) struct Exchange {
    stream: Rendezvous,
    /// Deadline of the exchange; `None` for no limit.
    deadline: Option<Instant>,
}

impl Exchange {
    pub(crate) fn new(stream: Rendezvous, deadline: Option<Instant>) -> Exchange {
        Exchange { stream, deadline }
    }

    /// Sends the local endpoint and receives the peer's.
    pub(crate) fn swap_endpoints(&mut self, ours: &Endpoint) -> Result<Endpoint, VerbsError> {
        self.send(Greeting::new().as_bytes())?;
        self.send(ours.as_bytes())?;
        let mut greeting = Greeting::new_zeroed();
        self.receive(greeting.as_mut_bytes())?;
        greeting.check().map_err(VerbsError::Protocol)?;
        let mut theirs = Endpoint::new_zeroed();
        self.receive(theirs.as_mut_bytes())?;
        Ok(theirs)
    }

    /// Tells the peer that this side can receive, and blocks until the peer can.
    pub(crate) fn wait_ready(&mut self) -> Result<(), VerbsError> {
        self.send(&[READY])?;
        let mut word = [0];
        self.receive(&mut word)?;
        match word {
            [READY] => Ok(()),
            _ => Err(VerbsError::Protocol("it does not say that it is ready".into())),
        }
    }

    /// Returns the stream; nothing more is sent on it.
    pub(crate) fn into_stream(self) -> Rendezvous {
        self.stream
    }

    fn sock(&self) -> SockRef<'_> {
        match &self.stream {
            Rendezvous::Tcp(stream) => SockRef::from(stream),
            Rendezvous::Tls(stream) => SockRef::from(stream.tcp()),
            Rendezvous::Unix(stream) => SockRef::from(stream),
        }
    }

    /// Sets the remaining time as the limit of the next call.
    fn limit(&self) -> io::Result<()> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.sock().set_read_timeout(left)?;
        self.sock().set_write_timeout(left)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), VerbsError> {
        self.limit().map_err(failed)?;
        match &mut self.stream {
            Rendezvous::Tcp(stream) => stream.write_all(bytes),
            Rendezvous::Tls(stream) => stream.write_all(bytes),
            Rendezvous::Unix(stream) => stream.write_all(bytes),
        }
        .map_err(failed)
    }

    fn receive(&mut self, mut out: &mut [u8]) -> Result<(), VerbsError> {
        while !out.is_empty() {
            self.limit().map_err(failed)?;
            let read = match &mut self.stream {
                Rendezvous::Tcp(stream) => stream.read(out),
                Rendezvous::Tls(stream) => stream.read(out),
                Rendezvous::Unix(stream) => stream.read(out),
            };
            match read {
                Ok(0) => return Err(VerbsError::PeerGone),
                Ok(count) => out = &mut out[count..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The call timed out; the next check of the deadline reports it.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }
}

fn failed(error: io::Error) -> VerbsError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            VerbsError::PeerGone
        }
        io::ErrorKind::WouldBlock => VerbsError::os("rendezvous", io::ErrorKind::TimedOut.into()),
        _ => VerbsError::os("rendezvous", error),
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, time::Duration};

    use super::*;

    fn exchanges(deadline: Instant) -> (Exchange, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Exchange::new(Rendezvous::Unix(a), Some(deadline)), b)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn two_sides_exchange_their_endpoints() {
        let (mut a, b) = exchanges(soon());
        let mut b = Exchange::new(Rendezvous::Unix(b), None);
        let (mut at_a, mut at_b) = (Endpoint::new_zeroed(), Endpoint::new_zeroed());
        at_a.as_mut_bytes().fill(1);
        at_b.as_mut_bytes().fill(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let theirs = b.swap_endpoints(&at_b).unwrap();
                b.wait_ready().unwrap();
                theirs
            });
            assert_eq!(a.swap_endpoints(&at_a).unwrap(), at_b);
            a.wait_ready().unwrap();
            assert_eq!(other.join().unwrap(), at_a);
        });
    }

    #[test]
    fn a_silent_closed_or_foreign_peer_is_an_error() {
        let endpoint = Endpoint::new_zeroed();
        let (mut exchange, other) = exchanges(Instant::now());
        assert!(matches!(exchange.swap_endpoints(&endpoint), Err(VerbsError::Os { source, .. })
            if source.kind() == io::ErrorKind::TimedOut));
        drop(other);
        let (mut exchange, other) = exchanges(soon());
        drop(other);
        assert!(matches!(exchange.swap_endpoints(&endpoint), Err(VerbsError::PeerGone)));
        let (mut exchange, mut other) = exchanges(soon());
        other.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(matches!(exchange.swap_endpoints(&endpoint), Err(VerbsError::Protocol(_))));
        let (mut exchange, mut other) = exchanges(soon());
        other.write_all(b"x").unwrap();
        assert!(matches!(exchange.wait_ready(), Err(VerbsError::Protocol(_))));
    }
}
