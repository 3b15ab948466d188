//! Connections that belong to no session yet.
//!
//! Each takes a place from its acceptance until it is part of a session or closed, so that their number, and that of
//! the threads that deal with them, is limited whatever they do. Where all places are taken, a connection that has not shown who it
//! is gives way to a new one: the oldest of those from the network address that most come from. So whoever opens many and
//! says nothing is in his own way only. Stopping shuts their streams down, so that nobody waits for one, apart from those
//! that a session has taken over. It reads nothing.
//!
//! A stream that joins a session keeps its place until it is connected. It counts for the session's key, and gives way in the
//! same manner: the owner with the most connections, be it an address or a key, loses its oldest one.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    KeyId,
    stream::{Source, Stream},
};

/// Between two lines in the log about connections that gave way.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Place {
    /// `None`: it is never ended from here.
    stream: Option<Stream>,
    /// It joins a session with this key, or without one.
    joins: Option<Option<KeyId>>,
    /// It has shown who it is.
    known: bool,
    from: Source,
}

#[derive(Debug, Default)]
struct Places {
    /// By number, the oldest first.
    taken: BTreeMap<u64, Place>,
    next: u64,
    closed: bool,
    /// Since the last line about them.
    gave_way: u64,
    said: Option<Instant>,
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

/// Owner of connections that give way for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// It has not shown which key it has, and comes from there.
    Unknown(Source),
    /// It joins sessions with this key, or without one.
    Joins(Option<KeyId>),
}

impl Place {
    /// Returns `None` if the connection gives way to no other.
    fn owner(&self) -> Option<Owner> {
        match self.joins {
            Some(key) => Some(Owner::Joins(key)),
            None => (!self.known).then_some(Owner::Unknown(self.from)),
        }
    }
}

impl Places {
    /// Returns the oldest connection of the owner that has the most.
    fn least_welcome(&self) -> Option<u64> {
        let owned = || self.taken.iter().filter_map(|(number, place)| Some((*number, place.owner()?)));
        let mut counts: HashMap<Owner, usize> = HashMap::new();
        owned().for_each(|(_, owner)| *counts.entry(owner).or_default() += 1);
        let most = counts.values().max().copied()?;
        owned().find(|(_, owner)| counts.get(owner) == Some(&most)).map(|(number, _)| number)
    }

    /// Makes room; false if there is no stream to give way.
    fn make_room(&mut self) -> bool {
        let number = self.least_welcome();
        let Some(place) = number.and_then(|number| self.taken.remove(&number)) else { return false };
        match (&place.stream, place.joins) {
            (Some(stream), Some(_)) => stream.give_up(),
            (Some(stream), None) => stream.shutdown(),
            (None, _) => {}
        }
        self.gave_way += 1;
        let now = Instant::now();
        if self.said.is_none_or(|said| now.duration_since(said) >= QUIET) {
            log::warn!(
                "{} connections that belong to no session, the most from {}: {} closed, the oldest first",
                self.taken.len() + 1,
                place.from,
                self.gave_way
            );
            (self.said, self.gave_way) = (Some(now), 0);
        }
        true
    }
}

impl Strangers {
    pub(crate) fn new(limit: usize) -> Arc<Strangers> {
        Arc::new(Strangers { places: Mutex::default(), limit })
    }

    /// A place for a stream that was just accepted.
    pub(crate) fn admit(self: &Arc<Self>, stream: &Stream) -> io::Result<Stranger> {
        let mut places = self.places.lock();
        if places.closed || (places.taken.len() >= self.limit && !places.make_room()) {
            return Err(io::Error::other("too many connections at once"));
        }
        let place =
            Place { stream: Some(stream.try_clone()?), joins: None, known: false, from: stream.source() };
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, place);
        Ok(Stranger { strangers: Arc::clone(self), number })
    }

    /// Has one give way for want of something else than places; false if all have shown who they are.
    pub(crate) fn make_way(&self) -> bool {
        self.places.lock().make_room()
    }

    /// Ends all of them, and takes no more.
    pub(crate) fn close(&self) {
        let mut places = self.places.lock();
        places.closed = true;
        let strangers = places.taken.values().filter(|place| place.joins.is_none());
        strangers.filter_map(|place| place.stream.as_ref()).for_each(Stream::shutdown);
    }
}

impl Stranger {
    fn change(&self, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.strangers.places.lock().taken.get_mut(&self.number) {
            change(place);
        }
    }

    /// It has shown who it is, and gives way to nobody.
    pub(crate) fn is_known(&self) {
        self.change(|place| place.known = true);
    }

