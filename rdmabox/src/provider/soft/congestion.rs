//! Replaces BBR as the congestion control of TCP streams; every other choice of the system stays.
//!
//! BBR estimates the rate of a path from what a stream sends. A stream of requests that each wait for a reply sends little,
//! so the estimate is wrong: after an outage of 2 s some streams sent one packet a second for 3 s more. DESIGN.md, Decisions.

use std::{io, os::fd::AsFd};

use socket2::{Domain, SockRef, Socket, Type};

/// In every kernel, and open to every user.
const RENO: &[u8] = b"reno";
/// The beginning of the names of BBR's versions.
const BBR: &[u8] = b"bbr";

/// Gives a socket Reno if it has BBR.
///
/// The caller does it before the socket connects, and on a listener, whose streams inherit it. The kernel goes on pacing a
/// stream that BBR has had once, also under another algorithm (Linux 6.18, `sk_pacing_status`): a timer holds back each 64 KiB.
pub(crate) fn replace_bbr(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    if !socket.tcp_congestion().is_ok_and(|name| name.starts_with(BBR)) {
        return;
    }
    if let Err(e) = socket.set_tcp_congestion(RENO) {
        log::debug!("the stream keeps BBR, as the kernel refuses Reno: {e}");
    }
}

/// Returns the congestion control of streams that this process opens.
///
/// # Errors
/// If the kernel gives no socket.
pub fn congestion_control() -> io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    replace_bbr(&socket);
    name(&socket)
}

/// Returns the name without the zeros behind it.
fn name(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Each choice of the system, and the choice after `replace_bbr`.
    const CHOICES: [(&str, &str); 3] = [("bbr", "reno"), ("cubic", "cubic"), ("reno", "reno")];

    /// Gives a socket what a socket of a system with this default has.
    fn has_default(socket: &impl AsFd, system: &str) -> bool {
        let given = SockRef::from(socket).set_tcp_congestion(system.as_bytes());
        if let Err(e) = &given {
            eprintln!("not run with {system}, which this kernel lacks or forbids: {e}");
        }
        given.is_ok()
    }

    /// Pacing shows in nothing but time, so the test reads with which congestion control both ends begin.
    #[test]
    fn both_ends_begin_with_the_choice_of_the_system_unless_it_is_bbr() {
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
    fn the_process_says_which_it_uses() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let system = name(&socket).unwrap();
        let used = congestion_control().unwrap();
        assert_eq!(used, if system.starts_with("bbr") { "reno" } else { system.as_str() });
    }
}
