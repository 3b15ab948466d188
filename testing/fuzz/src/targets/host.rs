//! Fuzzes a listening host with arbitrary streams, beside one honest session.
//!
//! The first byte of an input selects one of three streams. These are a new connection, the control
//! stream of a session, and a stream that has joined a session as a queue pair.

use std::{
    cell::RefCell,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rdmabox::{
    Access, Address, CallError, Export, Host, HostHandle, Memory, Peer, Reply, Service, Session,
    SessionOptions, fuzzing,
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Length of a preamble.
const PREAMBLE: usize = 112;
/// Length of the fixed part of an answer.
const HEAD: usize = 16;
/// Offsets in a preamble: kind, session token, number of the queue pair, form of calls.
const KIND: usize = 12;
const TOKEN: usize = 16;
const NUMBER: usize = 32;
const CALLS: usize = 40;

const CONTROL: u32 = 1;
const JOIN: u32 = 2;

struct Echo;

impl Service for Echo {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        match request {
            [0xff, ..] => return Err(CallError::EndSession("malformed".into())),
            [0xfe, ..] => return Err("refused".into()),
            request => reply.extend(request.iter().rev()),
        }
        Ok(())
    }
}

struct Bench {
    path: PathBuf,
    good: Arc<Session>,
    _export: Export,
    _running: HostHandle,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Result<Bench, Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let host = Host::new()?;
        let memory = Arc::new(Memory::shared("fuzz", 1 << 16)?);
        let export = host.export(&memory, Access::REMOTE_ALL)?;
        let path = dir.path().join("socket");
        let address = Address::Unix(path.clone());
        let running = host.listen(std::slice::from_ref(&address), Arc::new(Echo))?;
        let good = Session::connect(&address, &SessionOptions::default())?;
        Ok(Bench { path, good, _export: export, _running: running, _dir: dir })
    }

    fn stream(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// Opens a session without queue pairs. Returns its control stream and its token.
    fn session(&self, fetch: bool) -> io::Result<(UnixStream, Vec<u8>)> {
        let mut control = self.stream()?;
        control.write_all(&preamble(CONTROL, &[0; 16], 1, fetch))?;
        let token = welcome(&mut control)?.ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok((control, token))
    }

    /// Joins all queue pairs of a session with `data` data queue pairs. If one were missing, the
    /// host would wait several seconds for it.
    fn join_all(&self, token: &[u8], data: u32, fetch: bool) -> io::Result<Vec<UnixStream>> {
        let fetching = fetch.then_some(data + 2);
        (0..=data).chain(fetching).map(|index| self.join(token, index)).collect()
    }

    /// Joins one queue pair of a session and completes its handshake.
    fn join(&self, token: &[u8], index: u32) -> io::Result<UnixStream> {
        let mut stream = self.stream()?;
        stream.write_all(&preamble(JOIN, token, index, false))?;
        let mut hello = b"rdmabox\x01\x03\0\0\0\x09\0\0\0".to_vec();
        hello.extend([0; 8]);
        stream.write_all(&hello)?;
        stream.read_exact(&mut [0; 24])?;
        Ok(stream)
    }
}

fn preamble(kind: u32, token: &[u8], number: u32, fetch: bool) -> Vec<u8> {
    // The preamble of a session without a key.
    let mut bytes = fuzzing::preamble_seeds().swap_remove(1);
    bytes[KIND..KIND + 4].copy_from_slice(&kind.to_le_bytes());
    bytes[TOKEN..TOKEN + 16].copy_from_slice(token);
    bytes[NUMBER..NUMBER + 4].copy_from_slice(&number.to_le_bytes());
    bytes[CALLS..CALLS + 4].copy_from_slice(&u32::from(fetch).to_le_bytes());
    bytes
}

/// Reads an answer. Returns the session token if the host has accepted the session.
fn welcome(control: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; HEAD];
    control.read_exact(&mut head)?;
    let mut body = vec![0; usize::from(u16::from_le_bytes([head[14], head[15]]))];
    control.read_exact(&mut body)?;
    Ok(body.get(..16).filter(|token| head[12] == 1 && **token != [0; 16]).map(<[u8]>::to_vec))
}

