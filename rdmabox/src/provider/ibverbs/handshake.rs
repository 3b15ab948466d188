//! The exchange of endpoints on the stream over which two queue pairs find each other: greetings, endpoints, and a word
//! when each side is ready. All of it has one deadline, however slowly it comes in.

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
pub(super) struct Line {
    stream: Rendezvous,
    /// `None`: further away than can be told.
    deadline: Option<Instant>,
}

impl Line {
    pub(super) fn new(stream: Rendezvous, deadline: Option<Instant>) -> Line {
        Line { stream, deadline }
    }

    /// Tells the peer this side's endpoint, and hears the peer's.
    pub(super) fn exchange(&mut self, ours: &Endpoint) -> Result<Endpoint, VerbsError> {
        self.send(Greeting::new().as_bytes())?;
        self.send(ours.as_bytes())?;
        let mut greeting = Greeting::new_zeroed();
        self.receive(greeting.as_mut_bytes())?;
        greeting.check().map_err(VerbsError::Protocol)?;
        let mut theirs = Endpoint::new_zeroed();
        self.receive(theirs.as_mut_bytes())?;
        Ok(theirs)
    }

    /// Tells the peer that this side can receive, and waits until it can.
    pub(super) fn meet(&mut self) -> Result<(), VerbsError> {
        self.send(&[READY])?;
        let mut word = [0];
        self.receive(&mut word)?;
        match word {
            [READY] => Ok(()),
            _ => Err(VerbsError::Protocol("it does not say that it is ready".into())),
        }
    }

    /// The stream, on which nothing more is said.
    pub(super) fn into_stream(self) -> Rendezvous {
        self.stream
    }

    fn sock(&self) -> SockRef<'_> {
        match &self.stream {
            Rendezvous::Tcp(stream) => SockRef::from(stream),
            Rendezvous::Tls(stream) => SockRef::from(stream.tcp()),
            Rendezvous::Unix(stream) => SockRef::from(stream),
        }
    }

    /// Sets the time that is left as the limit of the next call.
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
                // Time is up, then: the next look says so.
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

    fn lines(deadline: Instant) -> (Line, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Line::new(Rendezvous::Unix(a), Some(deadline)), b)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn two_sides_tell_each_other_their_endpoints() {
        let (mut a, b) = lines(soon());
        let mut b = Line::new(Rendezvous::Unix(b), None);
        let (mut at_a, mut at_b) = (Endpoint::new_zeroed(), Endpoint::new_zeroed());
        at_a.as_mut_bytes().fill(1);
        at_b.as_mut_bytes().fill(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let theirs = b.exchange(&at_b).unwrap();
                b.meet().unwrap();
                theirs
            });
            assert_eq!(a.exchange(&at_a).unwrap(), at_b);
            a.meet().unwrap();
            assert_eq!(other.join().unwrap(), at_a);
        });
    }

    #[test]
    fn a_peer_that_is_silent_hangs_up_or_speaks_another_language() {
        let endpoint = Endpoint::new_zeroed();
        let (mut line, other) = lines(Instant::now());
        assert!(matches!(line.exchange(&endpoint), Err(VerbsError::Os { source, .. })
            if source.kind() == io::ErrorKind::TimedOut));
        drop(other);
        let (mut line, other) = lines(soon());
        drop(other);
        assert!(matches!(line.exchange(&endpoint), Err(VerbsError::PeerGone)));
        let (mut line, mut other) = lines(soon());
        other.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(matches!(line.exchange(&endpoint), Err(VerbsError::Protocol(_))));
        let (mut line, mut other) = lines(soon());
        other.write_all(b"x").unwrap();
        assert!(matches!(line.meet(), Err(VerbsError::Protocol(_))));
    }
}
