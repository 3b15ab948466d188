//! Pending connections: accepted streams that do not belong to a session yet.
//!
//! Their number is limited, and so is the number of threads that serve them. At the limit, a new
//! connection evicts an old one. Connections are grouped by owner: the source address of an
//! unauthenticated stream, or the key of a stream that joins a session. The owner with the most
//! connections loses its oldest one, so a flood mainly hits its own owner. Authenticated control
//! streams are never evicted.
//!
//! Stopping the host shuts pending streams down, except for streams that join a session; their
//! session ends them.
//!
//! # Concurrency
//! Called by accepting threads and stream threads. `PendingConnections::entries` is the only
//! lock.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    auth::KeyId,
    session::stream::{Source, Stream},
};

/// Minimum time between two log lines about evictions.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Entry {
    /// Copy of the stream, for shutting it down.
    stream: Option<Stream>,
    /// Set if the stream joins a session; the inner value is the session's key.
    joining: Option<Option<KeyId>>,
    /// True if the client has proved its identity.
    authenticated: bool,
    from: Source,
}

#[derive(Debug, Default)]
struct Entries {
    /// Entries by number, the oldest first.
    by_number: BTreeMap<u64, Entry>,
    next: u64,
    closed: bool,
    /// Evictions since the last log line.
    evicted: u64,
    logged: Option<Instant>,
}

/// The set of pending connections.
#[derive(Debug)]
pub(crate) struct PendingConnections {
    entries: Mutex<Entries>,
    limit: usize,
}

/// A pending connection. Dropping it removes the entry; the stream stays open.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    connections: Arc<PendingConnections>,
    number: u64,
}

/// The owner of connections, as counted for evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// Unauthenticated streams from this source.
    Unknown(Source),
    /// Streams that join sessions with this key, or without a key.
    Joins(Option<KeyId>),
}

impl Entry {
    /// Returns `None` if the connection cannot be evicted.
    fn owner(&self) -> Option<Owner> {
        match self.joining {
            Some(key) => Some(Owner::Joins(key)),
            None => (!self.authenticated).then_some(Owner::Unknown(self.from)),
        }
    }
}

impl Entries {
    /// Returns the oldest connection of the owner with the most connections.
    fn victim(&self) -> Option<u64> {
        let owned = || self.by_number.iter().filter_map(|(number, entry)| Some((*number, entry.owner()?)));
        let mut counts: HashMap<Owner, usize> = HashMap::new();
        owned().for_each(|(_, owner)| *counts.entry(owner).or_default() += 1);
        let most = counts.values().max().copied()?;
        owned().find(|(_, owner)| counts.get(owner) == Some(&most)).map(|(number, _)| number)
    }

    /// Evicts one connection. Returns false if none can be evicted.
    fn evict(&mut self) -> bool {
        let number = self.victim();
        let Some(entry) = number.and_then(|number| self.by_number.remove(&number)) else { return false };
        match (&entry.stream, entry.joining) {
            (Some(stream), Some(_)) => stream.give_up(),
            (Some(stream), None) => stream.shutdown(),
            (None, _) => {}
        }
        self.evicted += 1;
        let now = Instant::now();
        if self.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL) {
            log::warn!(
                "{} pending connections, most of them from {}: closed the {} oldest",
                self.by_number.len() + 1,
                entry.from,
                self.evicted
            );
            (self.logged, self.evicted) = (Some(now), 0);
        }
        true
    }
}

impl PendingConnections {
    pub(crate) fn new(limit: usize) -> Arc<PendingConnections> {
        Arc::new(PendingConnections { entries: Mutex::default(), limit })
    }

    /// Adds a stream that was just accepted, after an eviction if necessary.
    pub(crate) fn admit(self: &Arc<Self>, stream: &Stream) -> io::Result<PendingConnection> {
        let mut entries = self.entries.lock();
        if entries.closed || (entries.by_number.len() >= self.limit && !entries.evict()) {
            return Err(io::Error::other("too many connections at once"));
        }
        let entry = Entry {
            stream: Some(stream.try_clone()?),
            joining: None,
            authenticated: false,
            from: stream.source(),
        };
        let number = entries.next;
        entries.next += 1;
        entries.by_number.insert(number, entry);
        Ok(PendingConnection { connections: Arc::clone(self), number })
    }

    /// Evicts a connection to free another resource, such as a descriptor. Returns false if none
    /// can be evicted.
    pub(crate) fn evict_one(&self) -> bool {
        self.entries.lock().evict()
    }

    /// Shuts all streams down, except for those that join a session, and admits no more.
    pub(crate) fn close(&self) {
        let mut entries = self.entries.lock();
        entries.closed = true;
        let connections = entries.by_number.values().filter(|entry| entry.joining.is_none());
        connections.filter_map(|entry| entry.stream.as_ref()).for_each(Stream::shutdown);
    }
}

