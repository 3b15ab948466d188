//! The command line of a mount; what says how a server is reached is in `connection`.

mod connection;

use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::Parser;
use rdmabox::{
    Address, BatchMode, CallsBy, PollingMode, PreMrThreshold, SessionOptions, size, tls::TlsClientFiles,
};
use rfs_proto::Identity;

pub(crate) use self::connection::Connection;
use crate::{
    client::{AccessTimes, AttachOptions, Farewell},
    fuse::{FOREVER, Settings},
    mount::{Flags, MountOptions},
};

const EXAMPLES: &str = "\
Examples:
  rfs-fuse --memory 4G /mnt                mount 4 GiB of this machine's memory, with a server of the mount's own
  rfs-fuse /run/rfs.sock /mnt              mount from a server on this host, through shared memory
  rfs-fuse --daemon 10.0.0.7:7440 /mnt     mount from another host, and go to the background once it answers
  rfs-fuse --provider tcp localhost:7440 /mnt
                                           use TCP although the server is on this host
  rfs-fuse --tls-ca /etc/rfs/ca.pem --key /etc/rfs/key files.example:7440 /mnt
                                           encrypted, from a server that has to prove its name
  rfs-fuse rdma:10.0.0.7:7441 /mnt         carry data over an RDMA device of each side
  rfs-fuse scrub /run/rfs.sock             have a server with --checksum look for files that have gone bad
  fusermount3 -u /mnt                      unmount (SIGTERM and Ctrl-C do so, too)

An address is unix:/path/to/socket, tcp:host:port or rdma:host:port; /path/to/socket and host:port mean the first two.
Sizes are numbers of bytes, or of powers of 1024: 64k, 1.5m, 4g.
A program that keeps files open can hold a mount busy: SIGTERM then detaches it at once and says so.

For mount(8) and /etc/fstab, link it as /sbin/mount.fuse.rfs: mount -t fuse.rfs /run/rfs.sock /mnt -o ro,attr_timeout=5
Options of -o are those above, without the dashes, and mount(8)'s own.";

/// Mounts the memory of an rfs-server as a file system.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-fuse",
    version,
    after_help = EXAMPLES,
    override_usage = "rfs-fuse [OPTIONS] ADDRESS MOUNTPOINT\n       rfs-fuse [OPTIONS] --memory SIZE MOUNTPOINT",
    max_term_width = 110
)]
pub struct Args {
    /// The server's address, and a directory to mount on
    #[arg(value_names = ["ADDRESS", "MOUNTPOINT"], num_args = 1..=2, required = true)]
    paths: Vec<OsString>,

