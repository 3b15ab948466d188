//! A server in this process, and native mounts of it.

use std::time::Duration;

use rdmabox::{Address, ProviderKind};
use rfs_native::{Credentials, Error, Mount, MountOptions};
use rfs_server::{Config, Prefault, Server};
use tempfile::TempDir;

pub(crate) const PROVIDERS: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];

pub(crate) const ROOT: Credentials = Credentials { uid: 0, gid: 0, groups: Vec::new(), umask: 0o022 };

/// A server, which ends with this value.
pub(crate) struct TestServer {
    pub(crate) inner: Server,
    dir: TempDir,
}

impl TestServer {
    pub(crate) fn new(memory: u64) -> TestServer {
        TestServer::with(memory, |_| {})
    }

    pub(crate) fn with(memory: u64, change: impl FnOnce(&mut Config)) -> TestServer {
        let dir = tempfile::tempdir().expect("temporary directory");
        let listen = vec![
            Address::Unix(dir.path().join("socket")),
            Address::Tcp { host: "127.0.0.1".into(), port: 0 },
        ];
        TestServer::start(dir, listen, memory, |config| {
            config.root.uid = 0;
            config.root.gid = 0;
            change(config);
        })
    }

    fn start(
        dir: TempDir,
        listen: Vec<Address>,
        memory: u64,
        change: impl FnOnce(&mut Config),
    ) -> TestServer {
        let mut config =
            Config { listen, allow_without_keys: true, prefault: Prefault::Never, ..Config::new(memory) };
        config.root.perm = 0o777;
        change(&mut config);
        TestServer { inner: Server::start(config).expect("server"), dir }
    }

    pub(crate) fn address(&self, provider: ProviderKind) -> &Address {
        let mut addresses = self.inner.addresses().iter();
        addresses.find(|address| address.provider() == provider).expect("an address")
    }

    pub(crate) fn mount(&self, provider: ProviderKind) -> Mount {
        self.mount_with(provider, |_| {})
    }

    /// Mounts as root with changed options.
    pub(crate) fn mount_with(&self, provider: ProviderKind, change: impl FnOnce(&mut MountOptions)) -> Mount {
        let mut options = MountOptions::for_user(ROOT);
        options.provider = Some(provider);
        // Other tests may occupy the processors.
        (options.connect_timeout, options.timeout) = (WAIT_LIMIT, WAIT_LIMIT);
        change(&mut options);
        Mount::connect_to(self.address(provider), &options).expect("mounted")
    }

    /// Stops this server and starts another one at the same addresses.
    pub(crate) fn again(self, memory: u64, change: impl FnOnce(&mut Config)) -> TestServer {
        let TestServer { inner, dir } = self;
        let listen = inner.addresses().to_vec();
        drop(inner);
        TestServer::start(dir, listen, memory, change)
    }
}

/// Runs a test with a server and two mounts, over every provider and over two different ones.
pub(crate) fn with_two_mounts(test: impl Fn(&Mount, &Mount)) {
    let pairs = [
        (ProviderKind::Shm, ProviderKind::Shm),
        (ProviderKind::Tcp, ProviderKind::Tcp),
        (ProviderKind::Shm, ProviderKind::Tcp),
    ];
    for (one, two) in pairs {
        let server = TestServer::new(64 << 20);
        test(&server.mount(one), &server.mount(two));
    }
}

/// Runs a test with a mount over every provider, and with checksums.
pub(crate) fn with_mounts(test: impl Fn(&Mount)) {
    for checksum in [false, true] {
        for provider in PROVIDERS {
            let server = TestServer::with(64 << 20, |config| config.checksum = checksum);
            test(&server.mount(provider));
        }
    }
}

/// Returns the error number of a call that fails.
pub(crate) fn errno<T>(outcome: Result<T, Error>) -> i32 {
    outcome.err().map_or(0, |e| e.errno())
}

/// Returns the number of calls to the server so far.
pub(crate) fn calls(mount: &Mount) -> u64 {
    let counters = mount.counters();
    counters.iter().find(|(name, _)| *name == "calls").unwrap_or_else(|| panic!("{counters:?}")).1
}

/// Time limit for events that have to happen.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EBADF: i32 = 9;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EFBIG: i32 = 27;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EPERM: i32 = 1;
pub(crate) const ENAMETOOLONG: i32 = 36;
pub(crate) const ENOTEMPTY: i32 = 39;
pub(crate) const ELOOP: i32 = 40;
pub(crate) const EHOSTDOWN: i32 = 112;
