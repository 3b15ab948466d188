//! A host that listens, with an honest session beside each stream that is not.
//!
//! The first byte of an input says what it is: the first words on a stream, what follows on the stream of a session, or what comes on
//! a stream that has joined one as one of its queue pairs.

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
    Access, Address, Export, Host, Memory, Peer, Reply, Running, Service, Session, SessionOptions, fuzzing,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a preamble, and of the fixed part of an answer behind its head.
const PREAMBLE: usize = 112;
const HEAD: usize = 16;
/// Where a preamble says its kind, names the session, and says which queue pair.
const KIND: usize = 12;
const TOKEN: usize = 16;
const NUMBER: usize = 32;
const CALLS: usize = 40;

const CONTROL: u32 = 1;
const JOIN: u32 = 2;

struct Echo;

impl Service for Echo {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), String> {
        match request {
            [0xff, ..] => return Err("malformed".into()),
            request => reply.extend(request.iter().rev()),
        }
        Ok(())
    }
}

struct Bench {
    path: PathBuf,
    good: Arc<Session>,
    _export: Export,
    _running: Running,
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
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// A session whose queue pairs are still to join, and its name.
    fn session(&self, fetch: bool) -> io::Result<(UnixStream, Vec<u8>)> {
        let mut control = self.stream()?;
        control.write_all(&preamble(CONTROL, &[0; 16], 1, fetch))?;
        let token = welcome(&mut control)?.ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok((control, token))
    }

    /// All queue pairs of a session with so many for data. A host waits for the last one of them for seconds.
    fn join_all(&self, token: &[u8], data: u32, fetch: bool) -> io::Result<Vec<UnixStream>> {
        let fetching = fetch.then_some(data + 2);
        (0..=data).chain(fetching).map(|index| self.join(token, index)).collect()
    }

    /// A queue pair of it that has shaken hands.
    fn join(&self, token: &[u8], index: u32) -> io::Result<UnixStream> {
        let mut stream = self.stream()?;
        stream.write_all(&preamble(JOIN, token, index, false))?;
        let mut hello = b"rdmabox\x01\x02\0\0\0\x09\0\0\0".to_vec();
        hello.extend([0; 8]);
        stream.write_all(&hello)?;
        stream.read_exact(&mut [0; 24])?;
        Ok(stream)
    }
}

fn preamble(kind: u32, token: &[u8], number: u32, fetch: bool) -> Vec<u8> {
    // One of a session without a key, with other numbers in it.
    let mut bytes = fuzzing::preamble_seeds().swap_remove(1);
    bytes[KIND..KIND + 4].copy_from_slice(&kind.to_le_bytes());
    bytes[TOKEN..TOKEN + 16].copy_from_slice(token);
    bytes[NUMBER..NUMBER + 4].copy_from_slice(&number.to_le_bytes());
    bytes[CALLS..CALLS + 4].copy_from_slice(&u32::from(fetch).to_le_bytes());
    bytes
}

/// Reads an answer; the name of the session, if it is one that says that there is one.
fn welcome(control: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; HEAD];
    control.read_exact(&mut head)?;
    let mut body = vec![0; usize::from(u16::from_le_bytes([head[14], head[15]]))];
    control.read_exact(&mut body)?;
    Ok(body.get(..16).filter(|token| head[12] == 1 && **token != [0; 16]).map(<[u8]>::to_vec))
}

/// Says something, in so many pieces, and that there is no more.
fn say(mut stream: &UnixStream, bytes: &[u8], pieces: usize) -> io::Result<()> {
    bytes.chunks(bytes.len().div_ceil(pieces).max(1)).try_for_each(|piece| stream.write_all(piece))?;
    stream.shutdown(Shutdown::Write)
}

/// Hears all that is said, until the host hangs up.
fn hear(mut stream: &UnixStream) -> io::Result<()> {
    let mut heard = [0; 4096];
    loop {
        match stream.read(&mut heard) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => panic!("the host does not hang up"),
            Err(e) => return Err(e),
        }
    }
}

/// Sessions are left without a farewell: the host waits for the end of all their streams.
fn speak(bench: &Bench, what: u8, said: &[u8]) -> io::Result<()> {
    let pieces = 1 + usize::from(what >> 4) % 4;
    match what % 8 {
        0 | 1 => {
            let mut stream = bench.stream()?;
            if said.len() < PREAMBLE || said[KIND..KIND + 4] != CONTROL.to_le_bytes() {
                say(&stream, said, pieces)?;
                return hear(&stream);
            }
            // It may be the beginning of a session.
            stream.write_all(said)?;
            let [number, calls] =
                [NUMBER, CALLS].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| said[at + i])));
            if let Some(token) = welcome(&mut stream)? {
                bench.join_all(&token, number.min(16), calls == 1)?;
            }
            Ok(())
        }
        2 => {
            let (control, token) = bench.session(false)?;
            let _others = bench.join_all(&token, 1, false)?;
            say(&control, said, pieces)
        }
        what => {
            let (control, token) = bench.session(what == 7)?;
            let mut streams = bench.join_all(&token, 1, what == 7)?;
            if what == 5 {
                streams.push(bench.join(&token, 2)?);
            }
            // The session lasts as long as its control stream.
            let _control = control;
            say(&streams[[0, 1, 2, 0, 2][usize::from(what) - 3]], said, pieces)
        }
    }
}

/// Takes an input. The host hangs up on who is no client, and the honest session is answered.
pub(super) fn streams(input: &[u8]) {
    thread_local!(static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) });
    let Some((what, said)) = input.split_first() else { return };
    BENCH.with_borrow_mut(|bench| {
        let bench = bench.get_or_insert_with(|| Bench::new().unwrap_or_else(|e| panic!("no host: {e}")));
        // A host may hang up before it has heard all.
        let _ = speak(bench, *what, said);
        let mut reply = Vec::new();
        let called = bench.good.call(b"abc", &mut reply);
        assert!(called.is_ok() && reply == b"cba", "the honest session: {called:?}");
    });
}

/// What honest clients say.
pub(super) fn streams_seeds() -> Vec<Vec<u8>> {
    let say = |what: u8, said: &[u8]| [&[what], said].concat();
    let mut seeds: Vec<_> = fuzzing::preamble_seeds().iter().map(|said| say(0, said)).collect();
    seeds.extend(fuzzing::answer_seeds().iter().map(|said| say(2, said)));
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
        seeds.extend([3, 4, 5, 7].map(|what| say(what, &[&call[..], &call].concat())));
    }
    seeds.push(say(3, &frame(1, &[0, 0, 0, 0, 0, 0, 0, 0, 0xff])));
    for opcode in [2, 3, 4, 5, 16, 17, 18, 19, 32, 33] {
        seeds.extend([3, 4].map(|what| say(what, &frame(opcode, &[1; 8]))));
    }
    seeds
}
