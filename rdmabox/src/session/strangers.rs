//! Connections that belong to no session yet.
//!
//! Each takes a place from its acceptance until it is part of a session or closed, so that their number, and that of
//! the threads that deal with them, is limited whatever they do. Stopping shuts their streams down, so that nobody waits
//! for one, apart from those that a session has taken over. It reads nothing and decides nothing.

use std::{collections::HashMap, io, sync::Arc};

use parking_lot::Mutex;

use super::stream::Stream;

#[derive(Debug, Default)]
struct Places {
    /// `None`: somebody else ends it.
    streams: HashMap<u64, Option<Stream>>,
    next: u64,
    closed: bool,
}

/// The places.
#[derive(Debug)]
pub(crate) struct Strangers {
    places: Mutex<Places>,
    limit: usize,
}

/// A place. Dropping it gives it back; the stream goes on.
#[derive(Debug)]
pub(crate) struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    pub(crate) fn new(limit: usize) -> Arc<Strangers> {
        Arc::new(Strangers { places: Mutex::default(), limit })
    }

    /// A place for a stream that was just accepted.
    pub(crate) fn admit(self: &Arc<Self>, stream: &Stream) -> io::Result<Stranger> {
        let mut places = self.places.lock();
        if places.closed || places.streams.len() >= self.limit {
            return Err(io::Error::other("too many connections at once"));
        }
        let stream = stream.try_clone()?;
        let number = places.next;
        places.next += 1;
        places.streams.insert(number, Some(stream));
        Ok(Stranger { strangers: Arc::clone(self), number })
    }

    /// Ends all of them, and takes no more.
    pub(crate) fn close(&self) {
        let mut places = self.places.lock();
        places.closed = true;
        places.streams.values().flatten().for_each(Stream::shutdown);
    }
}

impl Stranger {
    /// The stream is somebody's who ends it when it is time. It keeps the place.
    pub(crate) fn adopt(&self) {
        if let Some(stream) = self.strangers.places.lock().streams.get_mut(&self.number) {
            *stream = None;
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.places.lock().streams.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn places_are_limited_and_come_back() {
        let strangers = Strangers::new(2);
        let (a, mut b) = UnixStream::pair().unwrap();
        let a = Stream::Unix(a);
        let first = strangers.admit(&a).unwrap();
        let _second = strangers.admit(&a).unwrap();
        assert!(strangers.admit(&a).is_err());
        drop(first);
        let (c, mut d) = UnixStream::pair().unwrap();
        let third = strangers.admit(&Stream::Unix(c.try_clone().unwrap())).unwrap();
        third.adopt();
        assert!(strangers.admit(&a).is_err(), "it keeps the place");
        strangers.close();
        assert_eq!(b.read(&mut [0]).unwrap(), 0, "closing ends the streams");
        assert!(strangers.admit(&a).is_err());
        d.set_nonblocking(true).unwrap();
        assert_eq!(d.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "it is another's");
        drop(c);
    }
}
