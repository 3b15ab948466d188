//! Servers in this process and in children, and their clients.

#![allow(dead_code, missing_docs, unreachable_pub)] // Each test crate uses a part of it.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, ChildStdout, Command, Stdio},
};

use jakiro::{Client, ClientOptions, Server, ServerOptions, StoreOptions};
use rdmabox::{Address, CallsBy, ProviderKind};
use tempfile::TempDir;

/// How a client reaches its server, and how replies come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub provider: ProviderKind,
    pub calls: CallsBy,
}

pub const WAYS: [Way; 4] = [
    Way { provider: ProviderKind::Shm, calls: CallsBy::Fetch },
    Way { provider: ProviderKind::Shm, calls: CallsBy::Reply },
    Way { provider: ProviderKind::Tcp, calls: CallsBy::Fetch },
    Way { provider: ProviderKind::Tcp, calls: CallsBy::Reply },
];

impl Way {
    /// Returns an address to listen at, with a folder for its socket.
    pub fn address(self) -> (Address, TempDir) {
        let dir = tempfile::tempdir().expect("a folder");
        let address = match self.provider {
            ProviderKind::Shm => Address::Unix(dir.path().join("jakiro.sock")),
            _ => "127.0.0.1:0".parse().expect("an address"),
        };
        (address, dir)
    }

    /// Returns an address that a later server can have again: two ports below those that the
    /// kernel gives to connections.
    pub fn fixed_address(self) -> (Address, TempDir) {
        let (address, dir) = self.address();
        if self.provider == ProviderKind::Shm {
            return (address, dir);
        }
        let is_free = |port: &u16| {
            [*port, port + 1].into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        };
        let ports = std::iter::repeat_with(|| fastrand::u16(10_000..32_000));
        let port = ports.take(1000).find(is_free).expect("two free ports");
        (Address::Tcp { host: "127.0.0.1".into(), port }, dir)
    }

    pub fn options(self) -> ClientOptions {
        let mut options = ClientOptions::default().calls(self.calls);
        options.session.provider = Some(self.provider);
        options
    }
}

/// A server in this process.
pub struct Local {
    pub server: Server,
    pub way: Way,
    _dir: TempDir,
}

impl Local {
    pub fn start(way: Way, store: StoreOptions) -> Local {
        let (address, dir) = way.address();
        let options = ServerOptions::new(store).allow_without_keys(true);
        let server = Server::listen(&[address], &options).expect("a server");
        Local { server, way, _dir: dir }
    }

    pub fn address(&self) -> &Address {
        &self.server.addresses()[0]
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address(), &self.way.options()).expect("a client")
    }
}

/// The program `jakiro-server`, which is killed when the value is dropped.
pub struct Program {
    pub child: Child,
    pub address: Address,
    /// The address of the text protocol.
    pub text: Option<String>,
    pub output: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(address: &Address, more: &[&str]) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_jakiro-server"))
            .args(["--memory", "16m", "--threads", "2", "--allow-without-keys", "--listen"])
            .arg(address.to_string())
            .args(more)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let address = read_line(&mut output).parse().expect("an address");
        let mut line = read_line(&mut output);
        let text = line.strip_prefix("text ").map(str::to_owned);
        if text.is_some() {
            line = read_line(&mut output);
        }
        assert!(line.starts_with("ready:"), "{line}");
        Program { child, address, text, output }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("a running child");
        self.child.wait().expect("its end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the next line without its end.
pub fn read_line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}
