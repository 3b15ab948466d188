//! What limits how much of a TCP stream is under way.

use std::net::TcpStream;

use socket2::SockRef;

/// In every kernel, and open to everybody.
const RENO: &[u8] = b"reno";
/// Those that send at the pace that they believe the path to have.
const PACING: &[u8] = b"bbr";

/// Streams inside a host use Reno, and so do those whose system would have them use BBR; others keep what their system was set to.
///
/// Inside a host there is no path to probe and nothing gets lost, but BBR paces such a stream with timers all the same: requests of 1 MiB
/// went from 2.5 to over 5 GB/s without. Between hosts it takes a stream of requests that each wait for an answer for a slow path, after a
/// network has lost everything for two seconds, and then sends a packet a second for three more; with 5 % of packets lost, users of mounts
/// got 1.7 times as much done with Reno or CUBIC.
pub(crate) fn choose(stream: &TcpStream) {
    let sock = SockRef::from(stream);
    let paces = || sock.tcp_congestion().is_ok_and(|name| name.starts_with(PACING));
    if (is_inside_host(stream) || paces())
        && let Err(e) = sock.set_tcp_congestion(RENO)
    {
        log::debug!("the stream keeps the system's congestion control: {e}");
    }
}

fn is_inside_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(here), Ok(there)) => here.ip() == there.ip() || there.ip().is_loopback(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The name without the zeros behind it.
    fn of(stream: &TcpStream) -> String {
        let name = SockRef::from(stream).tcp_congestion().unwrap();
        String::from_utf8(name).unwrap().trim_end_matches('\0').to_owned()
    }

    #[test]
    fn streams_inside_a_host_use_reno() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        choose(&stream);
        assert_eq!(of(&stream), "reno");
    }

    #[test]
    fn others_keep_theirs_unless_it_paces() {
        // One that is not connected is as one to another host: it has no peer here.
        for (system, expected) in [("bbr", "reno"), ("cubic", "cubic"), ("reno", "reno")] {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            if let Err(e) = socket.set_tcp_congestion(system.as_bytes()) {
                eprintln!("not with {system}, which is not in this kernel, or not allowed: {e}");
                continue;
            }
            let stream = TcpStream::from(socket);
            choose(&stream);
            assert_eq!(of(&stream), expected);
        }
    }
}