    /// The stream joins a session with this key, or without one, which ends it when it is time. It keeps the place until it is
    /// connected, or has to give way.
    pub(crate) fn joins(&self, key: Option<KeyId>) {
        self.change(|place| place.joins = Some(key));
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.places.lock().taken.remove(&self.number);
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

    /// Whether the other end of this stream was shut down.
    fn is_over(stream: &UnixStream) -> bool {
        Stream::Unix(stream.try_clone().unwrap()).is_over()
    }

    #[test]
    fn places_are_limited_and_come_back() {
        let strangers = Strangers::new(2);
        let (a, mut b) = UnixStream::pair().unwrap();
        let a = Stream::Unix(a);
        let first = strangers.admit(&a).unwrap();
        let second = strangers.admit(&a).unwrap();
        first.is_known();
        second.is_known();
        assert!(strangers.admit(&a).is_err());
        drop(first);
        let (c, d) = UnixStream::pair().unwrap();
        let third = strangers.admit(&Stream::Unix(c.try_clone().unwrap())).unwrap();
        third.joins(None);
        let fourth = strangers.admit(&a).unwrap();
        assert!(is_over(&d), "it gives way where all others are known");
        fourth.is_known();
        assert!(strangers.admit(&a).is_err());
        drop(fourth);
        let (e, f) = UnixStream::pair().unwrap();
        let fifth = strangers.admit(&Stream::Unix(e.try_clone().unwrap())).unwrap();
        fifth.joins(None);
        strangers.close();
        assert_eq!(b.read(&mut [0]).unwrap(), 0, "closing ends the streams");
        assert!(strangers.admit(&a).is_err());
        assert!(!is_over(&f), "its session ends it");
        drop((c, e));
    }

    #[test]
    fn the_oldest_that_has_not_shown_who_it_is_gives_way() {
        let strangers = Strangers::new(3);
        let pairs: Vec<_> = (0..6).map(|_| UnixStream::pair().unwrap()).collect();
        let admit = |at: usize| strangers.admit(&Stream::Unix(pairs[at].0.try_clone().unwrap())).unwrap();
        let over = || pairs.iter().map(|(_, other)| is_over(other)).collect::<Vec<_>>();
        let held: Vec<_> = (0..3).map(admit).collect();
        held[0].is_known();
        let _fourth = admit(3);
        assert_eq!(over(), [false, true, false, false, false, false]);
        // Who gave way takes nobody else's place along.
        drop(held);
        let _held = [admit(4), admit(5)];
        assert_eq!(over(), [false, true, false, false, false, false]);
    }

    #[test]
    fn who_has_most_places_gives_one_back() {
        let strangers = Strangers::new(4);
        let (a, b) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = || {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (Stream::Tcp(listener.accept().unwrap().0), Stream::Tcp(client))
        };
        let _lone = strangers.admit(&Stream::Unix(a)).unwrap();
        let streams: Vec<_> = (0..5).map(|_| tcp()).collect();
        let _held: Vec<_> = streams.iter().map(|(here, _)| strangers.admit(here).unwrap()).collect();
        assert!(!is_over(&b), "it is the oldest, but alone where it is from");
        let over: Vec<bool> = streams.iter().map(|(here, _)| here.is_over()).collect();
        assert_eq!(over, [true, true, false, false, false]);
        assert!(strangers.make_way() && streams[2].0.is_over());
    }

    /// One key has its streams join and never go on; others still come in.
    #[test]
    fn streams_that_join_give_way_where_one_key_has_the_most() {
        let strangers = Strangers::new(5);
        let key = |name: &str| Some(name.parse::<KeyId>().unwrap());
        let join = |key| {
            let (here, there) = UnixStream::pair().unwrap();
            let stranger = strangers.admit(&Stream::Unix(here.try_clone().unwrap())).unwrap();
            stranger.joins(key);
            (stranger, here, there)
        };
        let honest = join(key("good"));
        let flood: Vec<_> = (0..4).map(|_| join(key("bad"))).collect();
        let (here, there) = UnixStream::pair().unwrap();
        let newcomer = strangers.admit(&Stream::Unix(here.try_clone().unwrap())).unwrap();
        newcomer.is_known();
        assert!(is_over(&flood[0].2) && !is_over(&flood[1].2) && !is_over(&honest.2) && !is_over(&there));
    }

    /// A client that has just connected is not the one to go while one key has more streams that join.
    #[test]
    fn a_newcomer_keeps_its_place_while_a_key_has_more_streams_that_join() {
        let strangers = Strangers::new(4);
        let pairs: Vec<_> = (0..5).map(|_| UnixStream::pair().unwrap()).collect();
        let admit = |at: usize| strangers.admit(&Stream::Unix(pairs[at].0.try_clone().unwrap())).unwrap();
        let _newcomer = admit(0);
        let _flood: Vec<_> = (1..4).map(|at| (admit(at), at)).inspect(|(s, _)| s.joins(None)).collect();
        let _next = admit(4);
        let over: Vec<_> = pairs.iter().map(|(_, other)| is_over(other)).collect();
        assert_eq!(over, [false, true, false, false, false]);
    }
}
