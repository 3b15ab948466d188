//! Configuration of a server, and the checks that need no memory and no socket.
//!
//! # Concurrency
//! Plain values; no thread is started.

use std::{path::PathBuf, sync::Arc, time::Duration};

use rdmabox::{Address, Fencing, RdmaOptions, provider::soft::ENGINE_LOOK, tls::TlsServerFiles};
use rfs_proto::BLOCK;

use super::{
    error::StartError,
    export_config::{ExportConfig, MIN_MEMORY},
    prefault::Prefault,
    stores::{Membership, StoresConfig},
};
use crate::{
    metadata::{
        clock::{Clock, SystemClock},
        root::Root,
    },
    service::DEFAULT_LEASE,
    space::{account::Zeroing, eviction::EvictionPolicy},
};

/// Default limit of sessions per key. This many sessions make the server use less than 64 MiB.
pub const DEFAULT_SESSIONS_PER_KEY: usize = 16;

/// Default time for the acknowledgement of a recall. The changing request waits meanwhile, and
/// clients give up after ten seconds. The time covers a five-second outage of network or client,
/// and two seconds for the recall and its acknowledgement.
pub const DEFAULT_RECALL_TIMEOUT: Duration = Duration::from_secs(8);

/// Default time between two snapshots. Each snapshot writes the whole export, which shall take only
/// a part of the interval.
pub const DEFAULT_SNAPSHOT_EVERY: Duration = Duration::from_secs(300);

/// Default number of snapshots that are kept.
pub const DEFAULT_SNAPSHOT_KEEP: usize = 2;

/// Snapshot options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persist {
    /// The directory of the snapshots.
    pub dir: PathBuf,
    /// Time between the end of a snapshot and the start of the next. `None`: only on request and
    /// when the server stops.
    pub every: Option<Duration>,
    /// Number of complete snapshots that are kept.
    pub keep: usize,
}

impl Persist {
    /// Returns the default options for a directory.
    pub fn new(dir: PathBuf) -> Persist {
        Persist { dir, every: Some(DEFAULT_SNAPSHOT_EVERY), keep: DEFAULT_SNAPSHOT_KEEP }
    }
}

/// Mode and group of the server's Unix sockets. `None`: by the umask, and the group of the process.
pub use rfs_status::control::SocketPermissions;

