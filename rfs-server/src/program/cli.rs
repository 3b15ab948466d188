//! Command line of the server. It parses options and starts nothing. Relative paths of sockets need
//! the current directory.
//!
//! # Concurrency
//! Plain values.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgGroup, Parser};
use rdmabox::{Address, Fencing, tls::TlsServerFiles};
use rfs_status::logging::LogFormat;

use super::{
    lend::LendArguments,
    socket_access::{parse_group, parse_mode as parse_socket_mode},
};
use crate::{
    metadata::root::Root,
    server::{
        config::{Config, DEFAULT_SESSIONS_PER_KEY, Persist, SocketPermissions},
        export_config::{ExportArg, ExportConfig, parse_mode, parse_name},
        prefault::Prefault,
        stores::{Membership, StoresConfig, registry::EtcdUrl},
    },
    service::keys::NewKey,
};

/// Serves memory of this machine as a file system.
///
/// The server keeps the files of its clients in its memory. Clients mount it with `rfs-fuse ADDRESS
/// MOUNTPOINT`. Clients on the same host access the memory directly, clients on other hosts over
/// the network. The server runs in the foreground until SIGTERM or Ctrl-C. The files are then lost,
/// unless there is a --memory-dir or --persist.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-server",
    version,
    group(ArgGroup::new("pool_use").multiple(true)),
    after_long_help = "Examples:\n  \
        4 GiB for programs of this user and of root on this host, over a Unix socket:\n      \
            rfs-server --memory 4G\n  \
        Over another Unix socket:\n      \
            rfs-server --memory 512M --listen unix:/tmp/scratch.sock\n  \
        For other hosts, with keys (the first command prints the lines for both key files):\n      \
            rfs-server --new-key laptop\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys\n  \
        With TLS, for clients that trust the authority of the server's certificate:\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys \\\n        \
                --tls-cert /etc/rfs/server.pem --tls-key /etc/rfs/server.key\n  \
        Over RDMA hardware or Soft-RoCE (connections are set up over TCP):\n      \
            rfs-server --memory 64G --listen rdma:10.0.0.7:7441 --keys /etc/rfs/keys\n  \
        For a network where every program may read and write every file:\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --allow-without-keys\n  \
        Two exports, each with its own space (rfs-fuse --export NAME):\n      \
            rfs-server --export home=8G --export scratch=2G,inodes=100000,root-mode=1777\n  \
        All memory allocated before clients can connect:\n      \
            rfs-server --memory 4G --prefault\n  \
        Files that survive a restart of the server, but not of the machine:\n      \
            rfs-server --memory 4G --memory-dir /dev/shm/rfs\n  \
        Memory of two machines for one file system (pool.key has a line: a name and a secret):\n      \
            b$ rfs-server --store --memory 16G --listen tcp:10.0.0.8:7450 --pool-key pool.key\n      \
            a$ rfs-server --memory 16G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys \\\n        \
                --store-at tcp:10.0.0.8:7450 --pool-key pool.key\n  \
        The same with etcd on machine a: stores register there, and more can come at any time:\n      \
            b$ rfs-server --store --memory 16G --listen tcp:10.0.0.8:7450 --pool-key pool.key \\\n        \
                --registry http://10.0.0.7:2379\n      \
            a$ rfs-server --memory 16G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys --pool-key pool.key \\\n        \
                --registry http://10.0.0.7:2379\n  \
        Stores of a running server: a table, one more, and one less:\n      \
            rfs-server pool status\n      \
            rfs-server pool add tcp:10.0.0.9:7450\n      \
            rfs-server pool drain 1 && rfs-server pool remove 1\n  \
        Memory for files, and memory for pagers (rfs-paging run, rfs-paging nbd):\n      \
            rfs-server --memory 16G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys \\\n        \
                --lend 16G --lend-listen tcp:10.0.0.7:7450 --lend-key /etc/rfs/pagers.key\n  \
        With snapshots that survive a restart of the machine (kill -USR1 makes one at once):\n      \
            rfs-server --memory 4G --memory-dir /dev/shm/rfs --persist /var/lib/rfs\n  \
        With the options of a file, and what they are:\n      \
            rfs-server --config /etc/rfs/server.toml\n      \
            rfs-server --config /etc/rfs/server.toml --check-config\n  \
        What a running server does, once or every 2 seconds:\n      \
            rfs-server status\n      \
            rfs-server status --watch\n\n\
        When clients can connect, the server prints its addresses, one per line, and then a line that \
        begins with \"ready:\". Log lines on standard error report clients that connect and disconnect; \
        RUST_LOG=warn suppresses them.\n\n\
        Exit status: 0 after SIGTERM or SIGINT, 1 if the server cannot start or fails, 2 for an invalid command line or \
        an invalid --config."
)]
pub struct Cli {
    /// Read options from this TOML file, too: their names without the dashes, such as memory =
    /// "64G". Options of the command line replace those of the file, and those that they exclude.
    /// SIGHUP reads the file again, applies what can change, and logs what needs a restart
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check --config and the files that it names, print the options in effect, and start nothing.
    /// Exit status: 0 if a server could start with them, else 2
    #[arg(long, requires = "config")]
    pub check_config: bool,

