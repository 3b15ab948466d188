//! Lenders in this process and in children, and programs over paged memory.

#![allow(dead_code, missing_docs, unreachable_pub)] // Each test crate uses a part of it.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::Arc,
};

use parking_lot::Mutex;
use rdmabox::{
    Address, ProviderKind, RdmaOptions, SessionOptions,
    provider::model::{CardParameters, ModelledCard, Timing},
};
use rfs_paging::{Lender, LenderOptions, PagedMemory, PagerEvent, PagerOptions, RemotePager};
use tempfile::TempDir;

pub const PAGE: usize = 4096;
pub const MIB: u64 = 1 << 20;

/// How a test reaches its lenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Shm,
    Tcp,
    /// TCP, and a modelled card that counts and takes no time.
    Model,
    Rdma,
}

impl FromStr for Provider {
    type Err = String;

    fn from_str(name: &str) -> Result<Provider, String> {
        match name.to_lowercase().as_str() {
            "shm" => Ok(Provider::Shm),
            "tcp" => Ok(Provider::Tcp),
            "model" => Ok(Provider::Model),
            "rdma" => Ok(Provider::Rdma),
            _ => Err(format!("{name:?} is no provider: expected shm, tcp, model or rdma")),
        }
    }
}

/// Returns the providers to test: the list in RDMABOX_TEST_PROVIDERS (`shm,tcp,model,rdma`), all of
/// which must be available, or else all that this machine has.
pub fn providers() -> Vec<Provider> {
    if let Ok(names) = std::env::var("RDMABOX_TEST_PROVIDERS") {
        return names.split(',').map(|name| name.trim().parse().expect("names of providers")).collect();
    }
    let mut providers = vec![Provider::Shm, Provider::Tcp, Provider::Model];
    match rdmabox::provider::rdma::open(&RdmaOptions::default()) {
        Ok(_) => providers.push(Provider::Rdma),
        Err(reason) => eprintln!("not run over rdma: {reason}"),
    }
    providers
}

/// Makes addresses to listen at.
pub struct Places {
    dir: TempDir,
    next: u32,
}

impl Places {
    pub fn new() -> Places {
        Places { dir: tempfile::tempdir().expect("a folder"), next: 0 }
    }

    pub fn address(&mut self, provider: Provider) -> Address {
        self.next += 1;
        match provider {
            Provider::Shm => Address::Unix(self.dir.path().join(format!("{}.sock", self.next))),
            Provider::Tcp | Provider::Model => "127.0.0.1:0".parse().expect("an address"),
            Provider::Rdma => "rdma:127.0.0.1:0".parse().expect("an address"),
        }
    }
}

/// Lenders in this process.
pub struct Lenders {
    pub places: Places,
    pub lenders: Vec<Lender>,
}

impl Lenders {
    pub fn start(provider: Provider, count: usize, memory: u64) -> Lenders {
        let mut places = Places::new();
        let listen = |_| {
            let address = places.address(provider);
            let options = LenderOptions::new(memory).allow_without_keys(true);
            Lender::listen(&[address], &options).expect("a lender")
        };
        let lenders = (0..count).map(listen).collect();
        Lenders { places, lenders }
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.lenders.iter().map(|lender| lender.addresses()[0].clone()).collect()
    }
}

/// A lender that can be killed.
pub struct ChildLender {
    child: Child,
    pub address: Address,
}

impl ChildLender {
    pub fn start(address: &Address, memory: u64) -> ChildLender {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-paging"));
        // SAFETY: `prctl` may be called between fork and exec.
        unsafe {
            // A test that a signal ends leaves no lender behind.
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command
            .args([
                "lend",
                "--memory",
                &memory.to_string(),
                "--listen",
                &address.to_string(),
                "--allow-without-keys",
            ])
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut next = || lines.next().expect("a line").expect("text");
        let address = next().parse().expect("an address");
        assert!(next().starts_with("ready:"));
        ChildLender { child, address }
    }

    /// Stops the process, which keeps its connections.
    pub fn stop(&self) {
        // SAFETY: The child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGSTOP) }, 0);
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("a running child");
        self.child.wait().expect("its end");
    }
}

impl Drop for ChildLender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Events of a pager.
pub type Log = Arc<Mutex<Vec<PagerEvent>>>;

/// Returns session options that move bytes over the provider, also to a host in this process.
pub fn session(provider: Provider) -> SessionOptions {
    let mut options = SessionOptions::default();
    options.provider = match provider {
        Provider::Shm => None,
        Provider::Tcp | Provider::Model => Some(ProviderKind::Tcp),
        Provider::Rdma => Some(ProviderKind::Rdma),
    };
    if provider == Provider::Model {
        let parameters = CardParameters::open("cx3").expect("a card");
        options.card = Some(ModelledCard::new(parameters, Timing::Counts));
    }
    options
}

/// Returns options of a pager with a budget in pages, and its events.
pub fn options(provider: Provider, budget: usize) -> (PagerOptions, Log) {
    let log = Log::default();
    let events = Arc::clone(&log);
    let options = PagerOptions::new((budget * PAGE) as u64)
        .session(session(provider))
        .on_event(move |event| events.lock().push(event.clone()));
    (options, log)
}

/// Stores a number in each of the pages.
pub fn fill(memory: &mut PagedMemory, pages: std::ops::Range<usize>, salt: u64) {
    for page in pages {
        let at = page * PAGE + page % 500 * 8;
        memory[at..at + 8].copy_from_slice(&(page as u64 ^ salt).to_le_bytes());
    }
}

/// Checks the numbers of [`fill`], and that the rest of each page is zero.
pub fn check(memory: &PagedMemory, pages: std::ops::Range<usize>, salt: u64) {
    for page in pages {
        let at = page % 500 * 8;
        let bytes = &memory[page * PAGE..(page + 1) * PAGE];
        assert_eq!(bytes[at..at + 8], (page as u64 ^ salt).to_le_bytes(), "page {page}");
        let rest = bytes[..at].iter().chain(&bytes[at + 8..]);
        assert!(rest.copied().all(|byte| byte == 0), "the rest of page {page}");
    }
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("in vain: {what}");
}

/// Connects a pager to the addresses.
pub fn pager(addresses: &[Address], options: PagerOptions) -> RemotePager {
    RemotePager::connect(addresses, options).expect("a pager")
}
