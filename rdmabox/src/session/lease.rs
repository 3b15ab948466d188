//! A session's lease: the client renews it on the control stream, a byte at a time, and a host that has heard nothing for the
//! lease's length ends the session.
//!
//! It is what tells a client that is stopped, cut off or hung from one that has nothing to ask. The end is that of any
//! session: the queue pairs go first, so that what such a client still sends, or does when it goes on, has no effect.

use std::{
    io::{self, Read},
    sync::{Arc, mpsc},
    time::Duration,
};

use seeded_faults::{Fault, seeded};

use super::stream::Stream;

/// Renewals in the length of a lease: a client that is late twice keeps it.
const RENEWALS: u32 = 3;
/// Looks of the host in the length of a lease.
const LOOKS: u32 = 4;

/// Keeps a session's lease. Dropping it ends the renewals.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Nothing is sent: its end is the message.
    _stop: mpsc::Sender<()>,
}

impl Renewal {
    /// Starts a thread that renews the lease on `control` until this is dropped or the stream ends.
    pub(super) fn start(control: &Arc<Stream>, lease: Duration) -> io::Result<Renewal> {
        let (stop, stopped) = mpsc::channel();
        let (control, pause) = (Arc::clone(control), lease / RENEWALS);
        let renew = move || {
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                match control.send_now(&[0]) {
                    Ok(_) => {}
                    // The host has not read the earlier ones: it is busy, or gone.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("rdmabox-lease".into()).spawn(renew)?;
        Ok(Renewal { _stop: stop })
    }
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The control stream did: the client closed it or died, or the host wants it so.
    Closed,
    /// The client has not renewed its lease.
    Expired,
}

/// Returns when the session of a control stream is to end. Without a lease that is when the stream ends.
///
/// A host that is stopped, or whose machine is suspended, can hear nothing, and what clients send meanwhile may take a while to arrive when it goes on.
/// So it listens several times in the length of a lease, and a time in which it stood still counts as no more than one of them.
pub(super) fn watch(control: &mut Stream, lease: Option<Duration>) -> End {
    let lease = lease.filter(|_| !seeded(Fault::LeaseNotExpired));
    if control.set_timeout(lease.map(|lease| lease / LOOKS)).is_err() {
        return End::Closed;
    }
    end_of(|renewals| control.read(renewals))
}

fn end_of(mut listen: impl FnMut(&mut [u8]) -> io::Result<usize>) -> End {
    let (mut renewals, mut silent) = ([0; 64], 0);
    loop {
        match listen(&mut renewals) {
            Ok(0) => return End::Closed,
            Ok(_) => silent = 0,
            // As when the process goes on after it was stopped.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                silent += 1;
                if silent == LOOKS {
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
    fn silence_ends_it_and_so_does_the_stream() {
        let (mut client, mut host) = pair();
        // What came before counts, and any number of bytes is one renewal.
        client.write_all(&[0; 200]).unwrap();
        assert_eq!(watch(&mut host, Some(Duration::from_millis(1))), End::Expired);
        drop(client);
        assert_eq!(watch(&mut host, Some(LONG)), End::Closed);
        assert_eq!(watch(&mut host, None), End::Closed);
    }

    /// The first thing that a host hears that stood still is that the time is over, whatever lies on its way.
    #[test]
    fn one_look_in_vain_is_no_silence() {
        let heard = |all: &[Result<usize, io::ErrorKind>]| {
            let mut all = all.iter().copied();
            let end = end_of(|_| all.next().unwrap().map_err(io::Error::from));
            (end, all.len())
        };
        let (nothing, stopped) = (Err(io::ErrorKind::WouldBlock), Err(io::ErrorKind::Interrupted));
        let late = [nothing, nothing, nothing, Ok(1), nothing, nothing, stopped, nothing, Ok(2), Ok(0)];
        assert_eq!(heard(&late), (End::Closed, 0));
        let silent = [Ok(1), nothing, Err(io::ErrorKind::TimedOut), stopped, nothing, nothing, Ok(1)];
        assert_eq!(heard(&silent), (End::Expired, 1));
        assert_eq!(heard(&[Err(io::ErrorKind::ConnectionReset)]), (End::Closed, 0));
    }

    #[test]
    fn it_is_renewed_until_it_is_dropped() {
        let (client, mut host) = pair();
        let client = Arc::new(client);
        let renewal = Renewal::start(&client, Duration::from_millis(3)).unwrap();
        // Without an end to the wait: the clock decides nothing here.
        let mut byte = [1];
        for _ in 0..5 {
            host.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [0]);
        }
        drop(renewal);
        // Its thread lets go of the stream, and that ends it.
        drop(client);
        while host.read(&mut byte).unwrap() != 0 {}
    }

    #[test]
    fn a_host_that_does_not_read_blocks_nobody() {
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
