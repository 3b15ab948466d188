//! The lease of a session.
//!
//! The client sends a byte on the control stream several times per lease. The host ends the
//! session after a lease without a byte. This detects clients that are stopped, cut off or hung.
//! The queue pairs end first, so later requests of such a client have no effect.
//!
//! # Concurrency
//! The client renews on a thread of its own. The host watches on the session's thread. No locks.

use std::{
    io::{self, Read},
    sync::{Arc, mpsc},
    time::Duration,
};

use super::stream::Stream;
use crate::failure::seeded::seeded;

/// Renewals per lease: two late renewals do not lose it.
const RENEWALS: u32 = 3;
/// Reads of the host per lease.
const READS: u32 = 4;

/// The renewal thread of a lease. Dropping it stops the thread.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Never sent on: dropping the sender stops the thread.
    _stop: mpsc::Sender<()>,
}

impl Renewal {
    /// Starts a thread that renews the lease on `control` until the handle is dropped or the stream
    /// ends.
    pub(super) fn start(control: &Arc<Stream>, lease: Duration) -> io::Result<Renewal> {
        let (stop, stopped) = mpsc::channel();
        let (control, pause) = (Arc::clone(control), lease / RENEWALS);
        let renew = move || {
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                match control.send_now(&[0]) {
                    Ok(_) => {}
                    // The host has not read earlier bytes: it is busy or gone.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("rdmabox-lease".into()).spawn(renew)?;
        Ok(Renewal { _stop: stop })
    }
}

/// The reason for the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The control stream ended: the client closed it or died, or the host shut it down.
    Closed,
    /// The client did not renew its lease.
    Expired,
}

/// Blocks until the session of a control stream has to end. Without a lease that is the end of
/// the stream.
///
/// A stopped host or a suspended machine cannot receive, and delayed bytes may take a while to
/// arrive after it resumes. The lease is therefore split into several reads, and any pause of the
/// host counts as only one of them.
///
/// `heard` runs whenever bytes of the client have arrived.
pub(super) fn watch(control: &mut Stream, lease: Option<Duration>, heard: impl Fn()) -> End {
    let lease = lease.filter(|_| !seeded!("lease-not-expired"));
    if control.set_timeout(lease.map(|lease| lease / READS)).is_err() {
        return End::Closed;
    }
    end_of(|renewals| control.read(renewals).inspect(|_| heard()))
}

fn end_of(mut listen: impl FnMut(&mut [u8]) -> io::Result<usize>) -> End {
    let (mut renewals, mut silent) = ([0; 64], 0);
    loop {
        match listen(&mut renewals) {
            Ok(0) => return End::Closed,
            Ok(_) => silent = 0,
            // A process that resumes after a stop gets EINTR.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                silent += 1;
                if silent == READS {
                    return End::Expired;
                }
            }
            Err(_) => return End::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn pair() -> (Stream, Stream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Stream::Unix(a), Stream::Unix(b))
    }

    #[test]
    fn a_silent_lease_and_a_closed_stream_end_the_session() {
        let (mut client, mut host) = pair();
        // Earlier bytes count as one renewal, regardless of their number.
        client.write_all(&[0; 200]).unwrap();
        let heard = std::cell::Cell::new(0);
        assert_eq!(
            watch(&mut host, Some(Duration::from_millis(1)), || heard.set(heard.get() + 1)),
            End::Expired
        );
        // Four reads of at most 64 bytes.
        assert_eq!(heard.get(), 4);
        drop(client);
        assert_eq!(watch(&mut host, Some(LONG), || {}), End::Closed);
        assert_eq!(watch(&mut host, None, || {}), End::Closed);
    }

    /// A host that resumes sees an expired timer before it sees the pending bytes.
    #[test]
    fn a_single_empty_read_does_not_end_a_lease() {
        let heard = |all: &[Result<usize, io::ErrorKind>]| {
            let mut all = all.iter().copied();
            let end = end_of(|_| all.next().unwrap().map_err(io::Error::from));
            (end, all.len())
        };
        let (nothing, stopped) = (Err(io::ErrorKind::WouldBlock), Err(io::ErrorKind::Interrupted));
        let resumed = [nothing, nothing, nothing, Ok(1), nothing, nothing, stopped, nothing, Ok(2), Ok(0)];
        assert_eq!(heard(&resumed), (End::Closed, 0));
        let silent = [Ok(1), nothing, Err(io::ErrorKind::TimedOut), stopped, nothing, nothing, Ok(1)];
        assert_eq!(heard(&silent), (End::Expired, 1));
        assert_eq!(heard(&[Err(io::ErrorKind::ConnectionReset)]), (End::Closed, 0));
    }

    #[test]
    fn a_lease_is_renewed_until_its_handle_is_dropped() {
        let (client, mut host) = pair();
        let client = Arc::new(client);
        let renewal = Renewal::start(&client, Duration::from_millis(3)).unwrap();
        // No time limit: the test must not depend on the clock.
        let mut byte = [1];
        for _ in 0..5 {
            host.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [0]);
        }
        drop(renewal);
        // The renewal thread drops its reference, and then the stream closes.
        drop(client);
        while host.read(&mut byte).unwrap() != 0 {}
    }

    #[test]
    fn a_host_that_does_not_read_does_not_block_the_renewal() {
        let (client, host) = pair();
        let client = Arc::new(client);
        while client.send_now(&[0; 4096]).is_ok() {}
        let renewal = Renewal::start(&client, Duration::from_millis(3)).unwrap();
        assert_eq!(Arc::strong_count(&client), 2);
        drop((host, renewal));
        while Arc::strong_count(&client) > 1 {
            std::thread::yield_now();
        }
    }
}
