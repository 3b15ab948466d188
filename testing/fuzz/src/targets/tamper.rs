//! Fuzzes client and host through a proxy that changes their TCP streams. Both are honest, and use
//! a key or TLS.
//!
//! An input is a list of edits. An edit begins with a byte for stream and direction, and a byte for
//! the kind. Two bytes for the position, and a length with the inserted bytes, follow. Nothing may
//! hang or leak. Over TLS, the client must never accept changed data.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    error::Error,
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rdmabox::{
    Access, Address, CallsBy, Domain, Grant, Host, HostHandle, Key, Memory, MemoryServer, ProviderKind,
    Secret, Session, SessionOptions,
    tls::{TlsClient, TlsClientFiles, TlsServer, TlsServerFiles},
};

/// Timeout of client and host in a run with edits. Lost bytes cost this much time.
const SHORT: Duration = Duration::from_millis(20);
/// Timeout in a run without edits.
const LONG: Duration = Duration::from_secs(20);
/// Length of an edit in the input, without the bytes that it inserts.
const HEAD: usize = 5;
const STREAMS: u8 = 8;
const BYTES: usize = 64;

/// An edit of the bytes that pass.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EditKind {
    /// Replaces as many bytes by these bytes.
    Replace(Vec<u8>),
    /// Inserts these bytes.
    Insert(Vec<u8>),
    /// Removes this number of bytes.
    Drop(usize),
    /// Closes the stream.
    Cut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    /// Number of the stream, in the order of connection.
    stream: u8,
    from_host: bool,
    at: u64,
    kind: EditKind,
}

fn parse_edits(mut input: &[u8]) -> Vec<Edit> {
    let mut edits = Vec::new();
    while let Some((&[which, kind, low, high, len], rest)) = input.split_first_chunk::<HEAD>() {
        let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
        edits.push(Edit {
            stream: which % STREAMS,
            from_host: which >= 0x80,
            at: u16::from_le_bytes([low, high]).into(),
            kind: match kind % 4 {
                0 => EditKind::Replace(bytes.to_vec()),
                1 => EditKind::Insert(bytes.to_vec()),
                2 => EditKind::Drop(len.into()),
                _ => EditKind::Cut,
            },
        });
        // Drop and Cut have a length, but no bytes.
        input = if kind % 4 < 2 { rest } else { &input[HEAD..] };
    }
    edits
}

/// One direction of a proxied stream, with the state of its edits.
struct Direction {
    edits: VecDeque<Edit>,
    passed: u64,
    dropping: usize,
    replacing: VecDeque<u8>,
}

impl Direction {
    fn new(all: &[Edit], stream: u8, from_host: bool) -> Direction {
        let own = all.iter().filter(|edit| edit.stream == stream && edit.from_host == from_host);
        let mut edits: Vec<_> = own.cloned().collect();
        edits.sort_by_key(|edit| edit.at);
        Direction { edits: edits.into(), passed: 0, dropping: 0, replacing: VecDeque::new() }
    }

    /// Appends the edited bytes to `out`. Returns false if the stream must close.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        for byte in bytes {
            while self.edits.front().is_some_and(|edit| edit.at <= self.passed) {
                match self.edits.pop_front().map(|edit| edit.kind) {
                    Some(EditKind::Replace(bytes)) => self.replacing = bytes.into(),
                    Some(EditKind::Insert(bytes)) => out.extend(bytes),
                    Some(EditKind::Drop(count)) => self.dropping = count,
                    Some(EditKind::Cut) | None => return false,
                }
            }
            self.passed += 1;
            match (self.dropping, self.replacing.pop_front()) {
                (0, Some(other)) => out.push(other),
                (0, None) => out.push(*byte),
                _ => self.dropping -= 1,
            }
        }
        true
    }

    fn run(mut self, mut from: &TcpStream, mut to: &TcpStream) {
        let (mut bytes, mut out) = ([0; 4096], Vec::new());
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            out.clear();
            let goes_on = self.pass(&bytes[..count], &mut out) && count > 0;
            if to.write_all(&out).is_err() || !goes_on {
                // Shutting down both streams also ends the other direction.
                let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                return;
            }
        }
    }
}

struct Bench {
    proxy: TcpListener,
    host: (String, u16),
    options: SessionOptions,
    good: Arc<Session>,
    _running: HostHandle,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Creates a self-signed certificate and returns the TLS configurations of both sides.
fn certified(dir: &Path) -> Outcome<(Arc<TlsServer>, TlsClient)> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let (certificate, key) = (dir.join("server.pem"), dir.join("server.key"));
    fs::write(&certificate, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    let client = TlsClientFiles::new(certificate.clone());
    let server = TlsServerFiles::new(certificate, key);
    Ok((Arc::new(TlsServer::load(server)?), TlsClient::load(&client)?))
}

impl Bench {
    fn new(with_tls: bool) -> Outcome<Bench> {
        let dir = tempfile::tempdir()?;
        let secret = || Secret::new(&[7; 32]);
        let mut options = Session::builder()
            .provider(ProviderKind::Tcp)
            .calls(CallsBy::Reply)
            .queue_pairs(1)
            .connect_timeout(LONG)
            .operation_timeout(LONG)
            .into_options();
        let mut host = Host::new()?;
        if with_tls {
            let (server, client) = certified(dir.path())?;
            host = host.tls(server);
            options.tls = Some(client);
        } else {
            let id = "fuzz".parse()?;
            host = host.keys(Arc::new(HashMap::from([(id, Grant::new(secret()?, Domain::default()))])));
            options.key = Some(Key { id, secret: secret()? });
        }
        let memory = Arc::new(Memory::shared("fuzz", 1 << 16)?);
        let export = host.export(&memory, Access::REMOTE_ALL)?;
        let running = host.listen(&["tcp:127.0.0.1:0".parse()?], Arc::new(MemoryServer::new(export)))?;
        let address = running.addresses().first().cloned().ok_or("no address")?;
        let good = Session::connect(&address, &options)?;
        let Address::Tcp { host, port } = address else { return Err("no TCP".into()) };
        Ok(Bench {
            proxy: TcpListener::bind("127.0.0.1:0")?,
            host: (host, port),
            options,
            good,
            _running: running,
        })
    }

