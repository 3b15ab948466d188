//! Command line of the server. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

mod access;
mod addresses;
mod pool_use;
mod snapshots;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use rdmabox::Fencing;
use rfs_status::logging::LogFormat;

use self::{
    access::AccessArguments, addresses::ListenArguments, pool_use::PoolArguments,
    snapshots::SnapshotArguments,
};
use super::lend::LendArguments;
use crate::{
    metadata::root::Root,
    server::{
        config::Config,
        export_config::{ExportArg, ExportConfig, parse_mode, parse_name},
        prefault::Prefault,
    },
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
        With the options of a file, and a check of them:\n      \
            rfs-server --config /etc/rfs/server.toml\n      \
            rfs-server --config /etc/rfs/server.toml --check-config\n  \
        The state of a running server, once or every 2 seconds:\n      \
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
    /// SIGHUP reads the file again, applies the options that can change, and logs those that need a
    /// restart
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check --config and the files that it names, print the options in effect, and start nothing.
    /// Exit status: 0 if a server could start with them, else 2
    #[arg(long, requires = "config")]
    pub check_config: bool,

    /// Size of the memory for files: a number of bytes, or of powers of 1024 such as 512m, 4g, 1.5t
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, required_unless_present_any = ["exports", "new_key"])]
    pub memory: Option<u64>,

    /// The largest size that `rfs-server resize` can give the memory: address space, which takes no
    /// memory. Not for rdma: addresses [default: the size of --memory]
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, requires = "memory")]
    pub max_memory: Option<u64>,

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

    /// The snapshots.
    #[command(flatten)]
    pub snapshots: SnapshotArguments,

    /// An export, instead of --memory: name, size, the largest size that `rfs-server resize` can
    /// give it, number of inodes, and permissions of the root directory. With evict=lru the server
    /// removes the least recently used files that are not open when space is short. With
    /// ttl=SECONDS it removes files SECONDS after their last change. May be repeated; clients that
    /// name no export get the first
    #[arg(
        long = "export",
        value_name = "NAME=SIZE[,max=SIZE][,inodes=N][,root-mode=MODE][,evict=lru][,ttl=SECONDS]",
        value_parser = ExportArg::parse,
        conflicts_with_all = ["memory", "max_memory", "inodes", "name", "root_mode"]
    )]
    pub exports: Vec<ExportArg>,

    /// The pool that lends memory to the server, or that a store lends to.
    #[command(flatten)]
    pub pool: PoolArguments,

    /// The memory that the server lends to pagers.
    #[command(flatten)]
    pub lending: LendArguments,

    /// Where the server listens.
    #[command(flatten)]
    pub listening: ListenArguments,

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
    /// succeeds and no other thread wants its core. 0: never poll. This saves up to half of the
    /// processor time of requests of 64 KiB and more. It costs up to 40 % of the rate of small
    /// requests
    #[arg(long, alias = "look", value_name = "N", default_value = "400", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub busy_poll_us: u32,

    /// Do not kill an unresponsive client of this host that has lost its session. It has the memory
    /// mapped and could still write to it, so its files stay open and locked until its process ends
    #[arg(long)]
    pub keep_stragglers: bool,

    /// Which clients the server accepts.
    #[command(flatten)]
    pub access: AccessArguments,

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

impl Cli {
    /// Returns the configuration that the options describe.
    pub fn into_config(self) -> Config {
        let mut config = Config::new(self.memory.unwrap_or(0));
        self.listening.apply_to(&mut config);
        self.access.apply_to(&mut config);
        let lease = Some(Duration::from_secs(self.lease.into()));
        config.fencing = Fencing::new(lease, !self.keep_stragglers);
        config.recall_timeout = self.recall_timeout.map(|seconds| Duration::from_secs(seconds.into()));
        config.look = Duration::from_micros(self.busy_poll_us.into());
        (config.max_memory, config.inodes) = (self.max_memory, self.inodes);
        config.memory_dir = self.memory_dir;
        config.lent_to_pagers = self.lending.lend.unwrap_or(0);
        config.checksum = self.checksum;
        config.persist = self.snapshots.settings();
        config.stores = self.pool.stores();
        config.name = self.name;
        config.root.perm = self.root_mode;
        let root = config.root;
        let export = |arg: ExportArg| {
            let root = Root { perm: arg.root_mode.unwrap_or(root.perm), ..root };
            let ExportArg { name, memory, max, inodes, eviction, .. } = arg;
            ExportConfig { name, memory, max, inodes, root, eviction }
        };
        config.exports = self.exports.into_iter().map(export).collect();
        config.prefault = self.prefault;
        config.allow_mixed_atomics = self.allow_mixed_atomics;
        config
    }
}

#[cfg(test)]
mod tests;
