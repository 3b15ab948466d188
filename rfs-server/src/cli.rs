//! The command line.
//!
//! Threading: none. It parses and explains; it opens and starts nothing.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use rdmabox::{Address, Fencing, RdmaOptions, size, tls::TlsServerFiles};

use crate::{
    config::DEFAULT_SESSIONS_PER_KEY,
    config::{Config, Persist},
    dispatch::Root,
    export::{ExportArg, ExportConfig, parse_mode, parse_name},
    keys::NewKey,
    prefault::Prefault,
};

/// Lends memory of this machine as a file system.
///
/// The server keeps the files of its clients in the memory that it lends, for as long as it runs. Clients mount
/// them with `rfs-fuse ADDRESS MOUNTPOINT`; on the same host they reach the memory itself, from other hosts over
/// the network. The server runs in the foreground until SIGTERM or Ctrl-C; when it ends, the files are gone, unless there is a --memory-dir or --persist.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-server",
    version,
    after_long_help = "Examples:\n  \
        Lend 4 GiB to this user's programs on this host, and root's, through a Unix socket:\n      \
            rfs-server --memory 4G\n  \
        Only through a Unix socket of your choice:\n      \
            rfs-server --memory 512M --listen unix:/tmp/scratch.sock\n  \
        To other hosts, for those who have a key (of which the first command prints both halves):\n      \
            rfs-server --new-key laptop\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys\n  \
        The same, encrypted, to those who know the authority that has signed the server's certificate:\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys \\\n        \
                --tls-cert /etc/rfs/server.pem --tls-key /etc/rfs/server.key\n  \
        Over RDMA hardware or Soft-RoCE (they find each other over TCP):\n      \
            rfs-server --memory 64G --listen rdma:10.0.0.7:7441 --keys /etc/rfs/keys\n  \
        To other hosts of a network on which every program may read and write everything:\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --allow-without-keys\n  \
        Two file systems, each with space of its own (rfs-fuse --export NAME):\n      \
            rfs-server --export home=8G --export scratch=2G,inodes=100000,root-mode=1777\n  \
        With all memory taken before clients can connect:\n      \
            rfs-server --memory 4G --prefault\n  \
        So that the files outlive the server, though not the machine:\n      \
            rfs-server --memory 4G --memory-dir /dev/shm/rfs\n  \
        So that they outlive the machine as well, as they were a few minutes before (kill -USR1 makes a snapshot at once):\n      \
            rfs-server --memory 4G --memory-dir /dev/shm/rfs --persist /var/lib/rfs\n\n\
        When clients can connect, it prints the addresses that it listens on, one a line, and then a line that \
        begins with \"ready:\". Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot start, 2 for a command \
        line that makes no sense. Log lines on standard error tell \
        who came and went; RUST_LOG=warn keeps that quiet."
)]
pub struct Cli {
    /// How much memory to lend: a number of bytes, or of powers of 1024: 512m, 4g, 1.5t
    #[arg(long, value_name = "SIZE", value_parser = size::parse, required_unless_present_any = ["exports", "new_key"])]
    pub memory: Option<u64>,

    /// Keep the memory in files in this directory, one on a tmpfs such as /dev/shm: whatever ends the server, the next one with this option
    /// goes on with every file, and mounts go on with it. The directory is made if it is missing; no two servers use it at once. Without
    /// this option, or when the machine ends, the files are gone
    #[arg(long, value_name = "DIR")]
    pub memory_dir: Option<PathBuf>,

    /// Keep a CRC-32C of each block of 4 KiB beside the files, and have clients compare what they read with it: what has gone bad in
    /// memory or on the way is an error (EIO), never data. What is written goes through the server then instead of past it. Takes
    /// a five hundredth of the memory more. `rfs-fuse scrub` has all files compared. A --memory-dir keeps to what it was made with
    #[arg(long)]
    pub checksum: bool,

    /// Keep snapshots of what is lent in this directory, on a disk: when the memory is gone, the next server with this option
    /// begins with the newest one that is whole. One is made every --persist-every seconds, when the server gets SIGUSR1, and when it
    /// ends; clients go on meanwhile. Where there is a --memory-dir with memory in it, that is newer, and counts
    #[arg(long, value_name = "DIR")]
    pub persist: Option<PathBuf>,

    /// Seconds between the end of one snapshot and the beginning of the next, or none: only when it is asked for, and at the
    /// end. Each writes all that files have. Skipped if no client connected since the last snapshot
    #[arg(long, value_name = "SECS|none", value_parser = parse_every, default_value = "300", requires = "persist")]
    pub persist_every: Every,

