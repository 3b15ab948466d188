//! How often a TCP stream tries again what is not acknowledged.

use std::{io, net::TcpStream, os::fd::AsRawFd};

/// TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// The least that Linux takes.
const LONGEST_PAUSE_MS: libc::c_int = 1000;

/// Has a stream try again at least once a second. Without it each pause is twice as long as the one before: after a network has lost all
/// packets for five seconds nothing is tried for up to five more.
///
/// # Errors
/// The system does not know of that.
pub(crate) fn try_often(stream: &TcpStream) -> io::Result<()> {
    let pause = LONGEST_PAUSE_MS;
    // SAFETY: the option's value is an int that lives as long as the call, of the length that is said.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const pause).cast(),
            size_of_val(&pause) as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_system_takes_it_or_says_that_it_does_not_know_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        if let Err(e) = try_often(&stream) {
            assert_eq!(e.raw_os_error(), Some(libc::ENOPROTOOPT));
        }
    }
}
