//! A relayed network connection that ends after a given number of bytes.
//!
//! # Concurrency
//! One thread per direction, which ends with the connection.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

use super::plan::Cut;

/// Size of a read in bytes.
const BUFFER: usize = 16 << 10;

/// Returns a connection that replaces `peer` and relays its bytes until the cut.
///
/// # Errors
/// The error of creating a socket or a thread.
pub(super) fn cut(peer: TcpStream, Cut { after, incoming }: Cut) -> io::Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let outer = TcpStream::connect(listener.local_addr()?)?;
    let inner = loop {
        let (inner, from) = listener.accept()?;
        if from == outer.local_addr()? {
            break inner;
        }
    };
    for stream in [&peer, &inner, &outer] {
        stream.set_nodelay(true)?;
    }
    peer.set_read_timeout(None)?;
    peer.set_write_timeout(None)?;
    let limit = |is_cut: bool| if is_cut { after } else { u64::MAX };
    start(peer.try_clone()?, inner.try_clone()?, limit(incoming))?;
    start(inner, peer, limit(!incoming))?;
    Ok(outer)
}

fn start(from: TcpStream, to: TcpStream, limit: u64) -> io::Result<()> {
    thread::Builder::new().name("fault-relay".into()).spawn(move || {
        // The end of one stream ends the other.
        let _ = forward(&from, &to, limit);
        for stream in [&from, &to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    })?;
    Ok(())
}

fn forward(mut from: &TcpStream, mut to: &TcpStream, mut left: u64) -> io::Result<()> {
    let mut buffer = [0; BUFFER];
    while left > 0 {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
        to.write_all(&buffer[..count])?;
        left -= count as u64;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_cut_connection_passes_exactly_the_given_bytes() {
        for (after, incoming) in [(0, true), (1, false), (30_000, true), (30_000, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut there = listener.accept().unwrap().0;
            let mut here = cut(here, Cut { after, incoming }).unwrap();
            let (from, to) = if incoming { (&mut there, &mut here) } else { (&mut here, &mut there) };
            // The connection may end before all bytes are written.
            let _ = from.write_all(&[7; 30_001]);
            let mut heard = Vec::new();
            let _ = to.read_to_end(&mut heard);
            assert_eq!(heard.len() as u64, after);
        }
    }
}
