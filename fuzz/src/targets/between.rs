//! Somebody between a client and a host, who changes what they say to each other: both are honest, and have a key, or TLS.
//!
//! An input is a list of changes: a stream and a direction, what is done, after how many bytes, and a length with the bytes that are put
//! there. Nothing may hang or be left behind, and over TLS nothing that was changed may be taken for what was said.

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
    Access, Address, CallsBy, Domain, Grant, Host, Key, Lender, Memory, ProviderKind, Running, Secret,
    Session, SessionOptions,
    tls::{TlsClient, TlsClientFiles, TlsServer, TlsServerFiles},
};

/// So long client and host wait for what has been taken away.
const SHORT: Duration = Duration::from_millis(20);
/// And where nothing has.
const LONG: Duration = Duration::from_secs(20);
/// Bytes of a change, without those that it puts there.
const HEAD: usize = 5;
const STREAMS: u8 = 8;
const BYTES: usize = 64;

/// What is done to what passes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// These take the place of as many.
    Replace(Vec<u8>),
    /// These come in front.
    Insert(Vec<u8>),
    /// So many do not pass.
    Drop(usize),
    /// Nothing passes any more.
    Cut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// In the order in which streams are made.
    stream: u8,
    from_host: bool,
    at: u64,
    what: What,
}

fn changes(mut input: &[u8]) -> Vec<Change> {
    let mut changes = Vec::new();
    while let Some((&[which, what, low, high, len], rest)) = input.split_first_chunk::<HEAD>() {
        let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
        changes.push(Change {
            stream: which % STREAMS,
            from_host: which >= 0x80,
            at: u16::from_le_bytes([low, high]).into(),
            what: match what % 4 {
                0 => What::Replace(bytes.to_vec()),
                1 => What::Insert(bytes.to_vec()),
                2 => What::Drop(len.into()),
                _ => What::Cut,
            },
        });
        // What is dropped or cut has no bytes.
        input = if what % 4 < 2 { rest } else { &input[HEAD..] };
    }
    changes
}

/// One direction of a stream.
struct Passage {
    changes: VecDeque<Change>,
    passed: u64,
    dropping: usize,
    replacing: VecDeque<u8>,
}

impl Passage {
    fn new(all: &[Change], stream: u8, from_host: bool) -> Passage {
        let own = all.iter().filter(|change| change.stream == stream && change.from_host == from_host);
        let mut changes: Vec<_> = own.cloned().collect();
        changes.sort_by_key(|change| change.at);
        Passage { changes: changes.into(), passed: 0, dropping: 0, replacing: VecDeque::new() }
    }

    /// What becomes of these bytes. False if nothing passes any more.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        for byte in bytes {
            while self.changes.front().is_some_and(|change| change.at <= self.passed) {
                match self.changes.pop_front().map(|change| change.what) {
                    Some(What::Replace(bytes)) => self.replacing = bytes.into(),
                    Some(What::Insert(bytes)) => out.extend(bytes),
                    Some(What::Drop(count)) => self.dropping = count,
                    Some(What::Cut) | None => return false,
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
                // The other direction ends when it is heard of.
                let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                return;
            }
        }
    }
}

struct Bench {
    between: TcpListener,
    host: (String, u16),
    options: SessionOptions,
    good: Arc<Session>,
    _running: Running,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A certificate that is its own authority, for both sides.
fn certified(dir: &Path) -> Outcome<(Arc<TlsServer>, TlsClient)> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let (certificate, key) = (dir.join("server.pem"), dir.join("server.key"));
    fs::write(&certificate, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    let client = TlsClientFiles { ca: certificate.clone(), name: None, own: None };
    let server = TlsServerFiles { certificate, key, client_ca: None };
    Ok((Arc::new(TlsServer::load(server)?), TlsClient::load(&client)?))
}

impl Bench {
    fn new(with_tls: bool) -> Outcome<Bench> {
        let dir = tempfile::tempdir()?;
        let secret = || Secret::new(&[7; 32]);
        let mut options = SessionOptions {
            provider: Some(ProviderKind::Tcp),
            calls: CallsBy::Reply,
            queue_pairs: 1,
            connect_timeout: LONG,
            operation_timeout: LONG,
            ..SessionOptions::default()
        };
        let mut host = Host::new()?;
        if with_tls {
            let (server, client) = certified(dir.path())?;
            host = host.tls(server);
            options.tls = Some(client);
        } else {
            let id = "fuzz".parse()?;
            host = host.keys(Arc::new(HashMap::from([(
                id,
                Grant { secret: secret()?, domain: Domain::default() },
            )])));
            options.key = Some(Key { id, secret: secret()? });
        }
        let memory = Arc::new(Memory::shared("fuzz", 1 << 16)?);
        let export = host.export(&memory, Access::REMOTE_ALL)?;
        let running = host.listen(&["tcp:127.0.0.1:0".parse()?], Arc::new(Lender::new(export)))?;
        let address = running.addresses().first().cloned().ok_or("no address")?;
        let good = Session::connect(&address, &options)?;
        let Address::Tcp { host, port } = address else { return Err("no TCP".into()) };
        Ok(Bench {
            between: TcpListener::bind("127.0.0.1:0")?,
            host: (host, port),
            options,
            good,
            _running: running,
        })
    }

