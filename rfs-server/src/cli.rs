//! The command line.
//!
//! Threading: none. It parses and explains; it opens and starts nothing.

use std::time::Duration;

use clap::Parser;
use rdmabox::{Address, Fencing, RdmaOptions, size};

use crate::{config::Config, prefault::Prefault};

/// Lends memory of this machine as a file system.
///
/// The server keeps the files of its clients in the memory that it lends, for as long as it runs. Clients mount
/// them with `rfs-fuse ADDRESS MOUNTPOINT`; on the same host they reach the memory itself, from other hosts over
/// the network. The server runs in the foreground until SIGTERM or Ctrl-C; when it ends, the files are gone.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-server",
    version,
    after_long_help = "Examples:\n  \
        Lend 4 GiB to programs on this host, through a Unix socket and loopback TCP:\n      \
            rfs-server --memory 4G\n  \
        Only through a Unix socket of your choice:\n      \
            rfs-server --memory 512M --listen unix:/tmp/scratch.sock\n  \
        To other hosts of a network where everybody may read and write everything:\n      \
            rfs-server --memory 64G --listen tcp:10.0.0.7:7440 --allow-remote-without-secret\n  \
        To other hosts over RDMA hardware or Soft-RoCE (they find each other over TCP):\n      \
            rfs-server --memory 64G --listen rdma:10.0.0.7:7441 --allow-remote-without-secret\n  \
        With all memory taken before clients can connect:\n      \
            rfs-server --memory 4G --prefault\n\n\
        When clients can connect, it prints the addresses that it listens on, one a line, and then a line that \
        begins with \"ready:\". Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot start, 2 for a command \
        line that makes no sense. Log lines on standard error tell \
        who came and went; RUST_LOG=warn keeps that quiet."
)]
pub struct Cli {
    /// How much memory to lend: a number of bytes, or of powers of 1024: 512m, 4g, 1.5t
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: u64,

    /// Where to listen: unix:/path, tcp:host:port or rdma:host:port; may be repeated. Port 0 takes a free one.
    ///
    /// Without this option: loopback TCP on port 7440, and a Unix socket: /run/rfs/rfs.sock for root,
    /// $XDG_RUNTIME_DIR/rfs.sock or /tmp/rfs-UID.sock for others.
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
    /// longer, has lost its session: whoever made the change waits for it meanwhile [default: 5, or half of the lease if that is less]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub recall_timeout: Option<u32>,

    /// Do not kill a client of this host that has lost its session and does not react: what it had open stays taken until its
    /// process ends. It has the memory mapped, and could still write to it when it goes on
    #[arg(long)]
    pub keep_stragglers: bool,

    /// Listen on addresses that other machines can reach, although anybody who connects can then read and write
    /// everything: this version cannot authenticate clients
    #[arg(long)]
    pub allow_remote_without_secret: bool,
}

impl Cli {
    /// The configuration that it asks for.
    pub fn into_config(self) -> Config {
        let mut config = Config::new(self.memory);
        if !self.listen.is_empty() {
            config.listen = self.listen;
        }
        config.rdma = RdmaOptions { device: self.device, port: self.port, gid_index: self.gid_index };
        let lease = Some(Duration::from_secs(self.lease.into()));
        config.fencing = Fencing { lease, kill: !self.keep_stragglers };
        config.recall_timeout = self.recall_timeout.map(|seconds| Duration::from_secs(seconds.into()));
        config.inodes = self.inodes;
        config.name = self.name;
        config.root.perm = self.root_mode;
        config.prefault = self.prefault;
        config.allow_remote_without_secret = self.allow_remote_without_secret;
        config
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("{text:?} is no mode: write octal permissions such as 755 or 1777"))
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 64 || text.chars().any(char::is_control) {
        return Err("a name is 1 to 64 bytes of printable text".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn modes_and_names() {
        assert_eq!(parse_mode("1777"), Ok(0o1777));
        assert!(parse_mode("17777").is_err() && parse_mode("8").is_err() && parse_mode("").is_err());
        assert!(parse_name("scratch").is_ok());
        assert!(parse_name("").is_err() && parse_name("a\0b").is_err());
    }

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
            "--name=x",
            "--root-mode=1777",
            "--prefault=never",
            "--lease=7",
            "--recall-timeout=3",
            "--keep-stragglers",
            "--allow-remote-without-secret",
        ])
        .unwrap();
        let config = cli.into_config();
        assert_eq!((config.memory, config.inodes, config.name.as_str()), (2 << 30, Some(77), "x"));
        assert_eq!((config.root.perm, config.prefault), (0o1777, Prefault::Never));
        assert_eq!(config.fencing, Fencing { lease: Some(Duration::from_secs(7)), kill: false });
        assert_eq!(config.patience(), Duration::from_secs(3));
        assert!(config.allow_remote_without_secret);
        assert_eq!(config.listen, crate::config::default_listen());
        let prefault = |args: &[&str]| {
            Cli::try_parse_from([&["rfs-server", "--memory=1G"], args].concat()).unwrap().prefault
        };
        assert_eq!((prefault(&[]), prefault(&["--prefault"])), (Prefault::Background, Prefault::First));
        let plain = Cli::try_parse_from(["rfs-server", "--memory=1G"]).unwrap().into_config();
        assert_eq!(plain.fencing, Config::new(0).fencing);
        assert_eq!(plain.patience(), crate::config::DEFAULT_PATIENCE);
        assert!(Cli::try_parse_from(["rfs-server"]).is_err());
        assert!(Cli::try_parse_from(["rfs-server", "--memory=1G", "--inodes=0"]).is_err());
    }
}