    /// Start a server for this mount alone, which lends SIZE bytes of this machine's memory. The server ends with the mount, and
    /// its files with it. Takes no ADDRESS; in /etc/fstab any word stands for it
    #[arg(long, value_name = "SIZE", value_parser = size::parse,
        conflicts_with_all = ["null", "provider", "key", "tls_ca", "export", "checksum"])]
    pub(crate) memory: Option<u64>,

    /// The address of the private server.
    #[arg(skip)]
    private: Option<Address>,

    /// Go to the background; return once the mount answers
    #[arg(long)]
    pub daemon: bool,

    /// Append log messages to this file instead of writing them to stderr
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Nothing can be changed through this mount
    #[arg(long)]
    pub read_only: bool,

    /// If this process is killed, leave the mount: what is done there fails with ENOTCONN, and nothing goes to the directory
    /// below by mistake, until somebody unmounts it [default: it is unmounted]
    #[arg(long)]
    pub leave_dead_mount: bool,

    /// Options as those of mount(8), separated by commas: ro, noexec, noatime, allow_other, attr_timeout=5, ...
    // It never gets here: the list has been taken apart before.
    #[arg(short = 'o', value_name = "OPTIONS")]
    _list: Option<String>,

    /// Programs on the mount cannot be executed
    #[arg(long, help_heading = "Kernel")]
    noexec: bool,

    /// Device nodes on the mount take effect (only as root). In a list of mount(8) options: allow_dev
    #[arg(long, alias = "allow-dev", help_heading = "Kernel")]
    dev: bool,

    /// Set-user-ID and set-group-ID programs on the mount take effect (only as root). In a list of mount(8) options: allow_suid
    #[arg(long, alias = "allow-suid", help_heading = "Kernel")]
    suid: bool,

    /// Reading changes no times of access
    #[arg(long, help_heading = "Kernel")]
    noatime: bool,

    /// Nor those of directories
    #[arg(long, hide = true)]
    nodiratime: bool,

    /// Every read changes the time of access, not just the first one after a change and one a day
    #[arg(long, help_heading = "Kernel")]
    strictatime: bool,

    /// The same, as mount(8) calls it
    #[arg(long, hide = true)]
    norelatime: bool,

    /// Every write is as with O_SYNC
    #[arg(long, help_heading = "Kernel")]
    sync: bool,

    /// Changes of directories are synchronous, as they are in any case
    #[arg(long, hide = true)]
    dirsync: bool,

    /// The mount table shows the type fuse.NAME
    #[arg(long, value_name = "NAME", default_value = "rfs-fuse", value_parser = subtype, help_heading = "Kernel")]
    subtype: String,

    /// Let other users use the mount (the default for root; others need user_allow_other in /etc/fuse.conf)
    #[arg(long, overrides_with = "no_allow_other")]
    allow_other: bool,

    /// Only the user who mounts may use the mount (the default unless that is root)
    #[arg(long, overrides_with = "allow_other")]
    no_allow_other: bool,

    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Data queue pairs
    #[arg(long, value_name = "N", help_heading = "Session")]
    queue_pairs: Option<usize>,

    /// Bytes in flight at most
    #[arg(long, value_name = "BYTES", value_parser = size::parse, help_heading = "Session")]
    window: Option<u64>,

    /// How requests that meet are combined: single, merge, doorbell or hybrid
    #[arg(long, value_name = "MODE", value_parser = parsed::<BatchMode>, help_heading = "Session")]
    batch: Option<BatchMode>,

    /// Copy requests up to this size through registered memory, register the buffers of larger ones; auto:
    /// the runtime chooses
    #[arg(long, value_name = "BYTES|auto", value_parser = parsed::<PreMrThreshold>, help_heading = "Session")]
    pre_mr_threshold: Option<PreMrThreshold>,

    /// How completions are waited for: busy, event, event-batch, hybrid, adaptive or shared-cq:M
    #[arg(long, value_name = "MODE", value_parser = parsed::<PollingMode>, help_heading = "Session")]
    polling: Option<PollingMode>,

    /// How the server's answers to calls come: reply (as messages), fetch (they are read from its memory) or auto: fetched over
    /// shared memory
    #[arg(long, value_name = "reply|fetch|auto", value_parser = parsed::<CallsBy>, help_heading = "Session")]
    calls: Option<CallsBy>,

    /// Polls without success before adaptive polling sleeps
    #[arg(long, value_name = "N", help_heading = "Session")]
    max_retry: Option<u32>,

    /// Busy-poll for up to this many microseconds before blocking, on the thread that moves data over TCP [default: 400].
    /// It polls while that succeeds and no other thread wants its core. 0: never. rfs-server --look is for the other end
    #[arg(long, value_name = "MICROS", value_parser = clap::value_parser!(u32).range(..=100_000), help_heading = "Session")]
    look: Option<u32>,

    /// No operation waits longer for the server
    #[arg(long, value_name = "SECS", value_parser = seconds, help_heading = "Session")]
    timeout: Option<Duration>,

    /// Connecting to the server takes no longer, apart from looking up its name
    #[arg(long, value_name = "SECS", value_parser = seconds, help_heading = "Session")]
    connect_timeout: Option<Duration>,

    /// Mount only if the server compares what it keeps with checksums (rfs-server --checksum). Where it does, mounts do so in any
    /// case; this makes certain of it
    #[arg(long, help_heading = "Session")]
    checksum: bool,

    /// When the session with the server is lost, let everything fail from then on, instead of coming back to it
    #[arg(long, help_heading = "Session")]
    no_return: bool,

    /// Print the session's counters as JSON at the end
    #[arg(long, help_heading = "Session")]
    pub stats_on_exit: bool,

    /// Largest write request of the kernel
    #[arg(long, value_name = "BYTES", value_parser = kernel_size, default_value = "1M", help_heading = "Kernel")]
    max_write: u32,

    /// How far the kernel reads ahead (beyond 128K only as root)
    #[arg(
        long,
        alias = "read-ahead",
        value_name = "BYTES",
        value_parser = kernel_size,
        default_value = "1M",
        help_heading = "Kernel"
    )]
    max_readahead: u32,

    /// Threads that serve the kernel; over io_uring, on each core
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64),
        default_value = "2",
        help_heading = "Kernel"
    )]
    threads: u16,

    /// Do not move the threads that serve the kernel to the core of those who call (only root has them moved)
    #[arg(long, help_heading = "Kernel")]
    pub no_follow: bool,

    /// Take requests from the kernel over io_uring (Linux 6.14 and newer). auto: if the kernel offers
    /// it (/sys/module/fuse/parameters/enable_uring is Y); on: in any case, and switch it on if it is
    /// off, for the whole machine and only as root; off: over /dev/fuse. Without a value: on
    #[arg(
        long,
        value_name = "auto|on|off",
        value_parser = io_uring,
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "on",
        overrides_with = "no_io_uring",
        help_heading = "Kernel"
    )]
    io_uring: IoUring,

    /// The same as --io-uring=off
    #[arg(long, overrides_with = "io_uring", hide = true)]
    no_io_uring: bool,

    /// The kernel keeps attributes no longer than so [default: as long as they are right]
    #[arg(long, value_name = "SECS", value_parser = timeout, help_heading = "Kernel")]
    attr_timeout: Option<Duration>,

    /// The kernel keeps names no longer than so [default: as long as they are right]
    #[arg(long, value_name = "SECS", value_parser = timeout, help_heading = "Kernel")]
    entry_timeout: Option<Duration>,

    /// What the kernel keeps: auto: names, attributes and file pages, until another mount changes them; none: nothing, which
    /// is fastest for large requests and slow for small ones; writeback: all of it, and what is written, until it is closed, synced or
    /// has lain for some time. No other mount can use the export then
    #[arg(long, value_parser = cache, value_name = "auto|none|writeback", default_value = "auto", help_heading = "Kernel")]
    cache: Cache,

    /// The same as --cache none
    #[arg(long, hide = true)]
    direct_io: bool,

    /// A file system in this process's own memory instead of a server's, to measure FUSE itself
    #[arg(long, hide = true)]
    pub null: bool,

    /// Print nothing when the mount is there (mount(8) asks for that, unless it is told -v)
    #[arg(long)]
    pub quiet: bool,

    /// This process is the background one of --daemon
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// What the kernel keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    /// What may be kept until it is recalled.
    Auto,
    /// Nothing.
    None,
    /// All, and what is written.
    Writeback,
}