    /// A client's work, through whoever is between. What it reads, of what it wrote.
    fn client(&self, changed: bool) -> Outcome<(Vec<u8>, Vec<u8>)> {
        let timeout = if changed { SHORT } else { LONG };
        let options =
            SessionOptions { connect_timeout: timeout, operation_timeout: timeout, ..self.options.clone() };
        let port = self.between.local_addr()?.port();
        let session = Session::connect(&Address::Tcp { host: "127.0.0.1".into(), port }, &options)?;
        let place = Lender::locate(&session)?.base;
        let written: Vec<u8> = (0..BYTES as u8).collect();
        let mut read = vec![0; BYTES];
        session.write(place, &written)?;
        session.read(place, &mut read)?;
        session.close();
        Ok((written, read))
    }

    /// Connections that come, until one comes at the end.
    fn be_between(&self, changes: &[Change], over: &AtomicBool) {
        thread::scope(|scope| {
            for stream in 0.. {
                let Ok((client, _)) = self.between.accept() else { return };
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(host) = TcpStream::connect((self.host.0.as_str(), self.host.1)) else { return };
                let client = Arc::new(client);
                let host = Arc::new(host);
                let (there, back) =
                    [false, true].map(|back| Passage::new(changes, stream % STREAMS, back)).into();
                let ends = (Arc::clone(&client), Arc::clone(&host));
                scope.spawn(move || there.run(&ends.0, &ends.1));
                scope.spawn(move || back.run(&host, &client));
            }
        });
    }

    fn meet(&self, changes: &[Change]) -> Outcome<(Vec<u8>, Vec<u8>)> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.be_between(changes, &over));
            let outcome = self.client(!changes.is_empty());
            over.store(true, Ordering::Release);
            TcpStream::connect(self.between.local_addr()?)?;
            outcome
        })
    }
}

fn run(bench: &mut Option<Bench>, with_tls: bool, input: &[u8]) {
    let bench = bench.get_or_insert_with(|| Bench::new(with_tls).unwrap_or_else(|e| panic!("no host: {e}")));
    let changes = changes(input);
    match bench.meet(&changes) {
        Ok((written, read)) => {
            assert!(!with_tls || written == read, "what was changed is taken for what was said")
        }
        Err(e) => assert!(!changes.is_empty(), "nobody changed anything: {e}"),
    }
    let located = Lender::locate(&bench.good);
    assert!(located.is_ok(), "the honest session: {located:?}");
}

thread_local! {
    static KEYS: RefCell<Option<Bench>> = const { RefCell::new(None) };
    static TLS: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

/// Takes an input, with keys.
pub(super) fn keys(input: &[u8]) {
    KEYS.with_borrow_mut(|bench| run(bench, false, input));
}

/// The same with TLS.
pub(super) fn tls(input: &[u8]) {
    TLS.with_borrow_mut(|bench| run(bench, true, input));
}

/// Nothing, and one change of each kind in each stream and direction, early and late.
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

    fn pass(input: &[u8], pieces: usize) -> (Vec<u8>, bool) {
        let mut passage = Passage::new(&changes(input), 1, false);
        let (said, mut out) = (b"0123456789".as_slice(), Vec::new());
        let goes_on = said.chunks(pieces).all(|piece| passage.pass(piece, &mut out));
        (out, goes_on)
    }

    #[test]
    fn changes_are_made_where_they_belong() {
        for pieces in [1, 3, 10] {
            assert_eq!(pass(b"", pieces), (b"0123456789".to_vec(), true));
            assert_eq!(pass(b"\x01\0\x02\0\x02ab", pieces), (b"01ab456789".to_vec(), true));
            assert_eq!(pass(b"\x01\x01\x02\0\x02ab", pieces), (b"01ab23456789".to_vec(), true));
            assert_eq!(pass(b"\x01\x02\x02\0\x03", pieces), (b"0156789".to_vec(), true));
            assert_eq!(pass(b"\x01\x03\x04\0\x00", pieces), (b"0123".to_vec(), false));
            // Another stream, and the other direction.
            assert_eq!(pass(b"\x02\x03\x04\0\x00\x81\x03\x04\0\x00", pieces), (b"0123456789".to_vec(), true));
            // One behind the other, in any order.
            assert_eq!(
                pass(b"\x01\x02\x08\0\x01\x01\x01\x01\0\x01!", pieces),
                (b"0!12345679".to_vec(), true)
            );
        }
    }
}
