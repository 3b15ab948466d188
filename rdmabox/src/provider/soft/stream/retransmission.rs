//! Limits the retransmission interval of TCP streams.

use std::{io, net::TcpStream, os::fd::AsRawFd};

/// Option `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// Minimum value that Linux accepts.
const MAX_PAUSE_MS: libc::c_int = 1000;

/// Limits the retransmission interval of a stream to one second. By default each interval is
/// twice the previous one: after an outage of five seconds the stream stays silent for up to five
/// more.
///
/// # Errors
/// The kernel does not support the option.
pub(crate) fn try_often(stream: &TcpStream) -> io::Result<()> {
    let pause = MAX_PAUSE_MS;
    // SAFETY: the option's value is an int of the given length that outlives the call.
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
    fn the_kernel_accepts_the_option_or_reports_it_as_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        if let Err(e) = try_often(&stream) {
            assert_eq!(e.raw_os_error(), Some(libc::ENOPROTOOPT));
        }
    }
}