/// Configuration of a server.
#[derive(Clone)]
pub struct Config {
    /// Size in bytes of the single export; unused if `exports` is not empty.
    pub memory: u64,
    /// Largest size of the single export: see [`ExportConfig::max`].
    pub max_memory: Option<u64>,
    /// Inodes of the single export: see [`ExportConfig::inodes`].
    pub inodes: Option<u32>,
    /// Directory of the memory objects, which the next server continues to use. `None`: the memory
    /// ends with the server.
    pub memory_dir: Option<PathBuf>,
    /// Bytes that this process lends to pagers beside the files. The server does not lend them: it
    /// counts them when it checks that the memory of the machine suffices.
    pub lent_to_pagers: u64,
    /// Each block has a checksum that readers verify.
    pub checksum: bool,
    /// Snapshot options. `None`: no snapshots.
    pub persist: Option<Persist>,
    /// The exports; if empty, one export of `memory`, `inodes`, `name` and `root`. Clients that
    /// name no export get the first.
    pub exports: Vec<ExportConfig>,
    /// Stores of the single export. `None`: the server uses its own memory only.
    pub stores: Option<StoresConfig>,
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// Permissions of Unix sockets.
    pub socket: SocketPermissions,
    /// Device of RDMA addresses.
    pub rdma: RdmaOptions,
    /// Key file; [`keys`](crate::service::keys) has its format. Without it the server accepts only
    /// root and its own user, through Unix sockets.
    pub keys: Option<PathBuf>,
    /// Limit of sessions per key. Each session can make the server use up to 5 MiB for its
    /// messages.
    pub sessions_per_key: usize,
    /// Certificate files for TLS over TCP. `None`: no encryption.
    pub tls: Option<TlsServerFiles>,
    /// Accept clients without keys: any user of any machine that reaches a listener.
    pub allow_without_keys: bool,
    /// Listen on RDMA beside other addresses although the device's atomics are not atomic with the
    /// processor's.
    pub allow_mixed_atomics: bool,
    /// Session lease, and treatment of clients that lost their session and map memory.
    pub fencing: Fencing,
    /// Maximum time that the TCP engine busy-polls before it blocks
    /// ([`Host::engine_look`](rdmabox::Host::engine_look)).
    pub look: Duration,
    /// Time for the acknowledgement of a recall. `None`: the smaller of [`DEFAULT_RECALL_TIMEOUT`]
    /// and half of the lease.
    pub recall_timeout: Option<Duration>,
    /// Name of the single export.
    pub name: String,
    /// Root directory of the single export.
    pub root: Root,
    /// When the server allocates memory.
    pub prefault: Prefault,
    /// Thread that zeroes released space.
    pub zeroing: Zeroing,
    /// Source of times.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("memory", &self.memory)
            .field("inodes", &self.inodes)
            .field("listen", &self.listen)
            .field("name", &self.name)
            .field("exports", &self.exports)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Returns the configuration of one export of `memory` bytes on the default addresses. The user
    /// of the server process owns the root directory.
    pub fn new(memory: u64) -> Config {
        Config {
            memory,
            max_memory: None,
            inodes: None,
            memory_dir: None,
            lent_to_pagers: 0,
            checksum: false,
            persist: None,
            exports: Vec::new(),
            stores: None,
            listen: default_listen(),
            socket: SocketPermissions::default(),
            rdma: RdmaOptions::default(),
            keys: None,
            sessions_per_key: DEFAULT_SESSIONS_PER_KEY,
            tls: None,
            allow_without_keys: false,
            allow_mixed_atomics: false,
            fencing: Fencing::new(DEFAULT_LEASE, true),
            look: ENGINE_LOOK,
            recall_timeout: None,
            name: "rfs".into(),
            root: Root {
                perm: 0o755,
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
            },
            prefault: Prefault::default(),
            zeroing: Zeroing::default(),
            clock: Arc::new(SystemClock),
        }
    }

    /// Returns the exports, at least one.
    pub fn exports(&self) -> Vec<ExportConfig> {
        if !self.exports.is_empty() {
            return self.exports.clone();
        }
        let (memory, max, inodes) = (self.memory, self.max_memory, self.inodes);
        let eviction = EvictionPolicy::default();
        vec![ExportConfig { name: self.name.clone(), memory, max, inodes, root: self.root, eviction }]
    }

    /// Returns the time for the acknowledgement of a recall.
    pub fn effective_recall_timeout(&self) -> Duration {
        let half = self.fencing.lease.map_or(DEFAULT_RECALL_TIMEOUT, |lease| lease / 2);
        self.recall_timeout.unwrap_or(DEFAULT_RECALL_TIMEOUT.min(half))
    }

    /// Checks everything that needs no memory and no socket.
    ///
    /// # Errors
    /// The first invalid or contradictory option.
    pub fn check(&self) -> Result<(), StartError> {
        let exports = self.exports();
        for (at, export) in exports.iter().enumerate() {
            if export.memory < MIN_MEMORY {
                return Err(StartError::TooLittle { asked: export.memory });
            }
            self.check_max(export)?;
            if export.inode_count() == 0 {
                return Err(StartError::NoInodes);
            }
            if exports[..at].iter().any(|other| other.name == export.name) {
                return Err(StartError::ExportTwice { name: export.name.clone() });
            }
        }
        if self.memory_dir.is_some()
            && self.persist.as_ref().map(|persist| &persist.dir) == self.memory_dir.as_ref()
        {
            return Err(StartError::SameDirectory);
        }
        if let Some(lease) = self.fencing.lease.filter(|lease| *lease <= self.effective_recall_timeout()) {
            return Err(StartError::RecallTimeout { timeout: self.effective_recall_timeout(), lease });
        }
        if self.listen.is_empty() {
            return Err(StartError::NoListener);
        }
        for (at, address) in self.listen.iter().enumerate() {
            if self.listen[..at].contains(address) && !takes_any_port(address) {
                return Err(StartError::ListenTwice { address: address.clone() });
            }
            if self.is_open_to_all(address) {
                return Err(StartError::Open { address: address.clone() });
            }
        }
        if self.tls.is_some() {
            self.check_tls()?;
        }
        self.check_stores()
    }