    /// Connects through the proxy, writes, and reads. Returns the written bytes and the bytes read.
    fn run_client(&self, is_edited: bool) -> Outcome<(Vec<u8>, Vec<u8>)> {
        let timeout = if is_edited { SHORT } else { LONG };
        let options = Session::builder()
            .options(self.options.clone())
            .connect_timeout(timeout)
            .operation_timeout(timeout)
            .into_options();
        let port = self.proxy.local_addr()?.port();
        let session = Session::connect(&Address::Tcp { host: "127.0.0.1".into(), port }, &options)?;
        let place = MemoryServer::locate(&session)?.base();
        let written: Vec<u8> = (0..BYTES as u8).collect();
        let mut read = vec![0; BYTES];
        session.write(place, &written)?;
        session.read(place, &mut read)?;
        session.close(std::time::Duration::ZERO);
        Ok((written, read))
    }

    /// Proxies connections until one arrives after `over` is set.
    fn run_proxy(&self, edits: &[Edit], over: &AtomicBool) {
        thread::scope(|scope| {
            for stream in 0.. {
                let Ok((client, _)) = self.proxy.accept() else { return };
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(host) = TcpStream::connect((self.host.0.as_str(), self.host.1)) else { return };
                let client = Arc::new(client);
                let host = Arc::new(host);
                let (there, back) =
                    [false, true].map(|back| Direction::new(edits, stream % STREAMS, back)).into();
                let ends = (Arc::clone(&client), Arc::clone(&host));
                scope.spawn(move || there.run(&ends.0, &ends.1));
                scope.spawn(move || back.run(&host, &client));
            }
        });
    }

    fn exchange(&self, edits: &[Edit]) -> Outcome<(Vec<u8>, Vec<u8>)> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.run_proxy(edits, &over));
            let outcome = self.run_client(!edits.is_empty());
            over.store(true, Ordering::Release);
            TcpStream::connect(self.proxy.local_addr()?)?;
            outcome
        })
    }
}

fn run(bench: &mut Option<Bench>, with_tls: bool, input: &[u8]) {
    let bench = bench.get_or_insert_with(|| Bench::new(with_tls).unwrap_or_else(|e| panic!("no host: {e}")));
    let edits = parse_edits(input);
    match bench.exchange(&edits) {
        Ok((written, read)) => {
            assert!(!with_tls || written == read, "the client accepted changed data over TLS")
        }
        Err(e) => assert!(!edits.is_empty(), "failed without edits: {e}"),
    }
    let located = MemoryServer::locate(&bench.good);
    assert!(located.is_ok(), "the honest session: {located:?}");
}

thread_local! {
    static KEYS: RefCell<Option<Bench>> = const { RefCell::new(None) };
    static TLS: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

/// Runs an input with a key.
pub(super) fn keys(input: &[u8]) {
    KEYS.with_borrow_mut(|bench| run(bench, false, input));
}

/// Runs an input with TLS.
pub(super) fn tls(input: &[u8]) {
    TLS.with_borrow_mut(|bench| run(bench, true, input));
}

/// Returns an empty input, and one edit of each kind for each stream, direction and position.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![Vec::new()];
    for stream in [0, 1, 2, 0x80, 0x81, 0x82] {
        for at in [0, 12, 40, 115, 160, 600] {
            seeds.push([&[stream, 0][..], &u16::to_le_bytes(at), &[2, 0xff, 0xff]].concat());
            seeds.push([&[stream, 1][..], &u16::to_le_bytes(at), &[3, 1, 2, 3]].concat());
            seeds.push([&[stream, 2][..], &u16::to_le_bytes(at), &[4]].concat());
            seeds.push([&[stream, 3][..], &u16::to_le_bytes(at), &[0]].concat());
        }
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(input: &[u8], chunk: usize) -> (Vec<u8>, bool) {
        let mut direction = Direction::new(&parse_edits(input), 1, false);
        let (bytes, mut out) = (b"0123456789".as_slice(), Vec::new());
        let goes_on = bytes.chunks(chunk).all(|piece| direction.pass(piece, &mut out));
        (out, goes_on)
    }

    #[test]
    fn edits_apply_at_their_position_of_their_stream_and_direction() {
        for pieces in [1, 3, 10] {
            assert_eq!(pass(b"", pieces), (b"0123456789".to_vec(), true));
            assert_eq!(pass(b"\x01\0\x02\0\x02ab", pieces), (b"01ab456789".to_vec(), true));
            assert_eq!(pass(b"\x01\x01\x02\0\x02ab", pieces), (b"01ab23456789".to_vec(), true));
            assert_eq!(pass(b"\x01\x02\x02\0\x03", pieces), (b"0156789".to_vec(), true));
            assert_eq!(pass(b"\x01\x03\x04\0\x00", pieces), (b"0123".to_vec(), false));
            // Edits of another stream and of the other direction have no effect.
            assert_eq!(pass(b"\x02\x03\x04\0\x00\x81\x03\x04\0\x00", pieces), (b"0123456789".to_vec(), true));
            // Two edits, not in the order of their positions.
            assert_eq!(
                pass(b"\x01\x02\x08\0\x01\x01\x01\x01\0\x01!", pieces),
                (b"0!12345679".to_vec(), true)
            );
        }
    }
}