    /// How many snapshots stay. The oldest one goes when a new one is whole and on the disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000), default_value = "2",
        requires = "persist")]
    pub persist_keep: u16,

    /// A file system to lend, instead of --memory and what goes with it: its name and size, how many inodes it has, and the
    /// permissions of its root directory. May be repeated; clients that name none get the first
    #[arg(long = "export", value_name = "NAME=SIZE[,inodes=N][,root-mode=MODE]", value_parser = ExportArg::parse,
        conflicts_with_all = ["memory", "inodes", "name", "root_mode"])]
    pub exports: Vec<ExportArg>,

    /// Where to listen: unix:/path, tcp:host:port or rdma:host:port; may be repeated. Port 0 takes a free one.
    ///
    /// tcp: and rdma: need --keys, also on loopback, where the programs of every local user connect. Without this option the server
    /// listens on a Unix socket: /run/rfs/rfs.sock for root, $XDG_RUNTIME_DIR/rfs.sock or /tmp/rfs-UID.sock for others.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// RDMA device for rdma: addresses, such as mlx5_0 or rxe0 [default: the first with an active port]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: the first active one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub port: Option<u8>,

    /// Entry of the port's GID table: the address that connections use [default: that of the network address over which the
    /// peers find each other, else one of RoCE v2]
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,

    /// How many files, directories and links there can be [default: one for every 16 KiB, at least 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub inodes: Option<u32>,

    /// Name of what is lent, for logs and /proc
    #[arg(long, value_name = "NAME", default_value = "rfs", value_parser = parse_name)]
    pub name: String,

    /// Permissions of the root directory, in octal; it belongs to the user who runs the server
    #[arg(long, value_name = "MODE", default_value = "755", value_parser = parse_mode)]
    pub root_mode: u32,

    /// When to take the memory from the system: never ahead of its first use, in the background from the start on, or
    /// first of all, before clients can connect
    #[arg(long, value_name = "WHEN", value_enum, default_value = "background", default_missing_value = "first",
        num_args = 0..=1, require_equals = true)]
    pub prefault: Prefault,

    /// A client that is not heard of for so many seconds (stopped, hung, cut off) has lost its session: its locks are free,
    /// its mount fails, and what it still sends has no effect. Clients report three times in that time
    #[arg(long, value_name = "SECS", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub lease: u32,

    /// A client that is told that something has changed which it keeps, and does not say within so many seconds that it keeps it no
    /// longer, has lost its session: whoever made the change waits for it meanwhile [default: 8, or half of the lease if that is less]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub recall_timeout: Option<u32>,

    /// Busy-poll for up to this many microseconds before blocking, on the thread that moves data over TCP. It polls while that
    /// succeeds and no other thread wants its core. 0: never, which takes up to half of the processor time from requests of 64 KiB
    /// and more, and up to 40 % of their rate from small ones
    #[arg(long, value_name = "MICROS", default_value = "400", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub look: u32,

    /// Do not kill a client of this host that has lost its session and does not react: what it had open stays taken until its
    /// process ends. It has the memory mapped, and could still write to it when it goes on
    #[arg(long)]
    pub keep_stragglers: bool,

    /// Take clients only that have one of the keys in this file, of mode 600: lines of a name, a secret in hexadecimal
    /// digits, an export (rfs unless told otherwise), and rw or ro. Then may follow squash=root (root of the client has the rights of other
    /// users) or squash=all (every user is the user uid=N with the group gid=N, else 65534), enforced by the server. Client and server prove to each other that they have it. SIGHUP
    /// has the file read again. Through a Unix socket the user that runs the server, and root, need none
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,

    /// Sessions at a time of one key: a mount has one, and two for a moment when it connects again. A client can make the server use
    /// up to 5 MiB for each
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SESSIONS_PER_KEY)]
    pub sessions_per_key: usize,

    /// Make a new key, print the lines for the server's and the client's file, and end
    #[arg(long, value_name = "NAME[,export=NAME][,ro][,squash=root|all][,uid=N][,gid=N]", value_parser = NewKey::parse)]
    pub new_key: Option<NewKey>,

    /// Over TCP speak TLS 1.3, and nothing else, with the certificate in this file (PEM, with those between it and its
    /// authority behind it). SIGHUP has it read again. There can be no rdma: addresses then: what such a device carries cannot be
    /// encrypted. Unix sockets, which lead to this host only, are as without
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert: a file of mode 600, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Take clients over TCP only that have a certificate of one of the authorities in this file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// Take every client without a key, through Unix sockets, TCP and RDMA: any local user, and any program on a machine that
    /// reaches an address, can then read and write every file as root
    #[arg(long, conflicts_with = "keys")]
    pub allow_without_keys: bool,

    /// Listen on rdma: addresses beside others, although the atomics of the RDMA device are not atomic towards the processor's. Then
    /// an export must not be mounted over RDMA and in another way at the same time: appends and sizes of files would be lost
    #[arg(long)]
    pub allow_mixed_atomics: bool,
}

