//! Nodes in this process and in others, and random clients whose histories are checked.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

#[path = "../../src/simulation/history.rs"]
pub mod history;

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command as Process, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nessie::{Command, JoinOptions, Members, NessieError, Node, NodeOptions};
use rdmabox::{Address, ProviderKind, RequestError, Session};

use history::{Event, Record, is_linearizable};

/// Time for things that must happen, also on a slow machine.
pub const LONG: Duration = Duration::from_secs(60);

/// A folder with a list of nodes.
pub struct Deployment {
    pub dir: tempfile::TempDir,
    pub members: Members,
    pub provider: ProviderKind,
    pub index_bytes: u64,
    /// Numbers for nodes that join.
    pub spare: u16,
}

impl Deployment {
    /// Makes a list of nodes on this machine.
    pub fn new(nodes: usize, provider: ProviderKind) -> Deployment {
        let dir = tempfile::tempdir().expect("a folder");
        let mut text = String::new();
        // All ports are taken at the same time, so that they differ.
        let ports: Vec<TcpListener> =
            (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        for (node, port) in ports.iter().enumerate() {
            let address = match provider {
                ProviderKind::Tcp => port.local_addr().expect("an address").to_string(),
                _ => format!("unix:{}", dir.path().join(format!("node-{node}.sock")).display()),
            };
            text += &format!("{node} {address}\n");
        }
        let file = dir.path().join("nodes");
        std::fs::write(&file, &text).expect("a file");
        let members = Members::load(&file).expect("a list");
        Deployment { members, dir, provider, index_bytes: 64 * 8, spare: 0 }
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("nodes")
    }

    pub fn address(&self, node: u16) -> &Address {
        self.members.address(node).expect("in the list")
    }

    /// Returns options with small tables and short times.
    pub fn options(&self, node: u16) -> NodeOptions {
        let mut options = NodeOptions::new(node, self.members.clone());
        options.provider = Some(self.provider);
        options.index_bytes = self.index_bytes;
        options.spare = self.spare;
        options.data_bytes = 64 << 10;
        options.allow_without_keys = true;
        options.max_key = 16;
        options.max_value = 64;
        options.patience = Duration::from_millis(1000);
        options
    }

    pub fn start(&self, node: u16) -> Node {
        Node::start(self.options(node)).expect("a node")
    }

    /// Starts a node that joins through node `seed`.
    pub fn join(&self, seed: u16, name: &str) -> Result<Node, NessieError> {
        let listen = match self.provider {
            ProviderKind::Tcp => {
                TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().map(|at| at.to_string())
            }
            _ => Ok(format!("unix:{}", self.dir.path().join(name).display())),
        };
        let mut options = JoinOptions::new(listen.expect("an address").parse().expect("an address"));
        options.provider = Some(self.provider);
        options.data_bytes = 64 << 10;
        options.allow_without_keys = true;
        Node::join(self.address(seed), &options)
    }

    /// Starts a node in a process of its own, with the same options.
    pub fn spawn(&self, node: u16) -> NodeProcess {
        NodeProcess::start(self, node)
    }
}

/// A node in another process, which is killed when this is dropped.
pub struct NodeProcess {
    pub child: Child,
    pub address: Address,
}

impl NodeProcess {
    fn start(deployment: &Deployment, node: u16) -> NodeProcess {
        let mut child = Process::new(env!("CARGO_BIN_EXE_nessie-node"))
            .args(["--nodes", &deployment.file().display().to_string(), "--id", &node.to_string()])
            .args(["--index", &deployment.index_bytes.to_string()])
            .args(["--spare", &deployment.spare.to_string()])
            .args(["--data", "64k", "--max-key", "16", "--max-value", "64"])
            .args(["--patience-ms", "1000", "--wait-s", "0", "--allow-without-keys"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("output")).read_line(&mut line).expect("a line");
        NodeProcess { child, address: deployment.address(node).clone() }
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Process::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("an end");
    }

    /// Executes a command as a client program does.
    pub fn command(&self, session: &Session, command: &Command) -> Result<Vec<u8>, RequestError> {
        let mut reply = Vec::new();
        session.call(&command.encode(), &mut reply)?;
        Ok(reply)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats until it succeeds, or [`LONG`] has passed.
pub fn eventually<T>(mut attempt: impl FnMut() -> Result<T, NessieError>) -> T {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(e) if begun.elapsed() > LONG => panic!("{e}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The operations of random clients, by key.
pub struct Histories {
    begun: Instant,
    next_value: AtomicU64,
    records: Vec<Mutex<Vec<Record>>>,
}

impl Histories {
    pub fn new(keys: usize) -> Histories {
        let records = (0..keys).map(|_| Mutex::default()).collect();
        Histories { begun: Instant::now(), next_value: AtomicU64::new(1), records }
    }

    pub fn key(number: usize) -> Vec<u8> {
        format!("key-{number}").into_bytes()
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn record(&self, key: usize, called: u64, returned: Option<u64>, event: Event) {
        self.records[key].lock().expect("no panic").push(Record { called, returned, event });
    }

    /// Executes a random operation. Returns its error.
    pub fn step(&self, rng: &mut fastrand::Rng, store: &dyn Store) -> Result<(), NessieError> {
        let number = rng.usize(..self.records.len());
        let key = Histories::key(number);
        let kind = rng.u8(..10);
        let value = self.next_value.fetch_add(1, Ordering::Relaxed);
        let called = self.now();
        let (outcome, event) = match kind {
            0..=4 => match store.get(&key) {
                Ok(found) => (Ok(()), Event::Get(found.map(|bytes| parse(&bytes)))),
                // A GET that fails says nothing.
                Err(e) => return Err(e),
            },
            5..=8 => (store.put(&key, &bytes(value)), Event::Put(value)),
            _ => (store.delete(&key), Event::Delete),
        };
        match &outcome {
            Ok(()) => self.record(number, called, Some(self.now()), event),
            Err(e) if e.outcome_unknown() => self.record(number, called, None, event),
            Err(_) => {}
        }
        outcome
    }

    /// Checks the history of each key. Returns the number of recorded operations.
    ///
    /// # Panics
    /// If the history of a key is not linearizable.
    pub fn check(self) -> usize {
        let mut count = 0;
        for (key, records) in self.records.into_iter().enumerate() {
            let mut records = records.into_inner().expect("no panic");
            records.sort_by_key(|record| record.called);
            count += records.len();
            assert!(is_linearizable(&records), "key {key}: {records:#?}");
        }
        count
    }
}

fn bytes(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(8)
}

fn parse(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert_eq!(bytes, value.to_le_bytes().repeat(8), "a torn value");
    value
}

/// A node in this process or in another one.
pub trait Store: Sync {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, NessieError>;
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), NessieError>;
    fn delete(&self, key: &[u8]) -> Result<(), NessieError>;
}

impl Store for Node {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, NessieError> {
        Ok(Node::get(self, key)?.map(|value| value.to_vec()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), NessieError> {
        Node::put(self, key, value)
    }

    fn delete(&self, key: &[u8]) -> Result<(), NessieError> {
        Node::delete(self, key)
    }
}

/// Commands to a node in another process. Every failure has an unknown outcome.
pub struct Remote<'a>(pub &'a Session);

impl Remote<'_> {
    fn call(&self, command: &Command) -> Result<Vec<u8>, NessieError> {
        let mut reply = Vec::new();
        let fault = |e: RequestError| NessieError::Unreachable { node: u16::MAX, reason: e.to_string() };
        self.0.call(&command.encode(), &mut reply).map_err(fault)?;
        Ok(reply)
    }
}

impl Store for Remote<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, NessieError> {
        let reply = self.call(&Command::Get(key.to_vec()))?;
        Ok(reply.strip_prefix(b"+").map(<[u8]>::to_vec))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), NessieError> {
        self.call(&Command::Put(key.to_vec(), value.to_vec())).map(drop)
    }

    fn delete(&self, key: &[u8]) -> Result<(), NessieError> {
        self.call(&Command::Delete(key.to_vec())).map(drop)
    }
}