    /// Size of the memory for files: a number of bytes, or of powers of 1024 such as 512m, 4g, 1.5t
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, required_unless_present_any = ["exports", "new_key"])]
    pub memory: Option<u64>,

    /// Keep the memory in files of this directory, on a tmpfs such as /dev/shm. Files and mounts
    /// survive a restart of the server with this option, but not a restart of the machine. The
    /// directory is created if it is missing. Only one server at a time can use it
    #[arg(long, value_name = "DIR")]
    pub memory_dir: Option<PathBuf>,

    /// Keep a CRC-32C of each 4 KiB block, which clients verify when they read: damaged data is an
    /// error (EIO). Writes then go through the server. Takes 0.2 % more memory. `rfs-fuse scrub`
    /// verifies all files. A --memory-dir keeps the setting that it was created with
    #[arg(long)]
    pub checksum: bool,

    /// Keep snapshots in this directory, on a disk. If the memory is lost, the next server with
    /// this option starts from the newest complete snapshot. The server makes a snapshot every
    /// --persist-every seconds, on SIGUSR1, and when it stops; clients continue meanwhile. Memory
    /// in a --memory-dir that a server has used takes precedence over snapshots
    #[arg(long, value_name = "DIR")]
    pub persist: Option<PathBuf>,

    /// Seconds from the end of a snapshot to the start of the next, or none: only on SIGUSR1 and
    /// when the server stops. Each snapshot writes all data of all files. Skipped if no client
    /// connected since the last snapshot
    #[arg(long, value_name = "SECS|none", value_parser = parse_every, default_value = "300", requires = "persist")]
    pub persist_every: Every,

    /// Number of snapshots to keep. The oldest is removed when a new one is complete and on the
    /// disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000), default_value = "2",
        requires = "persist")]
    pub persist_keep: u16,

    /// An export, instead of --memory: name, size, number of inodes, and permissions of the root
    /// directory. With evict=lru, the least recently used files that are not open go when space is
    /// short; with ttl=SECONDS, files go so long after their last change. May be repeated; clients
    /// that name no export get the first
    #[arg(long = "export", value_name = "NAME=SIZE[,inodes=N][,root-mode=MODE][,evict=lru][,ttl=SECONDS]", value_parser = ExportArg::parse,
        conflicts_with_all = ["memory", "inodes", "name", "root_mode"])]
    pub exports: Vec<ExportArg>,

    /// Lend the memory to a pool instead of serving files: an rfs-server that names the address in
    /// --store-at uses it, or one with the same --registry. The store keeps no names, and its
    /// memory is lost when it ends. Needs --memory and --pool-key
    #[arg(long, group = "pool_use", requires_all = ["memory", "pool_key"], conflicts_with_all = ["store_at",
        "pool", "memory_dir", "checksum", "persist", "exports", "keys", "allow_without_keys", "tls_cert",
        "metrics", "inodes", "socket_mode", "socket_group"])]
    pub store: bool,

    /// Use the memory of these stores, too: addresses of running `rfs-server --store`, separated by
    /// commas. Clients connect to them under the same addresses. Large files are cut into pieces,
    /// and the stores take turns. Data of a store that ends is lost
    #[arg(
        long,
        value_name = "ADDRESS,...",
        value_delimiter = ',',
        group = "pool_use",
        requires = "pool_key"
    )]
    pub store_at: Vec<Address>,

    /// Use the memory of the stores in this file, too: the address of a store in each line. The
    /// file may be empty. `rfs-server pool add` and `remove` change it. Only this user and root may
    /// be able to change it
    #[arg(long, value_name = "FILE", group = "pool_use", requires = "pool_key", conflicts_with = "store_at")]
    pub pool: Option<PathBuf>,

    /// Find the stores of the pool in etcd at this address, such as http://127.0.0.1:2379; several
    /// of one cluster are separated by commas. A store (--store) registers there, and the server of
    /// the pool uses each store that is registered. A second server of the pool is refused. The
    /// pool has the name of its key. Reads and writes need no etcd, and go on while it is away
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        group = "pool_use",
        requires = "pool_key",
        conflicts_with_all = ["store_at", "pool"]
    )]
    pub registry: Vec<EtcdUrl>,

    /// Address under which the server and its clients reach this store. For --store with --registry
    /// [default: the first --listen address]
    #[arg(long, value_name = "ADDRESS", requires_all = ["store", "registry"])]
    pub register_as: Option<Address>,

    /// File with the key of the pool, of mode 600: a name and a secret in hexadecimal digits. All
    /// stores of a pool and its server have the same key. Clients do not need it. For --store,
    /// --store-at, --pool and --registry
    #[arg(long, value_name = "FILE", requires = "pool_use")]
    pub pool_key: Option<PathBuf>,

    /// Length of the pieces of a file that stores take in turn: a multiple of 4096 bytes. For
    /// --store-at, --pool and --registry
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, default_value = "256k", requires = "pool_key",
        conflicts_with = "store")]
    pub stripe_unit: u64,

    /// What the server lends to pagers.
    #[command(flatten)]
    pub lending: LendArguments,

    /// Address to listen on: unix:/path, tcp:host:port or rdma:host:port; may be repeated. Port 0
    /// selects a free port.
    ///
    /// tcp: and rdma: need --keys, also on loopback, where programs of every local user can
    /// connect. Default: a Unix socket, /run/rfs/rfs.sock for root, $XDG_RUNTIME_DIR/rfs.sock or
    /// /tmp/rfs-UID.sock for other users.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// Permissions of the server's Unix sockets, in octal, such as 0660: connecting needs the right
    /// to write. Beyond its own user and root, a server without keys accepts other users only with
    /// --allow-without-keys. With this option or --socket-group, the socket of `rfs-server status`
    /// has the permissions, too, and answers every user that can connect [default: by the umask;
    /// 0660 with --socket-group]
    #[arg(long, value_name = "MODE", value_parser = parse_socket_mode)]
    pub socket_mode: Option<u32>,

    /// Group of the server's Unix sockets: a name or a number. Only root, or a user of the group,
    /// can give them to it [default: the group of the server process]
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub socket_group: Option<u32>,

    /// RDMA device for rdma: addresses, such as mlx5_0 or rxe0 [default: the first with an active
    /// port]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: the first active port]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub port: Option<u8>,

    /// Index of the local address in the port's GID table [default: the entry of the network
    /// address that sets up connections, else a RoCE v2 entry]
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,

    /// Number of files, directories and links that can exist [default: one per 16 KiB, at least
    /// 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub inodes: Option<u32>,

    /// Name of the export, for logs and /proc
    #[arg(long, value_name = "NAME", default_value = "rfs", value_parser = parse_name)]
    pub name: String,

    /// Permissions of the root directory, in octal; the user of the server process owns it
    #[arg(long, value_name = "MODE", default_value = "755", value_parser = parse_mode)]
    pub root_mode: u32,

    /// When to allocate the memory: never ahead of its first use, in the background from the start
    /// on, or first, before clients can connect
    #[arg(long, value_name = "WHEN", value_enum, default_value = "background", default_missing_value = "first",
        num_args = 0..=1, require_equals = true)]
    pub prefault: Prefault,

    /// Seconds after which a silent client (stopped, hung, cut off) loses its session. Its locks
    /// are released, and its further requests have no effect. Its mount starts over when it
    /// continues; the server kills a mount that has the memory mapped. Clients report three times
    /// in this time
    #[arg(long, value_name = "SECS", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub lease: u32,

    /// Seconds to wait for a client to acknowledge a recall. A client that misses the deadline
    /// loses its session. The operation that caused the recall blocks until then [default: 8, or
    /// half of the lease if that is less]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub recall_timeout: Option<u32>,

    /// Microseconds for which the TCP thread busy-polls before it blocks. It polls while polling
    /// succeeds and no other thread wants its core. 0: never poll; this saves up to half of the
    /// processor time of requests of 64 KiB and more, and costs up to 40 % of the rate of small
    /// requests
    #[arg(long, alias = "look", value_name = "N", default_value = "400", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub busy_poll_us: u32,

    /// Do not kill an unresponsive client of this host that has lost its session. It has the memory
    /// mapped and could still write to it, so its files stay open and locked until its process ends
    #[arg(long)]
    pub keep_stragglers: bool,

    /// Accept only clients with one of the keys in this file, of mode 600. A line has a name, a
    /// secret in hexadecimal digits, an export (rfs by default), and rw or ro. It may end with
    /// squash=root: the client's root gets the permissions of other users. Or with squash=all:
    /// every user becomes uid=N and gid=N, by default 65534. The server enforces the squash. Client
    /// and server prove to each other that they have the key. SIGHUP reloads the file. Through a
    /// Unix socket, root and the user of the server process need no key
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,

    /// Maximum number of sessions per key. A mount has one, and briefly two when it reconnects.
    /// Each can make the server use up to 5 MiB
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SESSIONS_PER_KEY)]
    pub sessions_per_key: usize,

    /// Make a key, and exit. Adds a line to the file of --keys, and writes the client's file
    /// --key-file. Prints the line of each file that is not given
    #[arg(long, value_name = "NAME[,export=NAME][,ro][,squash=root|all][,uid=N][,gid=N]", value_parser = NewKey::parse)]
    pub new_key: Option<NewKey>,

    /// The client's key file, which --new-key creates with mode 600
    #[arg(long, value_name = "FILE", requires = "new_key")]
    pub key_file: Option<PathBuf>,

    /// Use TLS 1.3 over TCP, and nothing else, with the certificate in this file (PEM, followed by
    /// intermediate certificates). SIGHUP reloads it. Excludes rdma: addresses, whose traffic
    /// cannot be encrypted. Unix sockets, which are local, are not encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert: a PEM file of mode 600
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Accept only TCP clients with a certificate of one of the authorities in this file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// Accept every client without a key, through Unix sockets, TCP and RDMA. Any local user, and
    /// any program on a machine that reaches an address, can then read and write every file as root
    #[arg(long, conflicts_with = "keys")]
    pub allow_without_keys: bool,

    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9430. Port 0
    /// selects a free port. Every program that reaches the address can read them
    #[arg(long, value_name = "ADDRESS", value_parser = rfs_status::metrics::parse_address)]
    pub metrics: Option<SocketAddr>,

    /// Format of log lines. text: time, level, module and message. json: an object with these
    /// fields in each line. Repeated warnings and errors are left out and counted
    #[arg(long, value_name = "text|json", value_enum, hide_possible_values = true, default_value = "text")]
    pub log_format: LogFormat,

    /// Listen on rdma: addresses beside others although the atomics of the RDMA device are not
    /// atomic with those of the processor. An export must then not be mounted over RDMA and over
    /// another transport at the same time: appends and file sizes would be lost
    #[arg(long)]
    pub allow_mixed_atomics: bool,
}

