//! Replaces BBR as the congestion control of TCP streams; every other system default stays.
//!
//! BBR estimates the bandwidth of a path from the bytes that a stream sends. A stream of requests
//! that each wait for a reply sends little, so the estimate is too low. See
//! `docs/design/decisions/runtime.md`.

use std::{io, os::fd::AsFd};

use socket2::{Domain, SockRef, Socket, Type};

/// Available in every kernel and to every user.
const RENO: &[u8] = b"reno";
/// Common prefix of the names of BBR's versions.
const BBR: &[u8] = b"bbr";

/// Switches a socket from BBR to Reno.
///
/// The caller does this before the socket connects, or on a listener, whose streams inherit it.
/// The kernel keeps pacing a stream that has used BBR once, also under another algorithm
/// (`sk_pacing_status`).
pub(crate) fn replace_bbr(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    if !socket.tcp_congestion().is_ok_and(|name| name.starts_with(BBR)) {
        return;
    }
    if let Err(e) = socket.set_tcp_congestion(RENO) {
        log::debug!("the stream keeps BBR, because the kernel refuses Reno: {e}");
    }
}

/// Returns the congestion control of streams that this process opens.
///
/// # Errors
/// The error of creating a socket.
pub fn congestion_control() -> io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    replace_bbr(&socket);
    name(&socket)
}

/// Returns the name without trailing NUL bytes.
fn name(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// System default, and the algorithm after `replace_bbr`.
    const CHOICES: [(&str, &str); 3] = [("bbr", "reno"), ("cubic", "cubic"), ("reno", "reno")];

    /// Gives a socket the state that it would have on a system with this default. Returns false if
    /// the kernel lacks the algorithm.
    fn has_default(socket: &impl AsFd, system: &str) -> bool {
        let given = SockRef::from(socket).set_tcp_congestion(system.as_bytes());
        if let Err(e) = &given {
            eprintln!("not run with {system}, which this kernel lacks or forbids: {e}");
        }
        given.is_ok()
    }

    /// Pacing is only visible in time, so the test checks the congestion control with which both
    /// ends start.
    #[test]
    fn both_ends_start_with_the_system_default_unless_it_is_bbr() {
        for (system, expected) in CHOICES {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let caller = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            if !has_default(&listener, system) || !has_default(&caller, system) {
                continue;
            }
            replace_bbr(&listener);
            replace_bbr(&caller);
            caller.connect(&listener.local_addr().unwrap().into()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(
                (name(&caller).unwrap().as_str(), name(&accepted).unwrap().as_str()),
                (expected, expected)
            );
        }
    }

    #[test]
    fn the_process_reports_the_algorithm_that_it_uses() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let system = name(&socket).unwrap();
        let used = congestion_control().unwrap();
        assert_eq!(used, if system.starts_with("bbr") { "reno" } else { system.as_str() });
    }
}