fn cache(text: &str) -> Result<Cache, String> {
    match text {
        "auto" => Ok(Cache::Auto),
        "none" => Ok(Cache::None),
        "writeback" => Ok(Cache::Writeback),
        _ => Err("there are auto, none and writeback".into()),
    }
}

/// A mount that has just ended may still be known to the server. So long its end is waited for.
const OTHERS_LEAVE: Duration = Duration::from_secs(1);

/// For how long a server holds a call back while it waits for another client, unless it was told otherwise.
const RECALL_PATIENCE: Duration = Duration::from_secs(8);

/// Whether requests come over io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// If the kernel offers it.
    Auto,
    /// In any case, or there is no mount.
    On,
    /// No.
    Off,
}

fn io_uring(text: &str) -> Result<IoUring, String> {
    match text {
        "auto" => Ok(IoUring::Auto),
        "on" => Ok(IoUring::On),
        "off" => Ok(IoUring::Off),
        _ => Err("there are auto, on and off".into()),
    }
}

fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

fn kernel_size(text: &str) -> Result<u32, String> {
    const LIMITS: std::ops::RangeInclusive<u64> = 4096..=16 << 20;
    let bytes = size::parse(text).map_err(|e| e.to_string())?;
    u32::try_from(bytes)
        .ok()
        .filter(|_| LIMITS.contains(&bytes))
        .ok_or_else(|| "it has to be between 4K and 16M".into())
}

