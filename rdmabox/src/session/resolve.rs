//! Where hosts are, by a deadline: the system's resolver has none, and where a network is cut it asks again for a long time.
//!
//! Threading: a thread for each name that is looked up, and for none that is an address. One that has not come to its end when the
//! deadline is over goes on until the resolver gives up; there are no more than [`MOST`].

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::Instant,
};

use parking_lot::{Condvar, Mutex};

use crate::failure::contain;

/// Names that are looked up at a time. Who comes then waits for one of these.
const MOST: usize = 8;

static RESOLVER: Resolver = Resolver::new();

/// Finds the addresses of a host.
///
/// # Errors
/// `TimedOut` if that takes longer than until the deadline; what the system's resolver says.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let host = host.to_owned();
    RESOLVER.run(deadline, move || Ok((host.as_str(), port).to_socket_addrs()?.collect()))
}

/// Counts those that are looked up.
#[derive(Debug)]
struct Resolver {
    under_way: Mutex<usize>,
    ended: Condvar,
}

/// The place of one of them. It is free when the thread ends, however it does.
struct Place(&'static Resolver);

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.under_way.lock() -= 1;
        self.0.ended.notify_one();
    }
}

impl Resolver {
    const fn new() -> Resolver {
        Resolver { under_way: Mutex::new(0), ended: Condvar::new() }
    }

    fn place(&'static self, deadline: Instant) -> io::Result<Place> {
        let mut under_way = self.under_way.lock();
        while *under_way >= MOST {
            if self.ended.wait_until(&mut under_way, deadline).timed_out() && *under_way >= MOST {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        *under_way += 1;
        Ok(Place(self))
    }

    fn run<T: Send + 'static>(
        &'static self,
        deadline: Instant,
        look_up: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let place = self.place(deadline)?;
        let (found, wait) = mpsc::sync_channel(1);
        thread::Builder::new().name("rdmabox-resolver".into()).spawn(move || {
            let _place = place;
            // A panic is the caller's error: its channel closes.
            if let Ok(outcome) = contain(look_up) {
                // The caller may have stopped waiting.
                let _ = found.send(outcome);
            }
        })?;
        match wait.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(found) => found,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(io::Error::other("the resolver has ended")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    fn resolver() -> &'static Resolver {
        Box::leak(Box::new(Resolver::new()))
    }

    fn timed_out<T>(outcome: io::Result<T>) -> bool {
        outcome.is_err_and(|e| e.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn addresses_are_taken_as_they_are_and_names_are_looked_up() {
        // No time is left, and none is needed.
        let over = Instant::now();
        assert_eq!(resolve("127.0.0.1", 7, over).unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(resolve("::1", 7, over).unwrap(), ["[::1]:7".parse().unwrap()]);
        let found = resolve("localhost", 7, never()).unwrap();
        assert!(!found.is_empty() && found.iter().all(|found| found.ip().is_loopback()), "{found:?}");
        let nowhere = resolve("no\0name", 7, never()).unwrap_err();
        assert_ne!(nowhere.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn who_waits_for_a_resolver_that_hangs_is_told_and_its_place_is_free_when_it_ends() {
        let resolver = resolver();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for _ in 0..MOST {
            let gate = Arc::clone(&gate);
            let hangs = move || {
                drop(gate.lock());
                Ok(())
            };
            assert!(timed_out(resolver.run(Instant::now() + Duration::from_millis(1), hangs)));
        }
        // No thread is left for these.
        assert!(timed_out(resolver.run(Instant::now() + Duration::from_millis(1), || Ok(1))));
        assert_eq!(*resolver.under_way.lock(), MOST);
        drop(closed);
        assert_eq!(resolver.run(never(), || Ok(2)).unwrap(), 2);
        assert_eq!(
            resolver.run(never(), || io::Result::<()>::Err(io::Error::other("x"))).unwrap_err().to_string(),
            "x"
        );
        while *resolver.under_way.lock() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_resolver_that_panics_is_an_error_and_takes_no_place() {
        let resolver = resolver();
        for _ in 0..2 * MOST {
            let outcome = resolver.run(never(), || -> io::Result<()> { panic!("on purpose") });
            assert_eq!(outcome.unwrap_err().to_string(), "the resolver has ended");
        }
    }
}
