//! What limits how much of a TCP stream is under way.

use std::{net::TcpStream, os::fd::AsFd};

use socket2::SockRef;

/// In every kernel, and open to everybody.
const RENO: &[u8] = b"reno";
/// Those that send at the pace that they believe the path to have.
const PACING: &[u8] = b"bbr";

/// To be called before a socket connects, and on one that listens, from which its streams inherit it: none of them is ever BBR's.
///
/// BBR takes a stream of requests that each wait for an answer for a slow path, after a network has lost everything for two seconds, and then
/// sends a packet a second for three more; with 5 % of packets lost, users of mounts got 1.7 times as much done with Reno or CUBIC. Inside a
/// host it paces streams, although there is no path to probe.
///
/// It has to be before: a stream that BBR has had once is paced for ever, whatever it uses later (Linux 6.18, `sk_pacing_status`). Each 64 KiB
/// that it sends wait for a timer of the rate that the kernel believes in, and inside a host that timer takes longer than the bytes: a read of
/// 128 KiB through a mount took 62 us where it takes 46 us without.
pub(crate) fn never_paced(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    if socket.tcp_congestion().is_ok_and(|name| name.starts_with(PACING)) {
        use_reno(&socket);
    }
}

/// Streams inside a host use Reno: nothing gets lost there. So do others that were connected elsewhere, if they are BBR's until now.
pub(crate) fn choose(stream: &TcpStream) {
    if is_inside_host(stream) {
        use_reno(&SockRef::from(stream));
    } else {
        never_paced(stream);
    }
}

fn use_reno(socket: &SockRef<'_>) {
    if let Err(e) = socket.set_tcp_congestion(RENO) {
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

    use socket2::{Domain, Socket, Type};

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
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            if let Err(e) = socket.set_tcp_congestion(system.as_bytes()) {
                eprintln!("not with {system}, which is not in this kernel, or not allowed: {e}");
                continue;
            }
            let stream = TcpStream::from(socket);
            choose(&stream);
            assert_eq!(of(&stream), expected);
        }
    }

    /// Whether a stream is paced can be seen by the time that it takes only, so what is looked at is what it starts with.
    #[test]
    fn neither_side_of_a_connection_starts_with_one_that_paces() {
        for (system, expected) in [("bbr", "reno"), ("cubic", "cubic"), ("reno", "reno")] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let caller = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            // As a socket begins on a system that is set to it.
            let set = |socket: SockRef<'_>| socket.set_tcp_congestion(system.as_bytes());
            if let Err(e) = set(SockRef::from(&listener)).and_then(|()| set(SockRef::from(&caller))) {
                eprintln!("not with {system}, which is not in this kernel, or not allowed: {e}");
                continue;
            }
            never_paced(&listener);
            never_paced(&caller);
            caller.connect(&listener.local_addr().unwrap().into()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!((of(&caller.into()), of(&accepted)), (expected.to_owned(), expected.to_owned()));
        }
    }
}
