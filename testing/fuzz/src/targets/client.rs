//! Fuzzes the file system client with a server that sends arbitrary replies and data.
//!
//! An input is a list of answers, each with a two-byte length. The server takes its replies and the
//! data of RDMA reads from the list. When the list is exhausted, the server is disconnected. The
//! seeds record the answers of an honest server to the same client.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use rdmabox::{Memory, RequestError};
use rfs_client::{
    Access, AttachOptions, CallOptions, Client, ClientError, Creator, LockRequest, Op, Place, Region, Remote,
    Seek, Status,
};
use rfs_proto::{
    Attr, FallocateFlags, LockClass, LockKind, LockRange, ROOT_INO, RenameFlags, SetAttr, SetTime, XattrSet,
    decode_request, encode_reply,
};

use super::dispatcher::Bench;

/// Session number at the honest server.
const SESSION: u64 = 5;

type Result<T> = std::result::Result<T, RequestError>;

/// Supplies the answers of a server.
trait Source: Send {
    /// Writes the reply to a request. Returns `None` if the server is disconnected.
    fn reply(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Option<()>;
    /// Fills `out` from remote memory. Returns `None` if the server is disconnected.
    fn read(&mut self, from: Place, out: &mut [u8]) -> Option<()>;
    /// Writes to remote memory.
    fn write(&mut self, to: Place, data: &[u8]);

    /// Carries out a step of a list. Returns `None` if the server is disconnected.
    fn execute(&mut self, op: &mut Op<'_>) -> Option<()> {
        match op {
            Op::Write { place, data } => self.write(*place, data),
            Op::Read { place, out } => self.read(*place, out)?,
            Op::CompareSwap { place, compare, swap, old } => {
                let mut bytes = [0; 8];
                self.read(*place, &mut bytes)?;
                **old = u64::from_le_bytes(bytes);
                if **old == *compare {
                    self.write(*place, &swap.to_le_bytes());
                }
            }
        }
        Some(())
    }
}

/// A connection to a simulated server, which is defined by its answers.
struct Server<S>(Mutex<S>);

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

impl<S: Source> Server<S> {
    fn with<T>(&self, ask: impl FnOnce(&mut S) -> Option<T>) -> Result<T> {
        ask(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)).ok_or(RequestError::Disconnected)
    }
}

impl<S: Source> Remote for Server<S> {
    fn call(&self, request: &[u8], reply: &mut Vec<u8>, _: CallOptions<'_>) -> Result<()> {
        self.with(|source| source.reply(request, reply))
    }

    fn access(&self, access: &mut Access<'_, '_>) -> Result<()> {
        self.with(|source| {
            match access {
                Access::Write(parts) => parts.iter().for_each(|(to, data)| source.write(*to, data)),
                Access::Read(parts) => {
                    parts.iter_mut().try_for_each(|(from, out)| source.read(*from, out))?;
                }
                Access::List(ops) => ops.iter_mut().try_for_each(|op| source.execute(op))?,
            }
            Some(())
        })
    }

    fn status(&self) -> Status {
        Status { is_connected: true, ..Status::default() }
    }
}

/// A server that takes its answers from the input.
struct Liar {
    answers: Vec<u8>,
    at: usize,
}

impl Liar {
    fn next(&mut self) -> Option<&[u8]> {
        let len =
            self.answers.get(self.at..)?.first_chunk().map(|len| usize::from(u16::from_le_bytes(*len)))?;
        let from = self.at + 2;
        self.at = from.saturating_add(len).min(self.answers.len());
        Some(&self.answers[from..self.at])
    }
}

impl Source for Liar {
    fn reply(&mut self, _: &[u8], reply: &mut Vec<u8>) -> Option<()> {
        let answer = self.next()?;
        reply.clear();
        reply.extend_from_slice(answer);
        Some(())
    }

    fn read(&mut self, _: Place, out: &mut [u8]) -> Option<()> {
        let answer = self.next()?;
        let len = answer.len().min(out.len());
        out[..len].copy_from_slice(&answer[..len]);
        Some(())
    }

    fn write(&mut self, _: Place, _: &[u8]) {}
}

/// A server that follows the protocol and records its answers.
struct Honest {
    bench: Bench,
    answers: Vec<u8>,
}

impl Honest {
    fn new() -> Honest {
        let bench = Bench::new();
        bench.begin(SESSION);
        Honest { bench, answers: Vec::new() }
    }

    fn record(&mut self, answer: &[u8]) {
        self.answers.extend((answer.len() as u16).to_le_bytes());
        self.answers.extend_from_slice(answer);
    }

    fn memory(&self, Place { region, offset, .. }: Place) -> (&Memory, usize) {
        let memory = match region {
            Region::Arena => &self.bench.arena,
            // This server has no checksums.
            Region::Table | Region::Sums => &self.bench.table,
        };
        (memory, offset as usize)
    }
}