fn subtype(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match text.chars().all(allowed) && (1..=64).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err("it consists of 1 to 64 letters, digits, dots, dashes and underscores".into()),
    }
}

/// Seconds, with or without a fraction.
fn timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= 1e9 => Ok(duration),
        _ => Err("it has to be between 0 and a billion seconds".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let duration = timeout(text)?;
    if duration.is_zero() { Err("it has to be more than 0".into()) } else { Ok(duration) }
}

/// A combination of arguments that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// One of the two.
    #[error("an address and a mount point are needed: rfs-fuse ADDRESS MOUNTPOINT (see rfs-fuse --help)")]
    Missing,
    /// Not the form of an address.
    #[error("{0}")]
    Address(String),
    /// There would be no TLS.
    #[error("--tls-ca is for servers at tcp:host:port: {0}")]
    Tls(&'static str),
}

impl Args {
    /// The server's address; `None` with `--null`.
    pub fn address(&self) -> Result<Option<Address>, UsageError> {
        if self.null {
            return Ok(None);
        }
        if let Some(private) = &self.private {
            return Ok(Some(private.clone()));
        }
        let [address, _] = &self.paths[..] else { return Err(UsageError::Missing) };
        let Some(address) = address.to_str() else {
            return Err(UsageError::Address(format!(
                "invalid address {address:?}; expected host:port or the path of a socket"
            )));
        };
        address.parse().map(Some).map_err(|e: <Address as FromStr>::Err| UsageError::Address(e.to_string()))
    }

    /// Returns the same arguments for a mount of the private server at `address`.
    pub(crate) fn served_at(&self, address: Address) -> Args {
        Args { private: Some(address), ..self.clone() }
    }

    /// The files for TLS, if it is wanted.
    pub fn tls(&self) -> Result<Option<TlsClientFiles>, UsageError> {
        self.connection.tls(self.address()?.as_ref())
    }

    /// The directory to mount on.
    pub fn mount_point(&self) -> PathBuf {
        self.paths.last().map_or_else(PathBuf::new, PathBuf::from)
    }

    /// What the mount table shows as the source.
    pub fn source(&self) -> String {
        match &self.paths[..] {
            _ if self.null => "null".into(),
            [_] if self.memory.is_some() => "rfs".into(),
            paths => paths[0].to_string_lossy().into_owned(),
        }
    }

    /// How to mount.
    pub fn mount_options(&self) -> MountOptions {
        MountOptions {
            source: self.source(),
            fs_type: format!("fuse.{}", self.subtype),
            allow_other: self.allow_other(),
            flags: Flags {
                read_only: self.read_only,
                noexec: self.noexec,
                suid: self.suid,
                dev: self.dev,
                sync: self.sync,
                dirsync: self.dirsync,
                noatime: self.noatime,
                nodiratime: self.nodiratime,
                strictatime: self.strictatime || self.norelatime,
            },
        }
    }

    /// May others than the user who mounts use it?
    pub fn allow_other(&self) -> bool {
        self.allow_other || (!self.no_allow_other && rustix::process::geteuid().is_root())
    }

    /// Session threads.
    pub fn threads(&self) -> usize {
        self.threads.into()
    }

    /// Whether requests come over io_uring.
    pub fn io_uring(&self) -> IoUring {
        if self.no_io_uring { IoUring::Off } else { self.io_uring }
    }