impl PendingConnection {
    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.connections.entries.lock().by_number.get_mut(&self.number) {
            change(entry);
        }
    }

    /// Marks the client as authenticated: it is never evicted.
    pub(crate) fn set_authenticated(&self) {
        self.change(|entry| entry.authenticated = true);
    }

    /// Marks the stream as joining a session with this key, or without a key. The session ends the
    /// stream when the time comes. The entry remains until the stream is connected or evicted.
    pub(crate) fn set_joining(&self, key: Option<KeyId>) {
        self.change(|entry| entry.joining = Some(key));
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.connections.entries.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use super::*;

    /// Returns true if the other end of this stream was shut down.
    fn is_over(stream: &UnixStream) -> bool {
        Stream::Unix(stream.try_clone().unwrap()).is_over()
    }

    #[test]
    fn connections_are_limited_and_dropping_one_frees_its_entry() {
        let connections = PendingConnections::new(2);
        let (a, mut b) = UnixStream::pair().unwrap();
        let a = Stream::Unix(a);
        let first = connections.admit(&a).unwrap();
        let second = connections.admit(&a).unwrap();
        first.set_authenticated();
        second.set_authenticated();
        assert!(connections.admit(&a).is_err());
        drop(first);
        let (c, d) = UnixStream::pair().unwrap();
        let third = connections.admit(&Stream::Unix(c.try_clone().unwrap())).unwrap();
        third.set_joining(None);
        let fourth = connections.admit(&a).unwrap();
        assert!(is_over(&d), "evicted, because all others are authenticated");
        fourth.set_authenticated();
        assert!(connections.admit(&a).is_err());
        drop(fourth);
        let (e, f) = UnixStream::pair().unwrap();
        let fifth = connections.admit(&Stream::Unix(e.try_clone().unwrap())).unwrap();
        fifth.set_joining(None);
        connections.close();
        assert_eq!(b.read(&mut [0]).unwrap(), 0, "closing ends the streams");
        assert!(connections.admit(&a).is_err());
        assert!(!is_over(&f), "its session ends it");
        drop((c, e));
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted() {
        let connections = PendingConnections::new(3);
        let pairs: Vec<_> = (0..6).map(|_| UnixStream::pair().unwrap()).collect();
        let admit = |at: usize| connections.admit(&Stream::Unix(pairs[at].0.try_clone().unwrap())).unwrap();
        let over = || pairs.iter().map(|(_, other)| is_over(other)).collect::<Vec<_>>();
        let held: Vec<_> = (0..3).map(admit).collect();
        held[0].set_authenticated();
        let _fourth = admit(3);
        assert_eq!(over(), [false, true, false, false, false, false]);
        // Dropping an evicted connection frees no other entry.
        drop(held);
        let _held = [admit(4), admit(5)];
        assert_eq!(over(), [false, true, false, false, false, false]);
    }

    #[test]
    fn the_source_with_the_most_connections_loses_one() {
        let connections = PendingConnections::new(4);
        let (a, b) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = || {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (Stream::Tcp(listener.accept().unwrap().0), Stream::Tcp(client))
        };
        let _lone = connections.admit(&Stream::Unix(a)).unwrap();
        let streams: Vec<_> = (0..5).map(|_| tcp()).collect();
        let _held: Vec<_> = streams.iter().map(|(here, _)| connections.admit(here).unwrap()).collect();
        assert!(!is_over(&b), "the oldest, but the only one of its source");
        let over: Vec<bool> = streams.iter().map(|(here, _)| here.is_over()).collect();
        assert_eq!(over, [true, true, false, false, false]);
        assert!(connections.evict_one() && streams[2].0.is_over());
    }

    /// A key's streams join and never go on. Other clients still get in.
    #[test]
    fn the_key_with_the_most_joining_streams_loses_one() {
        let connections = PendingConnections::new(5);
        let key = |name: &str| Some(name.parse::<KeyId>().unwrap());
        let join = |key| {
            let (here, there) = UnixStream::pair().unwrap();
            let connection = connections.admit(&Stream::Unix(here.try_clone().unwrap())).unwrap();
            connection.set_joining(key);
            (connection, here, there)
        };
        let honest = join(key("good"));
        let flood: Vec<_> = (0..4).map(|_| join(key("bad"))).collect();
        let (here, there) = UnixStream::pair().unwrap();
        let newcomer = connections.admit(&Stream::Unix(here.try_clone().unwrap())).unwrap();
        newcomer.set_authenticated();
        assert!(is_over(&flood[0].2) && !is_over(&flood[1].2) && !is_over(&honest.2) && !is_over(&there));
    }

    /// A client that has just connected is not evicted while one key has more joining streams.
    #[test]
    fn a_new_client_is_not_evicted_while_a_key_has_more_joining_streams() {
        let connections = PendingConnections::new(4);
        let pairs: Vec<_> = (0..5).map(|_| UnixStream::pair().unwrap()).collect();
        let admit = |at: usize| connections.admit(&Stream::Unix(pairs[at].0.try_clone().unwrap())).unwrap();
        let _newcomer = admit(0);
        let _flood: Vec<_> = (1..4).map(|at| (admit(at), at)).inspect(|(s, _)| s.set_joining(None)).collect();
        let _next = admit(4);
        let over: Vec<_> = pairs.iter().map(|(_, other)| is_over(other)).collect();
        assert_eq!(over, [false, true, false, false, false]);
    }
}