/// Permissions of the Unix sockets of a server with `--socket-group`.
const GROUP_MODE: u32 = 0o660;

/// Interval between snapshots; `None` for no periodic snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(Option<Duration>);

impl Every {
    /// Returns the interval; `None` for no periodic snapshots.
    pub(super) fn interval(self) -> Option<Duration> {
        self.0
    }
}

fn parse_every(text: &str) -> Result<Every, String> {
    let seconds = |seconds: u32| Every(Some(Duration::from_secs(seconds.into())));
    match (text, text.parse()) {
        ("none", _) => Ok(Every(None)),
        (_, Ok(1..)) => text.parse().map(seconds).map_err(|e: std::num::ParseIntError| e.to_string()),
        _ => Err("give a number of seconds from 1 on, or none".into()),
    }
}

impl Cli {
    /// Returns the configuration that the options describe.
    pub fn into_config(self) -> Config {
        let mut config = Config::new(self.memory.unwrap_or(0));
        if !self.listen.is_empty() {
            config.listen = self.listen.into_iter().map(from_anywhere).collect();
        }
        // A group that could not connect would be of no use.
        let mode = self.socket_mode.or(self.socket_group.map(|_| GROUP_MODE));
        config.socket = SocketPermissions { mode, group: self.socket_group };
        config.rdma.device = self.device;
        (config.rdma.port, config.rdma.gid_index) = (self.port, self.gid_index);
        let lease = Some(Duration::from_secs(self.lease.into()));
        config.fencing = Fencing::new(lease, !self.keep_stragglers);
        config.recall_timeout = self.recall_timeout.map(|seconds| Duration::from_secs(seconds.into()));
        config.look = Duration::from_micros(self.busy_poll_us.into());
        config.inodes = self.inodes;
        config.memory_dir = self.memory_dir;
        config.lent_to_pagers = self.lending.lend.unwrap_or(0);
        config.checksum = self.checksum;
        let (every, keep) = (self.persist_every.0, self.persist_keep.into());
        config.persist = self.persist.map(|dir| Persist { dir, every, keep });
        // Clients get these addresses, too.
        let store_at: Vec<Address> = self.store_at.into_iter().map(from_anywhere).collect();
        let at = Some(store_at).filter(|addresses| !addresses.is_empty()).map(Membership::Addresses);
        let etcd = Some(self.registry).filter(|urls| !urls.is_empty() && !self.store);
        let members = at.or(self.pool.map(Membership::File)).or(etcd.map(Membership::Etcd));
        let unit = self.stripe_unit;
        let stores = |(key, members)| StoresConfig { members, key, unit };
        config.stores = self.pool_key.zip(members).map(stores);
        config.name = self.name;
        config.root.perm = self.root_mode;
        let root = config.root;
        let export = |arg: ExportArg| {
            let root = Root { perm: arg.root_mode.unwrap_or(root.perm), ..root };
            let ExportArg { name, memory, inodes, eviction, .. } = arg;
            ExportConfig { name, memory, inodes, root, eviction }
        };
        config.exports = self.exports.into_iter().map(export).collect();
        config.prefault = self.prefault;
        config.keys = self.keys;
        let files = |(certificate, key): (PathBuf, PathBuf)| {
            let mut files = TlsServerFiles::new(certificate, key);
            files.client_ca = self.tls_client_ca;
            files
        };
        config.tls = self.tls_cert.zip(self.tls_key).map(files);
        config.sessions_per_key = self.sessions_per_key;
        config.allow_without_keys = self.allow_without_keys;
        config.allow_mixed_atomics = self.allow_mixed_atomics;
        config
    }
}