    /// Rejects a largest size below the size. Over RDMA, a larger one: the device would pin all of
    /// it.
    fn check_max(&self, export: &ExportConfig) -> Result<(), StartError> {
        let name = || export.name.clone();
        if export.arena_len() < export.size() {
            return Err(StartError::MaxBelowSize { name: name(), max: export.arena_len() });
        }
        match self.listen.iter().find(|address| matches!(address, Address::Rdma { .. })) {
            Some(address) if export.arena_len() > export.size() => {
                Err(StartError::GrowthOverRdma { name: name(), address: address.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Rejects options that a pool of stores cannot have.
    fn check_stores(&self) -> Result<(), StartError> {
        let Some(stores) = &self.stores else { return Ok(()) };
        let cannot = [
            (self.memory_dir.is_some(), "--memory-dir"),
            (self.persist.is_some(), "--persist"),
            (self.checksum, "--checksum"),
            (self.exports.len() > 1, "several --export"),
            (self.tls.is_some(), "--tls-cert"),
        ];
        if let Some((_, option)) = cannot.into_iter().find(|(is_given, _)| *is_given) {
            return Err(StartError::NotWithStores { option });
        }
        if stores.unit == 0 || !stores.unit.is_multiple_of(BLOCK) {
            return Err(StartError::StripeUnit { unit: stores.unit });
        }
        let Membership::Addresses(addresses) = &stores.members else { return Ok(()) };
        for (at, address) in addresses.iter().enumerate() {
            if addresses[..at].contains(address) {
                return Err(StartError::StoreTwice { address: address.clone() });
            }
        }
        Ok(())
    }

    /// Returns true if the server would accept every program that reaches `address`. On loopback
    /// that is every local user's program.
    fn is_open_to_all(&self, address: &Address) -> bool {
        let shows_nothing = match address {
            // The kernel reports the user of a connection.
            Address::Unix(_) => false,
            Address::Tcp { .. } => !self.asks_for_certificates(),
            // RDMA, and any kind of address that this version does not know.
            _ => true,
        };
        shows_nothing && self.keys.is_none() && !self.allow_without_keys
    }

    /// Returns true if a client needs a certificate over TCP.
    fn asks_for_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|files| files.client_ca.is_some())
    }

    /// Rejects addresses that TLS cannot protect, and TLS without a TCP address.
    fn check_tls(&self) -> Result<(), StartError> {
        if let Some(address) = self.listen.iter().find(|address| matches!(address, Address::Rdma { .. })) {
            return Err(StartError::TlsRdma { address: address.clone() });
        }
        match self.listen.iter().any(|address| matches!(address, Address::Tcp { .. })) {
            true => Ok(()),
            false => Err(StartError::TlsNowhere),
        }
    }
}

/// Returns true if each listener at this address gets its own port.
fn takes_any_port(address: &Address) -> bool {
    matches!(address, Address::Tcp { port: 0, .. } | Address::Rdma { port: 0, .. })
}

/// Returns the Unix socket of this user.
pub fn default_listen() -> Vec<Address> {
    let uid = rustix::process::geteuid().as_raw();
    let run_writable = rustix::fs::access("/run", rustix::fs::Access::WRITE_OK).is_ok();
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    vec![Address::Unix(default_socket(uid, run_writable, runtime_dir))]
}

fn default_socket(uid: u32, run_writable: bool, runtime_dir: Option<PathBuf>) -> PathBuf {
    match runtime_dir {
        _ if uid == 0 && run_writable => PathBuf::from("/run/rfs/rfs.sock"),
        Some(dir) if dir.is_absolute() => dir.join("rfs.sock"),
        _ => PathBuf::from(format!("/tmp/rfs-{uid}.sock")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::stores::DEFAULT_STRIPE_UNIT, *};

    fn tcp(host: &str) -> Address {
        Address::Tcp { host: host.into(), port: 7440 }
    }

    fn check(listen: Vec<Address>, allow: bool) -> Result<(), StartError> {
        Config { listen, allow_without_keys: allow, ..Config::new(MIN_MEMORY) }.check()
    }

    #[test]
    fn sockets_by_user() {
        let run_user = || Some(PathBuf::from("/run/user/7"));
        assert_eq!(default_socket(0, true, run_user()), PathBuf::from("/run/rfs/rfs.sock"));
        assert_eq!(default_socket(0, false, run_user()), PathBuf::from("/run/user/7/rfs.sock"));
        assert_eq!(default_socket(7, true, run_user()), PathBuf::from("/run/user/7/rfs.sock"));
        assert_eq!(default_socket(7, true, None), PathBuf::from("/tmp/rfs-7.sock"));
        assert_eq!(default_socket(7, true, Some("here".into())), PathBuf::from("/tmp/rfs-7.sock"));
    }

    #[test]
    fn a_network_listener_needs_keys_on_loopback_too() {
        let unix = || Address::Unix("/run/x".into());
        assert!(check(vec![unix()], false).is_ok());
        let rdma = Address::Rdma { host: "127.0.0.1".into(), port: 1 };
        for address in ["127.0.0.1", "::1", "[::1]", "localhost", "0.0.0.0", "::", "192.0.2.1"]
            .map(tcp)
            .into_iter()
            .chain([rdma])
        {
            let refused = check(vec![unix(), address.clone()], false);
            assert!(matches!(refused, Err(StartError::Open { .. })), "{address}");
            assert!(check(vec![address.clone()], true).is_ok(), "{address}");
            let keys = Some("/keys".into());
            let keyed = Config { listen: vec![address.clone()], keys, ..Config::new(MIN_MEMORY) };
            assert!(keyed.check().is_ok(), "{address}");
        }
    }

    #[test]
    fn by_default_there_is_a_unix_socket_and_nothing_else() {
        let listen = default_listen();
        assert!(matches!(&listen[..], [Address::Unix(_)]), "{listen:?}");
        assert!(Config::new(MIN_MEMORY).check().is_ok());
    }

    #[test]
    fn a_pool_refuses_what_it_cannot_do() {
        let at = |addresses| Membership::Addresses(addresses);
        let stores = |unit| StoresConfig { members: at(vec![tcp("store")]), key: "/key".into(), unit };
        let config = || Config { stores: Some(stores(DEFAULT_STRIPE_UNIT)), ..Config::new(MIN_MEMORY) };
        assert!(config().check().is_ok());
        let persist = Some(Persist::new("/p".into()));
        for (config, expected) in [
            (Config { memory_dir: Some("/m".into()), ..config() }, "--memory-dir"),
            (Config { persist, ..config() }, "--persist"),
            (Config { checksum: true, ..config() }, "--checksum"),
        ] {
            match config.check() {
                Err(StartError::NotWithStores { option }) => assert_eq!(option, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
        for unit in [0, 1, BLOCK + 1] {
            let refused = Config { stores: Some(stores(unit)), ..config() }.check();
            assert!(matches!(refused, Err(StartError::StripeUnit { .. })), "{unit}");
        }
        let twice = StoresConfig { members: at(vec![tcp("a"), tcp("b"), tcp("a")]), ..stores(BLOCK) };
        let refused = Config { stores: Some(twice), ..config() }.check();
        assert!(matches!(refused, Err(StartError::StoreTwice { .. })));
    }

    #[test]
    fn tls_is_for_tcp() {
        let tls = |client_ca| {
            let mut files = TlsServerFiles::new("/c", "/k");
            files.client_ca = client_ca;
            Some(files)
        };
        let with = |listen, client_ca| Config { listen, tls: tls(client_ca), ..Config::new(MIN_MEMORY) };
        let check =
            |listen, client_ca| Config { keys: Some("/keys".into()), ..with(listen, client_ca) }.check();
        let unix = || Address::Unix("/run/x".into());
        assert!(check(vec![unix(), tcp("127.0.0.1")], None).is_ok());
        assert!(matches!(check(vec![unix()], None), Err(StartError::TlsNowhere)));
        let rdma = Address::Rdma { host: "127.0.0.1".into(), port: 1 };
        let refused = check(vec![tcp("127.0.0.1"), rdma.clone()], None);
        assert!(matches!(refused, Err(StartError::TlsRdma { address }) if address == rdma));
        // A client certificate takes the place of a key; the server's certificate says nothing
        // about clients.
        assert!(with(vec![tcp("192.0.2.1")], Some("/a".into())).check().is_ok());
        assert!(matches!(with(vec![tcp("192.0.2.1")], None).check(), Err(StartError::Open { .. })));
    }

    #[test]
    fn other_mistakes() {
        assert!(matches!(check(vec![], false), Err(StartError::NoListener)));
        let twice = vec![tcp("127.0.0.1"), tcp("127.0.0.1")];
        assert!(matches!(check(twice, true), Err(StartError::ListenTwice { .. })));
        let config = Config { memory: MIN_MEMORY - 1, ..Config::new(0) };
        assert!(matches!(config.check(), Err(StartError::TooLittle { .. })));
        let config = Config { inodes: Some(0), ..Config::new(MIN_MEMORY) };
        assert!(matches!(config.check(), Err(StartError::NoInodes)));
    }

    /// Catches a sparse arena that an RDMA device pins to its last page.
    #[test]
    fn an_export_that_grows_is_not_for_rdma() {
        let rdma = Address::Rdma { host: "192.0.2.1".into(), port: 1 };
        let checked = |max, listen: &Address| {
            let listen = vec![listen.clone()];
            let config =
                Config { listen, max_memory: Some(max), allow_without_keys: true, ..Config::new(MIN_MEMORY) };
            config.check()
        };
        assert!(checked(2 * MIN_MEMORY, &tcp("192.0.2.1")).is_ok());
        assert!(checked(MIN_MEMORY, &rdma).is_ok());
        let refused = checked(2 * MIN_MEMORY, &rdma);
        assert!(matches!(&refused, Err(StartError::GrowthOverRdma { address, .. }) if *address == rdma));
        let below = checked(MIN_MEMORY - BLOCK, &tcp("192.0.2.1"));
        assert!(matches!(below, Err(StartError::MaxBelowSize { .. })));
    }

    #[test]
    fn the_recall_timeout_is_shorter_than_the_lease() {
        let config = |lease, recall_timeout| {
            let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
            let fencing = Fencing::new(seconds(lease), true);
            Config { fencing, recall_timeout: seconds(recall_timeout), ..Config::new(MIN_MEMORY) }
        };
        assert_eq!(config(Some(20), None).effective_recall_timeout(), DEFAULT_RECALL_TIMEOUT);
        assert_eq!(config(Some(1), None).effective_recall_timeout(), Duration::from_millis(500));
        assert_eq!(config(None, None).effective_recall_timeout(), DEFAULT_RECALL_TIMEOUT);
        for (lease, timeout, allowed) in [
            (Some(20), Some(19), true),
            (Some(20), Some(20), false),
            (Some(1), None, true),
            (None, Some(99), true),
        ] {
            let checked = config(lease, timeout).check();
            assert_eq!(
                !matches!(checked, Err(StartError::RecallTimeout { .. })),
                allowed,
                "{lease:?} {timeout:?}"
            );
        }
    }

    #[test]
    fn one_default_export_or_the_configured_exports() {
        let plain = Config { inodes: Some(7), ..Config::new(MIN_MEMORY) };
        let exports = plain.exports();
        let [one] = &exports[..] else { panic!("{exports:?}") };
        assert_eq!(
            (one.name.as_str(), one.memory, one.inodes, one.root),
            ("rfs", MIN_MEMORY, Some(7), plain.root)
        );
        let named = |name: &str, memory| ExportConfig { name: name.into(), memory, ..one.clone() };
        let check = |exports: &[ExportConfig]| {
            let config = Config { exports: exports.to_vec(), ..Config::new(0) };
            assert_eq!(config.exports(), exports);
            config.check()
        };
        assert!(check(&[named("a", MIN_MEMORY), named("b", MIN_MEMORY)]).is_ok());
        let twice = check(&[named("a", MIN_MEMORY), named("a", MIN_MEMORY)]);
        assert!(matches!(twice, Err(StartError::ExportTwice { name }) if name == "a"));
        let little = check(&[named("a", MIN_MEMORY), named("b", MIN_MEMORY - 1)]);
        assert!(matches!(little, Err(StartError::TooLittle { .. })));
    }
}
