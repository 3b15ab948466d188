//! A master and stores, as programs that can be killed or in this process, and clients.

#![allow(dead_code, missing_docs, unreachable_pub)] // Each test crate uses a part of it.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rdmabox::{Address, ProviderKind, SessionOptions};
use rstore::{Client, ClientOptions, proto::Status};
use tempfile::TempDir;

/// Length of a chunk in these tests.
pub const CHUNK: u64 = 64 << 10;
/// Time for things that must happen.
pub const LIMIT: Duration = Duration::from_secs(60);

pub const PROVIDERS: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];

/// A program that ends with the test.
pub struct Program {
    child: Child,
    pub address: Address,
}

impl Program {
    /// Starts the program. Its files have at most `limit` blocks of 512 bytes.
    fn start(arguments: &[String], limit: Option<u64>) -> Program {
        let program = env!("CARGO_BIN_EXE_rstore");
        let mut command = Command::new(if limit.is_some() { "sh" } else { program });
        if let Some(blocks) = limit {
            command.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\""), "sh", program]);
        }
        command.args(arguments).env("RUST_LOG", "warn").stdout(Stdio::piped());
        die_with_test(&mut command);
        let mut child = command.spawn().expect("the program");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut next = || lines.next().expect("a line").expect("text");
        let address = next().parse().expect("an address");
        assert!(next().starts_with("ready:"));
        Program { child, address }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills the child when the thread of the test ends.
pub fn die_with_test(command: &mut Command) {
    // SAFETY: `prctl` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        });
    }
}

/// A pool of programs.
pub struct Pool {
    pub dir: TempDir,
    pub provider: ProviderKind,
    pub master: Option<Program>,
    pub master_address: Address,
    pub stores: Vec<Program>,
    next: u32,
    chunks: u64,
    options: Vec<String>,
    /// Longest file of the next master, in blocks of 512 bytes.
    limit: Option<u64>,
}

impl Pool {
    /// Starts a master and stores of `chunks` chunks each, and waits until they are ready.
    pub fn start(provider: ProviderKind, stores: usize, chunks: u64, options: &[&str]) -> Pool {
        Pool::start_with(provider, stores, chunks, options, None)
    }

    /// Starts a pool whose first master writes files of at most `limit` blocks of 512 bytes.
    pub fn start_limited(
        provider: ProviderKind,
        stores: usize,
        chunks: u64,
        options: &[&str],
        limit: u64,
    ) -> Pool {
        Pool::start_with(provider, stores, chunks, options, Some(limit))
    }

    fn start_with(
        provider: ProviderKind,
        stores: usize,
        chunks: u64,
        options: &[&str],
        limit: Option<u64>,
    ) -> Pool {
        let dir = tempfile::tempdir().expect("a folder");
        let options = options.iter().map(ToString::to_string).collect();
        let address = "127.0.0.1:0".parse().expect("an address");
        let mut pool = Pool {
            dir,
            provider,
            master: None,
            master_address: address,
            stores: Vec::new(),
            next: 0,
            chunks,
            options,
            limit,
        };
        pool.start_master();
        (0..stores).for_each(|_| pool.add_store());
        pool.wait("all stores are up", |status| {
            status.stores.iter().filter(|store| store.up).count() == stores
        });
        pool
    }

    fn listen(&mut self) -> String {
        self.next += 1;
        match self.provider {
            ProviderKind::Shm => format!("unix:{}/{}.sock", self.dir.path().display(), self.next),
            _ => "127.0.0.1:0".into(),
        }
    }

    /// Starts the master, at its former address if it had one.
    pub fn start_master(&mut self) {
        let listen = match &self.master_address {
            Address::Tcp { port: 0, .. } => self.listen(),
            address => address.to_string(),
        };
        let mut arguments: Vec<String> =
            ["master", "--listen", &listen, "--allow-without-keys"].map(str::to_owned).into();
        if !self.options.iter().any(|option| option == "--chunk") {
            arguments.extend(["--chunk".into(), CHUNK.to_string()]);
        }
        arguments.extend(self.options.iter().cloned());
        let master = Program::start(&arguments, self.limit.take());
        self.master_address = master.address.clone();
        self.master = Some(master);
    }

    pub fn add_store(&mut self) {
        let (listen, memory) = (self.listen(), (self.chunks * CHUNK).to_string());
        let master = self.master_address.to_string();
        let arguments = ["store", "--master", &master, "--memory", &memory, "--listen", &listen];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
        arguments.push("--allow-without-keys".into());
        self.stores.push(Program::start(&arguments, None));
    }

    pub fn client_options(&self) -> ClientOptions {
        let mut options = ClientOptions::default();
        options.session.provider = Some(self.provider);
        options
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.master_address, self.client_options()).expect("a client")
    }

    pub fn status(&self) -> Status {
        let mut options = SessionOptions::default();
        options.provider = Some(self.provider);
        rstore::master_status(&self.master_address, &options).expect("the status")
    }

    /// Waits until the state of the master has a property.
    pub fn wait(&self, property: &str, mut holds: impl FnMut(&Status) -> bool) -> Status {
        wait_for(property, || Some(self.status()).filter(|status| holds(status)))
    }

    /// Waits until all chunks of the stores are free, and nothing refers to any.
    pub fn wait_free(&self) {
        self.wait("all chunks are free", |status| {
            let chunks = status.chunks;
            let prepared: u64 = status.stores.iter().map(|store| store.prepared).sum();
            chunks.free == prepared && status.references == 0
        });
    }
}

/// Waits until there is a result.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
