//! Resolves host names by a deadline.
//!
//! The system's resolver takes no deadline, and retries for a long time if the network is cut. A
//! lookup therefore runs on a thread of its own, and the caller stops waiting at the deadline.
//! Such a thread lives until the resolver gives up; at most [`MAX_LOOKUPS`] of them exist.
//!
//! # Concurrency
//! Called by any thread. IP addresses need no lookup thread. `Resolver::running` is the only
//! lock.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::Instant,
};

use parking_lot::{Condvar, Mutex};

use crate::failure::contain;

/// Maximum number of concurrent lookups. Further callers wait for a lookup to end.
const MAX_LOOKUPS: usize = 8;

static RESOLVER: Resolver = Resolver::new();

/// Returns the addresses of a host.
///
/// # Errors
/// `TimedOut` after the deadline, otherwise the error of the system's resolver.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let host = host.to_owned();
    RESOLVER.run(deadline, move || Ok((host.as_str(), port).to_socket_addrs()?.collect()))
}

/// Counter of the running lookups.
#[derive(Debug)]
struct Resolver {
    running: Mutex<usize>,
    ended: Condvar,
}

/// A running lookup. Dropping it, also in a panic, decrements the counter.
struct Lookup(&'static Resolver);

impl Drop for Lookup {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_one();
    }
}

impl Resolver {
    const fn new() -> Resolver {
        Resolver { running: Mutex::new(0), ended: Condvar::new() }
    }

    fn start(&'static self, deadline: Instant) -> io::Result<Lookup> {
        let mut running = self.running.lock();
        while *running >= MAX_LOOKUPS {
            if self.ended.wait_until(&mut running, deadline).timed_out() && *running >= MAX_LOOKUPS {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        *running += 1;
        Ok(Lookup(self))
    }

    fn run<T: Send + 'static>(
        &'static self,
        deadline: Instant,
        resolve_name: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let lookup = self.start(deadline)?;
        let (found, wait) = mpsc::sync_channel(1);
        thread::Builder::new().name("rdmabox-resolver".into()).spawn(move || {
            let _lookup = lookup;
            // A panic closes the channel, so the caller gets an error.
            if let Ok(outcome) = contain(resolve_name) {
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
    fn addresses_need_no_lookup_and_names_are_looked_up() {
        // An IP address resolves even after the deadline.
        let over = Instant::now();
        assert_eq!(resolve("127.0.0.1", 7, over).unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(resolve("::1", 7, over).unwrap(), ["[::1]:7".parse().unwrap()]);
        let found = resolve("localhost", 7, never()).unwrap();
        assert!(!found.is_empty() && found.iter().all(|found| found.ip().is_loopback()), "{found:?}");
        let nowhere = resolve("no\0name", 7, never()).unwrap_err();
        assert_ne!(nowhere.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_hanging_lookup_times_out_and_is_counted_until_it_ends() {
        let resolver = resolver();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for _ in 0..MAX_LOOKUPS {
            let gate = Arc::clone(&gate);
            let hangs = move || {
                drop(gate.lock());
                Ok(())
            };
            assert!(timed_out(resolver.run(Instant::now() + Duration::from_millis(1), hangs)));
        }
        // All lookups are taken.
        assert!(timed_out(resolver.run(Instant::now() + Duration::from_millis(1), || Ok(1))));
        assert_eq!(*resolver.running.lock(), MAX_LOOKUPS);
        drop(closed);
        assert_eq!(resolver.run(never(), || Ok(2)).unwrap(), 2);
        assert_eq!(
            resolver.run(never(), || io::Result::<()>::Err(io::Error::other("x"))).unwrap_err().to_string(),
            "x"
        );
        while *resolver.running.lock() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_panicking_lookup_is_an_error_and_is_not_counted() {
        let resolver = resolver();
        for _ in 0..2 * MAX_LOOKUPS {
            let outcome = resolver.run(never(), || -> io::Result<()> { panic!("on purpose") });
            assert_eq!(outcome.unwrap_err().to_string(), "the resolver has ended");
        }
    }
}
