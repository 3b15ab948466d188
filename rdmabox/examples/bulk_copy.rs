//! Copies bytes of any length to remote memory and back, through registered buffers.
//!
//! Each direction has four buffers of 1 MiB ([`Session::allocate`]), each registered once. So no
//! request copies bytes or registers memory. While four requests are under way, the program fills
//! or empties the next buffer. The last piece is shorter than its buffer ([`Buffer::slice`]).
//!
//! `cargo run --release -p rdmabox --example bulk_copy` starts a host in this process. With
//! `-- --connect ADDRESS` the host is another process with at least 10 MB (`examples/lend.rs`). It
//! prints this. Over shared memory the last line is `executed 20 requests in place`.
//!
//! ```text
//! 10000000 bytes there and back, through TCP via tcp:127.0.0.1:43023 (not shared memory: ...)
//! 20 requests: copied 0 bytes, registered 8 buffers, moved 20000000 bytes in registered memory
//! ```

use std::{
    collections::VecDeque,
    error::Error,
    io::{self, Read, Write},
};

use rdmabox::{Buffer, MemoryServer, RemoteMr, Session, Slice, Transfer};

const LEN: u64 = 10_000_000;
const PIECE: usize = 1 << 20;
const DEPTH: usize = 4;

/// Requests under way, oldest first. Their buffers are used again.
struct Window<'a> {
    session: &'a Session,
    under_way: VecDeque<Transfer<Slice<Buffer>>>,
    unused: Vec<Buffer>,
}

impl<'a> Window<'a> {
    /// Allocates the buffers, each with one registration.
    fn new(session: &'a Session) -> Result<Window<'a>, Box<dyn Error>> {
        let unused = (0..DEPTH).map(|_| session.allocate(PIECE)).collect::<Result<_, _>>()?;
        Ok(Window { session, under_way: VecDeque::new(), unused })
    }

    /// Returns a buffer. If all are under way, waits for the oldest request, and passes its bytes
    /// to `done`.
    fn buffer(&mut self, mut done: impl FnMut(&[u8]) -> io::Result<()>) -> Result<Buffer, Box<dyn Error>> {
        if let Some(buffer) = self.unused.pop() {
            return Ok(buffer);
        }
        let piece = self.under_way.pop_front().ok_or("no buffers")?.wait()?;
        done(&piece)?;
        Ok(piece.into_inner())
    }

    /// Waits for all requests, and passes the bytes of each to `done`.
    fn finish(self, mut done: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), Box<dyn Error>> {
        self.under_way.into_iter().try_for_each(|transfer| Ok(done(&transfer.wait()?)?))
    }
}

/// Returns offset and length of each piece.
fn pieces(len: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..len).step_by(PIECE).map(move |offset| (offset, PIECE.min((len - offset) as usize)))
}

/// Copies bytes of `from` until the remote memory is full.
fn put(session: &Session, to: &RemoteMr, from: &mut impl Read) -> Result<(), Box<dyn Error>> {
    let mut window = Window::new(session)?;
    for (offset, len) in pieces(to.len()) {
        let mut buffer = window.buffer(|_| Ok(()))?;
        from.read_exact(&mut buffer[..len])?;
        let write = window.session.start_write(to.for_write(offset, len)?, buffer.slice(..len));
        window.under_way.push_back(write);
    }
    window.finish(|_| Ok(()))
}

/// Copies all of the remote memory to `to`, in order.
fn get(session: &Session, from: &RemoteMr, to: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut window = Window::new(session)?;
    for (offset, len) in pieces(from.len()) {
        let buffer = window.buffer(|bytes| to.write_all(bytes))?;
        let read = window.session.start_read(from.for_read(offset, len)?, buffer.slice(..len));
        window.under_way.push_back(read);
    }
    window.finish(|bytes| to.write_all(bytes))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (_host, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--connect", address] => (None, address.parse()?),
        [] => {
            let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], LEN as usize)?;
            let address = host.addresses()[0].clone();
            (Some(host), address)
        }
        _ => return Err("usage: bulk_copy [--connect ADDRESS]".into()),
    };
    let session = Session::builder().connect(&address)?;
    let memory = MemoryServer::locate(&session)?.slice(..LEN)?;

    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    put(&session, &memory, &mut bytes.as_slice())?;
    let mut back = Vec::new();
    get(&session, &memory, &mut back)?;
    assert!(back == bytes, "other bytes came back");

    println!("{LEN} bytes there and back, through {}", session.description());
    let stats = session.stats();
    if stats.direct > 0 {
        println!("executed {} requests in place", stats.direct);
    } else {
        println!(
            "{} requests: copied {} bytes, registered {} buffers, moved {} bytes in registered memory",
            stats.read_requests + stats.write_requests,
            stats.pre_mr_bytes,
            stats.registrations,
            stats.registered_bytes
        );
    }
    Ok(())
}