impl Source for Honest {
    fn reply(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Option<()> {
        let answer = self.bench.ask(SESSION, decode_request(request).ok()?, |_| {})?;
        encode_reply(&answer, reply);
        self.record(reply);
        Some(())
    }

    fn read(&mut self, from: Place, out: &mut [u8]) -> Option<()> {
        let (memory, at) = self.memory(from);
        memory.read(at, out);
        self.record(out);
        Some(())
    }

    fn write(&mut self, to: Place, data: &[u8]) {
        let (memory, at) = self.memory(to);
        memory.write(at, data);
    }
}

/// Calls most operations of the client. Errors are expected: the client may reject invalid answers.
fn call_operations(client: &Client) {
    let by = Creator { uid: 1, gid: 1, umask: 0o022 };
    let inode = |attr: std::result::Result<Attr, ClientError>| attr.map_or(2, |attr| attr.ino);
    let file = inode(client.files.create(ROOT_INO, b"file", 0o644, by, true));
    let mut buffer = Vec::new();
    let _ = client.writes.write(file, 0, &[7; 300]);
    let _ = client.writes.write(file, 6000, &[8; 100]);
    let _ = client.appends.append(file, b"more");
    for (offset, len) in [(0, 100), (250, 100), (5990, 200), (1 << 40, 10)] {
        let _ = client.reads.read(file, offset, len, &mut buffer, |_| ());
    }
    let _ = client.attributes.getattr(file);
    for target in [Seek::Data, Seek::Hole] {
        let _ = client.space.seek(file, 10, target);
    }
    let _ = client.space.fallocate(file, 4096, 9000, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE);
    let other = inode(client.names.mkdir(ROOT_INO, b"directory", 0o755, by));
    let copy = inode(client.files.create(other, b"copy", 0o600, by, false));
    let _ = client.space.copy((file, 0), (copy, 100), 5000);
    let size = SetAttr { size: Some(50), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let _ = client.attributes.setattr(file, &size);
    let _ = client.reads.read(file, 0, 100, &mut buffer, |_| ());
    let _ = client.xattrs.set_xattr(file, b"user.a", &[5; 40], XattrSet::Any, false, None);
    let _ = client.xattrs.get_xattr(file, b"user.a");
    let _ = client.xattrs.list_xattr(file);
    let _ = client.xattrs.remove_xattr(file, b"user.a", None);
    let _ = client.names.symlink(other, b"link", b"../file", by).map(|attr| client.names.readlink(attr.ino));
    let _ = client.names.link(file, other, b"second");
    let _ =
        client.names.rename((ROOT_INO, b"file"), (other, b"third"), RenameFlags::empty(), None, (None, None));
    let _ = client.lookups.lookup(other, b"third");
    let mut cookie = 0;
    for _ in 0..4 {
        let Ok(page) = client.directories.readdir(other, cookie, 2) else { break };
        let Some(last) = page.entries.last() else { break };
        cookie = last.cookie;
    }
    let wanted = LockRequest {
        ino: file,
        handle: 1,
        owner: 1,
        class: LockClass::Record,
        kind: LockKind::Exclusive,
        range: LockRange { first: 0, last: 9 },
        pid: 1,
    };
    let _ = client.locks.lock(&wanted, None);
    let _ = client.locks.test_lock(&LockRequest { owner: 2, ..wanted });
    let _ = client.locks.unlock_owner(file, 1);
    let _ = (client.export.statfs(), client.export.server_stats());
    let _ = client.files.fsync(file);
    for ino in [copy, file] {
        let _ = client.files.close(ino);
    }
    let _ = client.names.unlink(other, b"third");
    let _ = client.names.rmdir(ROOT_INO, b"directory");
    client.lookups.forget(file, 2);
}

fn run(server: Arc<dyn Remote>, keeps: bool) {
    let options = AttachOptions { caches: keeps, ..AttachOptions::default() };
    if let Ok(client) = Client::attach(server, &options) {
        call_operations(&client);
    }
}

/// Runs an input: a byte that enables the client's caches, and the answers.
pub(super) fn lies(input: &[u8]) {
    let Some((how, answers)) = input.split_first() else { return };
    run(Arc::new(Server(Mutex::new(Liar { answers: answers.to_vec(), at: 0 }))), how & 1 != 0);
}

/// Returns the answers of an honest server, without and with client caches.
pub(super) fn lies_seeds() -> Vec<Vec<u8>> {
    let seed = |keeps: bool| {
        let server = Arc::new(Server(Mutex::new(Honest::new())));
        run(Arc::<Server<Honest>>::clone(&server), keeps);
        let answers = &server.0.lock().unwrap_or_else(PoisonError::into_inner).answers;
        [&[u8::from(keeps)], &answers[..]].concat()
    };
    vec![seed(false), seed(true)]
}