    /// What is agreed with the kernel.
    pub fn settings(&self) -> Settings {
        let cache = if self.direct_io { Cache::None } else { self.cache };
        let keeps = cache != Cache::None;
        Settings {
            max_write: self.max_write,
            max_readahead: self.max_readahead,
            attr_timeout: if keeps { self.attr_timeout.unwrap_or(FOREVER) } else { Duration::ZERO },
            entry_timeout: if keeps { self.entry_timeout.unwrap_or(FOREVER) } else { Duration::ZERO },
            direct_io: !keeps,
            keeps,
            writeback: cache == Cache::Writeback,
        }
    }

    /// What fits together badly, in words for the user. A call that the server holds back until others have given up what they keep is
    /// no sign that it hangs.
    pub fn doubt(&self) -> Option<String> {
        let timeout = self.timeout.filter(|timeout| *timeout <= RECALL_PATIENCE)?;
        let (timeout, patience) = (timeout.as_secs_f64(), RECALL_PATIENCE.as_secs_f64());
        Some(format!(
            "--timeout {timeout}: a call may take {patience} s while the server waits for another client (rfs-server \
             --recall-timeout), and one that takes longer than --timeout ends this mount's session: set --timeout to more than \
             {patience}, or --recall-timeout to less than {timeout}"
        ))
    }

    /// How to attach to the server.
    pub fn attach_options(&self) -> AttachOptions {
        let Settings { keeps, writeback, .. } = self.settings();
        AttachOptions {
            export: self.connection.export.clone(),
            keeps,
            alone: writeback,
            checked: self.checksum,
            patience: OTHERS_LEAVE,
            returns: !self.no_return,
            access_times: self.access_times(self.noatime),
            directory_access_times: self.access_times(self.noatime || self.nodiratime),
        }
    }

    /// What is to be said to the server for a mount whose process was killed.
    pub fn farewell(&self, mount: Identity) -> Option<Farewell> {
        let (address, tls) = (self.address().ok()??, self.tls().ok()?);
        let Connection { provider, export, key, .. } = self.connection.clone();
        Some(Farewell { address, provider, export, key, tls, mount })
    }

    /// Which reads count, as mount(8) has it; on a mount that is read-only there are none that would change anything.
    fn access_times(&self, never: bool) -> AccessTimes {
        match never || self.read_only {
            true => AccessTimes::Never,
            false if self.strictatime || self.norelatime => AccessTimes::Always,
            false => AccessTimes::Relative,
        }
    }

    /// What the session with the server is told.
    pub fn session_options(&self) -> SessionOptions {
        let (provider, rdma) = (self.connection.provider, self.connection.rdma());
        let mut options = SessionOptions { provider, rdma, ..SessionOptions::default() };
        if let Some(queue_pairs) = self.queue_pairs {
            options.queue_pairs = queue_pairs;
        }
        if let Some(window) = self.window {
            options.window_bytes = window;
        }
        if let Some(batch) = self.batch {
            options.batch = batch;
        }
        if let Some(threshold) = self.pre_mr_threshold {
            options.pre_mr_threshold = threshold;
        }
        if let Some(calls) = self.calls {
            options.calls = calls;
        }
        if let Some(polling) = self.polling {
            options.polling = polling;
        }
        if let Some(max_retry) = self.max_retry {
            options.max_retry = Some(max_retry);
        }
        if let Some(look) = self.look {
            options.engine_look = Duration::from_micros(look.into());
        }
        if let Some(timeout) = self.timeout {
            options.operation_timeout = timeout;
        }
        if let Some(timeout) = self.connect_timeout {
            options.connect_timeout = timeout;
        }
        options
    }
}

/// The arguments of the background process that `--daemon` starts: the same, but for that.
pub fn detached_arguments(arguments: &[OsString]) -> Vec<OsString> {
    let mut rest =
        arguments.iter().skip(1).filter(|argument| *argument != "--daemon").cloned().collect::<Vec<_>>();
    rest.insert(0, OsStr::new("--detached").to_owned());
    rest
}

#[cfg(test)]
mod tests;