/// Sends `bytes` in `pieces` pieces, and closes the write side.
fn send(mut stream: &UnixStream, bytes: &[u8], pieces: usize) -> io::Result<()> {
    bytes.chunks(bytes.len().div_ceil(pieces).max(1)).try_for_each(|piece| stream.write_all(piece))?;
    stream.shutdown(Shutdown::Write)
}

/// Reads until the host closes the stream. Panics if it stays open without data.
fn read_to_end(mut stream: &UnixStream) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => panic!("the host does not close the stream"),
            Err(e) => return Err(e),
        }
    }
}

/// Sends `bytes` on the stream that `selector` selects. Sessions do not detach: the host notices
/// the end of their streams.
fn run_scenario(bench: &Bench, selector: u8, bytes: &[u8]) -> io::Result<()> {
    let pieces = 1 + usize::from(selector >> 4) % 4;
    match selector % 8 {
        0 | 1 => {
            let mut stream = bench.stream()?;
            if bytes.len() < PREAMBLE || bytes[KIND..KIND + 4] != CONTROL.to_le_bytes() {
                send(&stream, bytes, pieces)?;
                return read_to_end(&stream);
            }
            // The host may accept this preamble as a session.
            stream.write_all(bytes)?;
            let [number, calls] =
                [NUMBER, CALLS].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i])));
            if let Some(token) = welcome(&mut stream)? {
                bench.join_all(&token, number.min(16), calls == 1)?;
            }
            Ok(())
        }
        2 => {
            let (control, token) = bench.session(false)?;
            let _others = bench.join_all(&token, 1, false)?;
            send(&control, bytes, pieces)
        }
        queue_pair => {
            let (control, token) = bench.session(queue_pair == 7)?;
            let mut streams = bench.join_all(&token, 1, queue_pair == 7)?;
            if queue_pair == 5 {
                streams.push(bench.join(&token, 2)?);
            }
            // The session lasts as long as its control stream.
            let _control = control;
            send(&streams[[0, 1, 2, 0, 2][usize::from(queue_pair) - 3]], bytes, pieces)
        }
    }
}

/// Runs an input. Asserts that the host closes invalid streams and still answers the honest
/// session.
pub(super) fn streams(input: &[u8]) {
    thread_local!(static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) });
    let Some((selector, bytes)) = input.split_first() else { return };
    BENCH.with_borrow_mut(|bench| {
        let bench = bench.get_or_insert_with(|| Bench::new().unwrap_or_else(|e| panic!("no host: {e}")));
        // The host may close the stream before it has read all bytes.
        let _ = run_scenario(bench, *selector, bytes);
        let mut reply = Vec::new();
        let called = bench.good.call(b"abc", &mut reply);
        assert!(called.is_ok() && reply == b"cba", "the honest session: {called:?}");
    });
}

/// Returns inputs of honest clients.
pub(super) fn streams_seeds() -> Vec<Vec<u8>> {
    let seed = |selector: u8, bytes: &[u8]| [&[selector], bytes].concat();
    let mut seeds: Vec<_> = fuzzing::preamble_seeds().iter().map(|bytes| seed(0, bytes)).collect();
    seeds.extend(fuzzing::answer_seeds().iter().map(|bytes| seed(2, bytes)));
    assert!(fuzzing::preamble_seeds().iter().all(|seed| seed.len() == PREAMBLE));
    let frame = |opcode: u8, payload: &[u8]| {
        let mut bytes = vec![0; 48];
        bytes[0] = opcode;
        bytes[1] = 1;
        bytes[4] = payload.len() as u8;
        [&bytes, payload].concat()
    };
    for header in fuzzing::call_header_seeds() {
        let call = frame(1, &[&header[..], b"hello"].concat());
        seeds.extend([3, 4, 5, 7].map(|selector| seed(selector, &[&call[..], &call].concat())));
    }
    seeds.push(seed(3, &frame(1, &[0, 0, 0, 0, 0, 0, 0, 0, 0xff])));
    for opcode in [2, 3, 4, 5, 16, 17, 18, 19, 32, 33] {
        seeds.extend([3, 4].map(|selector| seed(selector, &frame(opcode, &[1; 8]))));
    }
    seeds
}