/// Time between snapshots, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(Option<Duration>);

fn parse_every(text: &str) -> Result<Every, String> {
    let seconds = |seconds: u32| Every(Some(Duration::from_secs(seconds.into())));
    match (text, text.parse()) {
        ("none", _) => Ok(Every(None)),
        (_, Ok(1..)) => text.parse().map(seconds).map_err(|e: std::num::ParseIntError| e.to_string()),
        _ => Err("it is a number of seconds from 1 on, or none".into()),
    }
}

impl Cli {
    /// The configuration that it asks for.
    pub fn into_config(self) -> Config {
        let mut config = Config::new(self.memory.unwrap_or(0));
        if !self.listen.is_empty() {
            config.listen = self.listen;
        }
        config.rdma = RdmaOptions { device: self.device, port: self.port, gid_index: self.gid_index };
        let lease = Some(Duration::from_secs(self.lease.into()));
        config.fencing = Fencing { lease, kill: !self.keep_stragglers };
        config.recall_timeout = self.recall_timeout.map(|seconds| Duration::from_secs(seconds.into()));
        config.look = Duration::from_micros(self.look.into());
        config.inodes = self.inodes;
        config.memory_dir = self.memory_dir;
        config.checksum = self.checksum;
        let (every, keep) = (self.persist_every.0, self.persist_keep.into());
        config.persist = self.persist.map(|dir| Persist { dir, every, keep });
        config.name = self.name;
        config.root.perm = self.root_mode;
        let root = config.root;
        let export = |arg: ExportArg| {
            let root = Root { perm: arg.root_mode.unwrap_or(root.perm), ..root };
            ExportConfig { name: arg.name, memory: arg.memory, inodes: arg.inodes, root }
        };
        config.exports = self.exports.into_iter().map(export).collect();
        config.prefault = self.prefault;
        config.keys = self.keys;
        let client_ca = self.tls_client_ca;
        let files = |(certificate, key)| TlsServerFiles { certificate, key, client_ca };
        config.tls = self.tls_cert.zip(self.tls_key).map(files);
        config.sessions_per_key = self.sessions_per_key;
        config.allow_without_keys = self.allow_without_keys;
        config.allow_mixed_atomics = self.allow_mixed_atomics;
        config
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
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
            "--look=30",
            "--keep-stragglers",
            "--allow-without-keys",
        ])
        .unwrap();
        let config = cli.into_config();
        assert_eq!((config.memory, config.inodes, config.name.as_str()), (2 << 30, Some(77), "x"));
        assert_eq!(config.memory_dir, Some("/dev/shm/x".into()));
        assert_eq!((config.root.perm, config.prefault), (0o1777, Prefault::Never));
        assert_eq!(config.fencing, Fencing { lease: Some(Duration::from_secs(7)), kill: false });
        assert_eq!((config.patience(), config.look), (Duration::from_secs(3), Duration::from_micros(30)));
        assert!(config.allow_without_keys);
        assert_eq!(config.listen, crate::config::default_listen());
        let prefault = |args: &[&str]| {
            Cli::try_parse_from([&["rfs-server", "--memory=1G"], args].concat()).unwrap().prefault
        };
        assert_eq!((prefault(&[]), prefault(&["--prefault"])), (Prefault::Background, Prefault::First));
        let plain = Cli::try_parse_from(["rfs-server", "--memory=1G"]).unwrap().into_config();
        assert_eq!((plain.fencing, plain.look), (Config::new(0).fencing, Config::new(0).look));
        assert_eq!(plain.patience(), crate::config::DEFAULT_PATIENCE);
        assert!(Cli::try_parse_from(["rfs-server"]).is_err());
        assert!(Cli::try_parse_from(["rfs-server", "--memory=1G", "--inodes=0"]).is_err());
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
    fn keys_take_the_place_of_carelessness() {
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
        let files = |client_ca| TlsServerFiles { certificate: "/c".into(), key: "/k".into(), client_ca };
        assert_eq!(tls(&[]), None);
        assert_eq!(tls(&["--tls-cert=/c", "--tls-key=/k"]), Some(files(None)));
        let all = ["--tls-cert=/c", "--tls-key=/k", "--tls-client-ca=/a"];
        assert_eq!(tls(&all), Some(files(Some("/a".into()))));
        for half in [&all[..1], &all[1..2], &all[2..], &all[1..]] {
            assert!(args(half).is_err(), "{half:?}");
        }
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
        };
        assert_eq!(exports, [export("a", 2, None, 0o755), export("b", 3, Some(9), 0o1777)]);
        for rest in ["--memory=1G", "--inodes=7", "--name=x", "--root-mode=700"] {
            assert!(args(&["--export=a=2M", rest]).is_err(), "{rest}");
        }
    }
}