/// Returns an address that does not depend on the current directory: clients and `status` use it,
/// too.
fn from_anywhere(address: Address) -> Address {
    match address {
        Address::Unix(path) => Address::Unix(std::path::absolute(&path).unwrap_or(path)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_option_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// docs/user/options.md has a row for each option, and no row for another one.
    #[test]
    fn the_manual_has_each_option() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/user/options.md"));
        let page = page.expect("the page of options");
        let section =
            page.split("\n## ").find(|section| section.starts_with("rfs-server\n")).expect("a section");
        let name = |line: &str| Some(line.strip_prefix("| `--")?.split([' ', '`']).next()?.to_owned());
        let mut documented: Vec<String> = section.lines().filter_map(name).collect();
        let command = Cli::command();
        let options = command.get_arguments().filter(|option| !option.is_hide_set());
        let mut options: Vec<String> =
            options.filter_map(|option| option.get_long()).map(Into::into).collect();
        documented.sort_unstable();
        options.sort_unstable();
        assert_eq!(documented, options);
    }

    #[test]
    fn options_become_configuration() {
        let cli = Cli::try_parse_from([
            "rfs-server",
            "--memory=2G",
            "--inodes=77",
            "--memory-dir=/dev/shm/x",
            "--name=x",
            "--root-mode=1777",
            "--prefault=never",
            "--lease=7",
            "--recall-timeout=3",
            "--busy-poll-us=30",
            "--keep-stragglers",
            "--allow-without-keys",
        ])
        .unwrap();
        let config = cli.into_config();
        assert_eq!((config.memory, config.inodes, config.name.as_str()), (2 << 30, Some(77), "x"));
        assert_eq!(config.memory_dir, Some("/dev/shm/x".into()));
        assert_eq!((config.root.perm, config.prefault), (0o1777, Prefault::Never));
        assert_eq!(config.fencing, Fencing::new(Duration::from_secs(7), false));
        assert_eq!(
            (config.effective_recall_timeout(), config.look),
            (Duration::from_secs(3), Duration::from_micros(30))
        );
        assert!(config.allow_without_keys);
        assert_eq!(config.listen, crate::server::config::default_listen());
        let prefault = |args: &[&str]| {
            Cli::try_parse_from([&["rfs-server", "--memory=1G"], args].concat()).unwrap().prefault
        };
        assert_eq!((prefault(&[]), prefault(&["--prefault"])), (Prefault::Background, Prefault::First));
        let plain = Cli::try_parse_from(["rfs-server", "--memory=1G"]).unwrap().into_config();
        assert_eq!((plain.fencing, plain.look), (Config::new(0).fencing, Config::new(0).look));
        assert_eq!(plain.effective_recall_timeout(), crate::server::config::DEFAULT_RECALL_TIMEOUT);
        assert!(Cli::try_parse_from(["rfs-server"]).is_err());
        assert!(Cli::try_parse_from(["rfs-server", "--memory=1G", "--inodes=0"]).is_err());
    }

    #[test]
    fn sockets_get_absolute_paths() {
        let parse = |address: &str| {
            let cli = Cli::try_parse_from(["rfs-server", "--memory=1G", "--listen", address]).unwrap();
            cli.into_config().listen.remove(0)
        };
        let here = std::env::current_dir().unwrap();
        for address in ["./x.sock", "unix:x.sock", "unix:./x.sock"] {
            assert_eq!(parse(address), Address::Unix(here.join("x.sock")), "{address}");
        }
        assert_eq!(parse("/run/x.sock"), Address::Unix("/run/x.sock".into()));
        assert_eq!(parse("h:1"), Address::Tcp { host: "h".into(), port: 1 });
    }

    #[test]
    fn snapshots() {
        let parse = |rest: &[&str]| {
            Cli::try_parse_from([&["rfs-server", "--memory=1G"], rest].concat())
                .map(|cli| cli.into_config().persist)
        };
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&["--persist=/x"]).unwrap(), Some(Persist::new("/x".into())));
        let persist = |every, keep| Some(Persist { dir: "/x".into(), every, keep });
        assert_eq!(
            parse(&["--persist=/x", "--persist-every=none", "--persist-keep=5"]).unwrap(),
            persist(None, 5)
        );
        let minute = Some(Duration::from_secs(60));
        assert_eq!(parse(&["--persist=/x", "--persist-every=60"]).unwrap(), persist(minute, 2));
        for wrong in ["--persist-every=0", "--persist-every=x", "--persist-every=-1", "--persist-keep=1"] {
            assert!(parse(&["--persist=/x", wrong]).is_err(), "{wrong}");
        }
        assert!(parse(&["--persist-every=60"]).is_err());
    }

    #[test]
    fn keys_exclude_access_without_keys() {
        let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server"], rest].concat());
        let cli = args(&["--memory=1G", "--keys=/k"]).unwrap();
        assert_eq!(cli.into_config().keys, Some("/k".into()));
        assert!(args(&["--memory=1G", "--keys=/k", "--allow-without-keys"]).is_err());
        assert!(args(&["--new-key=tv,ro"]).unwrap().new_key.is_some());
        assert!(args(&["--new-key=t v"]).is_err());
    }

    #[test]
    fn a_certificate_comes_with_its_private_key() {
        let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server", "--memory=1G"], rest].concat());
        let tls = |rest: &[&str]| args(rest).unwrap().into_config().tls;
        let files = TlsServerFiles::new("/c", "/k");
        assert_eq!(tls(&[]), None);
        assert_eq!(tls(&["--tls-cert=/c", "--tls-key=/k"]), Some(files.clone()));
        let all = ["--tls-cert=/c", "--tls-key=/k", "--tls-client-ca=/a"];
        assert_eq!(tls(&all), Some(files.with_client_ca("/a")));
        for half in [&all[..1], &all[1..2], &all[2..], &all[1..]] {
            assert!(args(half).is_err(), "{half:?}");
        }
    }

    #[test]
    fn a_pool_key_is_for_a_store_or_for_a_server_with_stores() {
        let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server", "--memory=1G"], rest].concat());
        let stores = |rest: &[&str]| args(rest).unwrap().into_config().stores;
        let key = "--pool-key=/k";
        assert!(args(&["--store", key]).unwrap().store);
        let both = stores(&["--store-at=tcp:a:1,tcp:b:2", key, "--stripe-unit=8k"]).expect("stores");
        assert_eq!((both.unit, both.key), (8192, PathBuf::from("/k")));
        assert!(matches!(both.members, Membership::Addresses(addresses) if addresses.len() == 2));
        let file = stores(&["--pool=/p", key]).expect("stores");
        assert_eq!((file.members, file.unit), (Membership::File("/p".into()), 256 << 10));
        let etcd = ["--registry=http://a:2379,http://b:2379/", key];
        let registered = stores(&etcd).expect("stores").members;
        let Membership::Etcd(urls) = registered else { panic!("{registered:?}") };
        assert_eq!(
            urls.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["http://a:2379", "http://b:2379"]
        );
        let store = [&etcd[..], &["--store", "--register-as=tcp:a:1"]].concat();
        assert_eq!((stores(&store), args(&store).unwrap().registry.len()), (None, 2));
        for wrong in [
            &["--registry=http://a:2379"][..],
            &["--registry=http://a:2379", key, "--pool=/p"],
            &["--registry=http://a:2379", key, "--store-at=tcp:a:1"],
            &["--registry=https://a:2379", key],
            &["--registry=http://a:2379", key, "--register-as=tcp:a:1"],
            &["--store", key, "--register-as=tcp:a:1"],
            &[key],
            &["--store"],
            &["--store-at=tcp:a:1"],
            &["--store", key, "--store-at=tcp:a:1"],
            &["--pool=/p"],
            &["--pool=/p", key, "--store-at=tcp:a:1"],
            &["--pool=/p", key, "--store"],
        ] {
            assert!(args(wrong).is_err(), "{wrong:?}");
        }
        let error = args(&[key]).unwrap_err().to_string();
        assert!(error.contains("--store") && error.contains("--store-at"), "{error}");
    }

    #[test]
    fn exports_take_the_place_of_memory() {
        let args = |rest: &[&str]| Cli::try_parse_from([&["rfs-server"], rest].concat());
        let config = args(&["--export=a=2M", "--export=b=3M,inodes=9,root-mode=1777"]).unwrap().into_config();
        let exports = config.exports();
        let root = |perm| Root { perm, ..config.root };
        let export = |name: &str, memory: u64, inodes, perm| ExportConfig {
            name: name.into(),
            memory: memory << 20,
            inodes,
            root: root(perm),
            eviction: Default::default(),
        };
        assert_eq!(exports, [export("a", 2, None, 0o755), export("b", 3, Some(9), 0o1777)]);
        for rest in ["--memory=1G", "--inodes=7", "--name=x", "--root-mode=700"] {
            assert!(args(&["--export=a=2M", rest]).is_err(), "{rest}");
        }
    }
}
