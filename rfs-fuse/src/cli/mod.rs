//! The command line of a mount.
//!
//! [`Args`] is the parsed command line. Options of the connection to the server are in
//! `connection`. `options` derives the options of each component from it: of the mount, of the
//! session, of the attach call and of the kernel. No locks, no clock. `parse` prints, and relative
//! paths need the current directory.

mod configuration;
mod connection;
mod options;
mod parse;
mod security_labels;
mod usage;
mod values;

use std::{
    ffi::{OsStr, OsString},
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::Parser;
use rdmabox::{
    Address, BatchMode, CallsBy, PollingMode, PreMrThreshold, admission::WindowScope, tls::TlsClientFiles,
};

use rfs_status::logging::{LogFormat, SYSLOG};

use crate::fuse::parse_limit;

use self::security_labels::SecurityLabels;
use self::values::{Cache, cache, io_uring, kernel_size, parsed, seconds, subtype, timeout};
pub(crate) use self::{
    configuration::{Configuration, read, reload},
    connection::{Connection, from_anywhere},
    parse::{USAGE, parse},
};
pub use self::{
    usage::UsageError,
    values::{IoUring, LostServer},
};

const EXAMPLES: &str = "\
Examples:
  rfs-fuse --memory 4G /mnt                mount 4 GiB of this machine's memory, with a private server
  rfs-fuse /run/rfs/rfs.sock /mnt          mount from root's server on this host, through shared memory
  rfs-fuse --daemon --key /etc/rfs/key 10.0.0.7:7440 /mnt
                                           mount from another host, in the background
  rfs-fuse --provider tcp --key /etc/rfs/key localhost:7440 /mnt
                                           use TCP although the server is on this host
  rfs-fuse --tls-ca /etc/rfs/ca.pem --key /etc/rfs/key files.example:7440 /mnt
                                           use TLS, and verify the server's name
  rfs-fuse --key /etc/rfs/key rdma:10.0.0.7:7441 /mnt
                                           carry data over an RDMA device of each side
  rfs-fuse --config /etc/rfs/mounts.toml /mnt
                                           use the options that a file has for the mount point
  rfs-fuse scrub /run/rfs/rfs.sock         verify the files of a server with --checksum
  rfs-fuse status /mnt                     the state of a running mount (--watch: again and again)
  rfs-fuse trace /mnt --seconds 2 --out trace.json
                                           single requests of a running mount, for ui.perfetto.dev
  fusermount3 -u /mnt                      unmount (SIGTERM and Ctrl-C do so, too)

An address is unix:/path/to/socket, tcp:host:port or rdma:host:port. /path/to/socket, ./socket and host:port mean
the first two.
Sizes are numbers of bytes, or of powers of 1024: 64k, 1.5m, 4g.
A mount is busy while a program has files open there. SIGTERM then detaches it at once and says so.

For mount(8) and /etc/fstab, link it as /sbin/mount.fuse.rfs: mount -t fuse.rfs /run/rfs/rfs.sock /mnt -o ro,attr_timeout=5
Options of -o are those above without the dashes, and the options of mount(8).

Exit status: 0 after an orderly unmount (with --daemon: once the mount answers), 1 after a failure, 2 for an invalid
command line, 3 if no session with the server is possible any more (--lost-server end).
As a helper of mount(8): 0, 32 for a failed mount, 1 for an invalid command line.";

/// Mounts the memory of an rfs-server as a file system.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-fuse",
    version,
    after_help = EXAMPLES,
    override_usage = "rfs-fuse [OPTIONS] ADDRESS MOUNTPOINT\n       rfs-fuse [OPTIONS] --memory SIZE MOUNTPOINT\n       \
        rfs-fuse [OPTIONS] --config FILE [MOUNTPOINT]",
    max_term_width = 110
)]
pub struct Args {
    /// The server's address, and the directory to mount on. Or /dev/fd/N: the FUSE device that is
    /// open as descriptor N, and that the program which starts this one has mounted
    #[arg(value_names = ["ADDRESS", "MOUNTPOINT"], num_args = 1..=2, required = true)]
    paths: Vec<OsString>,

    /// Read the options of the mount from this TOML file, too. It has a table for each mount point,
    /// with the names of options without the dashes, and address = "ADDRESS". Without MOUNTPOINT,
    /// the file has one table. Options of the command line replace those of the file, and those
    /// that they exclude. SIGHUP reads the file again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check --config and the files that it names, print the options in effect, and mount nothing.
    /// Exit status: 0 if they are valid, else 2
    #[arg(long, requires = "config")]
    pub(crate) check_config: bool,

    /// Start a private server for this mount, which lends SIZE bytes of this machine's memory. The
    /// server and its files end with the mount. Takes no ADDRESS; in /etc/fstab any word takes its
    /// place
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse,
        conflicts_with_all = ["null", "provider", "key", "tls_ca", "export", "checksum"])]
    pub(crate) memory: Option<u64>,

    /// The address of the private server, once it runs.
    #[arg(skip)]
    private: Option<Address>,

    /// Go to the background; return once the mount answers
    #[arg(long)]
    pub daemon: bool,

    /// Append log messages to this file instead of writing them to stderr, or with --daemon to the
    /// system's log (syslog, journal)
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Format of log lines. text: time, level, module and message. json: an object with these
    /// fields in each line. Repeated warnings and errors are left out and counted
    #[arg(long, value_name = "text|json", value_enum, hide_possible_values = true, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Refuse all changes through this mount
    #[arg(long)]
    pub read_only: bool,

    /// Let programs of this user and of root that run with librfs_preload.so read and write file
    /// data without the kernel. The mount tells them the server's address and the path of the key
    #[arg(long, conflicts_with = "null")]
    pub(crate) preload: bool,

    /// Leave a dead mount in place if this process is killed. Calls there fail with ENOTCONN until
    /// it is unmounted, so no program writes to the directory below by mistake [default: unmount
    /// it]
    #[arg(long)]
    pub leave_dead_mount: bool,

    /// Prepare this program for a swap area on the mount (only as root). The program locks its
    /// memory, does not wait for memory that swapping has to free, and keeps the OOM killer away.
    /// `rfs-paging swapon` sets this option
    #[arg(long)]
    pub(crate) for_swap: bool,

    /// Options as for mount(8), separated by commas: ro, noexec, noatime, allow_other,
    /// attr_timeout=5, ...
    // `mount8::parse` has replaced the list by options. This field only documents it.
    #[arg(short = 'o', value_name = "OPTIONS")]
    _list: Option<String>,

    /// Refuse to execute programs on the mount
    #[arg(long, help_heading = "Kernel")]
    noexec: bool,

    /// Let device nodes on the mount take effect (only as root). In a list of mount(8) options:
    /// allow_dev
    #[arg(long, alias = "allow-dev", help_heading = "Kernel")]
    dev: bool,

    /// Let set-user-ID and set-group-ID programs on the mount take effect (only as root). In a list
    /// of mount(8) options: allow_suid
    #[arg(long, alias = "allow-suid", help_heading = "Kernel")]
    suid: bool,

    /// Leave access times unchanged by reads
    #[arg(long, help_heading = "Kernel")]
    noatime: bool,

    /// Leave access times of directories unchanged by reads
    #[arg(long, hide = true)]
    nodiratime: bool,

    /// Update the access time at every read [default: at the first read after a change, and once a
    /// day]
    #[arg(long, help_heading = "Kernel")]
    strictatime: bool,

    /// The same as --strictatime, by its name in mount(8)
    #[arg(long, hide = true)]
    norelatime: bool,

    /// Make every write synchronous, as with O_SYNC
    #[arg(long, help_heading = "Kernel")]
    sync: bool,

    /// Make changes of directories synchronous, which they always are
    #[arg(long, hide = true)]
    dirsync: bool,

    /// Show the time of birth in statx(2). The first call for a file that asks for it costs a
    /// request to the server: `stat` asks, and so does every call of programs in Rust
    #[arg(long, help_heading = "Kernel")]
    births: bool,

    /// Show the type fuse.NAME in the mount table
    #[arg(long, value_name = "NAME", default_value = "rfs-fuse", value_parser = subtype, help_heading = "Kernel")]
    subtype: String,

    /// Let other users use the mount (the default for root; others need user_allow_other in
    /// /etc/fuse.conf)
    #[arg(long, overrides_with = "no_allow_other")]
    allow_other: bool,

    /// Let only the mounting user use the mount (the default for users other than root)
    #[arg(long, overrides_with = "allow_other")]
    no_allow_other: bool,

    #[command(flatten)]
    labels: SecurityLabels,

    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Number of data queue pairs, 1 to 16 [default: 4]
    #[arg(long, value_name = "N", help_heading = "Session")]
    queue_pairs: Option<usize>,

    /// Maximum number of bytes in flight [default: 7M]
    #[arg(long, value_name = "BYTES", value_parser = byte_size::parse, help_heading = "Session")]
    window: Option<u64>,

    /// Sessions whose bytes in flight share the window. session: each has its own. device: all
    /// sessions of this mount over one device. by-provider: as device over RDMA, else as session
    /// [default: by-provider]
    #[arg(long, value_name = "SCOPE", value_parser = parsed::<WindowScope>, help_heading = "Session")]
    window_scope: Option<WindowScope>,

    /// How adjacent requests are combined: single, merge, doorbell or hybrid [default: hybrid]
    #[arg(long, value_name = "MODE", value_parser = parsed::<BatchMode>, help_heading = "Session")]
    batch: Option<BatchMode>,

    /// Copy requests of up to this size through registered memory, and register the buffers of
    /// larger requests [default: 4K]. auto: the runtime chooses the size
    #[arg(long, value_name = "BYTES|auto", value_parser = parsed::<PreMrThreshold>, help_heading = "Session")]
    pre_mr_threshold: Option<PreMrThreshold>,

    /// How threads wait for completions: busy, event, event-batch, hybrid, adaptive or shared-cq:M
    /// [default: adaptive]
    #[arg(long, value_name = "MODE", value_parser = parsed::<PollingMode>, help_heading = "Session")]
    polling: Option<PollingMode>,

    /// How replies of the server arrive. reply: as messages. fetch: the client reads them from the
    /// server's memory. auto: fetch over shared memory, else reply [default: auto]
    #[arg(long, value_name = "reply|fetch|auto", value_parser = parsed::<CallsBy>, help_heading = "Session")]
    calls: Option<CallsBy>,

    /// Number of unsuccessful polls before adaptive polling blocks [default: by recent success, up
    /// to 120, over TCP up to 500]
    #[arg(long, value_name = "N", help_heading = "Session")]
    max_retry: Option<u32>,

    /// Microseconds for which the thread that moves data over TCP busy-polls before it blocks
    /// [default: 400]. It polls while polling succeeds and no other thread wants its core. 0:
    /// never. rfs-server --busy-poll-us sets the other end
    #[arg(
        long,
        alias = "look",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(..=100_000),
        help_heading = "Session"
    )]
    busy_poll_us: Option<u32>,

    /// Seconds that an operation waits for the server before it fails [default: 10]
    #[arg(long, value_name = "SECS", value_parser = seconds, help_heading = "Session")]
    timeout: Option<Duration>,

    /// Seconds to wait for a connection to the server, without the look-up of its name [default: 4]
    #[arg(long, value_name = "SECS", value_parser = seconds, help_heading = "Session")]
    connect_timeout: Option<Duration>,

    /// Mount only if the server has checksums (rfs-server --checksum). Mounts of such a server
    /// verify checksums even without this option
    #[arg(long, help_heading = "Session")]
    checksum: bool,

    /// Fail all operations once the session with the server is lost, instead of reconnecting. The
    /// mount stays in place
    #[arg(long, help_heading = "Session")]
    no_return: bool,

    /// Have the mount outlive its program. If the program is killed or crashes, the next program
    /// continues within a second, with all open files and locks. `rfs-fuse upgrade` replaces the
    /// program of such a mount. Needs Linux 6.16; on older kernels the mount ends with its program
    #[arg(long, help_heading = "Session")]
    pub(crate) takeover: bool,

    /// Action once no session can follow the lost session. An example is a server that came back
    /// without its memory. end: unmount, and end with status 3. remount: unmount, and mount the
    /// server's new export. stay: leave the mount, where every operation fails [default: end, with
    /// --for-swap stay]
    #[arg(
        long,
        value_name = "end|remount|stay",
        value_enum,
        hide_possible_values = true,
        help_heading = "Session"
    )]
    lost_server: Option<LostServer>,

    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9431. Port 0
    /// selects a free port, which `rfs-fuse status` tells. Every program that reaches the address
    /// can read them
    #[arg(long, value_name = "ADDRESS", value_parser = rfs_status::metrics::parse_address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Write each request of the kernel to this file, in Chrome's trace format. The file has the
    /// steps until the reply, and the requests that were merged, chained, copied or registered. An
    /// existing file is replaced. With --takeover, later programs write FILE.2 and so on. `rfs-fuse
    /// trace` records a running mount
    #[arg(long, value_name = "FILE", help_heading = "Trace")]
    pub(crate) trace: Option<PathBuf>,

    /// Stop to write the trace before its file has more than SIZE bytes. The mount goes on
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_limit,
        default_value = "64M",
        requires = "trace",
        help_heading = "Trace"
    )]
    pub(crate) trace_limit: u64,

    /// Print the session's counters as JSON at the end, and nothing else on standard output. With
    /// --daemon, a line of the log has them
    #[arg(long, help_heading = "Session")]
    pub stats_on_exit: bool,

    /// Size of the kernel's largest write request
    #[arg(long, value_name = "BYTES", value_parser = kernel_size, default_value = "1M", help_heading = "Kernel")]
    max_write: u32,

    /// Size of the kernel's read-ahead (beyond 128K only as root)
    #[arg(
        long,
        alias = "read-ahead",
        value_name = "BYTES",
        value_parser = kernel_size,
        default_value = "1M",
        help_heading = "Kernel"
    )]
    max_readahead: u32,

    /// Number of session threads, which serve the kernel; over io_uring, their number per core
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64),
        default_value = "2",
        help_heading = "Kernel"
    )]
    threads: u16,

    /// Do not move session threads to the cores of their callers (only root moves them)
    #[arg(long, help_heading = "Kernel")]
    pub no_follow: bool,

    /// Receive requests of the kernel over io_uring (Linux 6.14 and newer). auto: if the kernel
    /// offers it (/sys/module/fuse/parameters/enable_uring is Y). on: always. Root enables it for
    /// the whole machine if it is disabled. off: over /dev/fuse. Without a value: on
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

    /// Maximum time that the kernel caches attributes [default: until they change]
    #[arg(long, value_name = "SECS", value_parser = timeout, help_heading = "Kernel")]
    attr_timeout: Option<Duration>,

    /// Maximum time that the kernel caches names [default: until they change]
    #[arg(long, value_name = "SECS", value_parser = timeout, help_heading = "Kernel")]
    entry_timeout: Option<Duration>,

    /// Caching in the kernel. auto: names, attributes and file pages, until another mount changes
    /// them. none: nothing, which is fastest for large requests and slow for small ones. writeback:
    /// written data, too, until the file is closed or synced, or some seconds have passed. No other
    /// mount can use the export then
    #[arg(long, value_parser = cache, value_name = "auto|none|writeback", default_value = "auto", help_heading = "Kernel")]
    cache: Cache,

    /// The same as --cache none
    #[arg(long, hide = true)]
    direct_io: bool,

    /// Mount a file system in this process's memory instead of a server's, to measure FUSE itself
    #[arg(long, hide = true)]
    pub null: bool,

    /// Print nothing when the mount answers (the default under mount(8) without -v)
    #[arg(long)]
    pub quiet: bool,

    /// Run as the background process of --daemon
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl Args {
    /// Returns the server's address, or `None` with `--null`.
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

    /// Returns the same arguments with absolute paths of the server's socket and of all files. A
    /// process in the background leaves its directory, and may need them long after.
    pub(crate) fn with_absolute_paths(mut self) -> Args {
        self.connection.make_paths_absolute();
        for path in [&mut self.log_file, &mut self.trace].into_iter().flatten() {
            *path = from_anywhere(path);
        }
        // An invalid address is refused later.
        if let [address, _] = &mut self.paths[..]
            && let Some(Ok(Address::Unix(path))) = address.to_str().map(str::parse)
            && path.is_relative()
        {
            *address = from_anywhere(&path).into_os_string();
        }
        self
    }

    /// Returns the same arguments for a mount of the private server at `address`.
    pub(crate) fn served_at(&self, address: Address) -> Args {
        Args { private: Some(address), ..self.clone() }
    }

    /// Returns the files for TLS, or `None` without `--tls-ca`.
    pub fn tls(&self) -> Result<Option<TlsClientFiles>, UsageError> {
        self.connection.tls(self.address()?.as_ref())
    }

    /// Returns the file to which the log goes: that of `--log-file`, or the system's log in the
    /// background. `None`: stderr.
    pub(crate) fn log_path(&self) -> Option<&Path> {
        self.log_file.as_deref().or(self.detached.then_some(Path::new(SYSLOG)))
    }

    /// Returns the directory to mount on.
    pub fn mount_point(&self) -> PathBuf {
        self.paths.last().map_or_else(PathBuf::new, PathBuf::from)
    }

    /// Returns the source that the mount table shows.
    pub fn source(&self) -> String {
        match &self.paths[..] {
            _ if self.null => "null".into(),
            [_] if self.memory.is_some() => "rfs".into(),
            paths => paths[0].to_string_lossy().into_owned(),
        }
    }
}

/// Returns the arguments for the background process of `--daemon`: those of this process without
/// `--daemon`.
pub fn detached_arguments(arguments: &[OsString]) -> Vec<OsString> {
    let mut rest =
        arguments.iter().skip(1).filter(|argument| *argument != "--daemon").cloned().collect::<Vec<_>>();
    rest.insert(0, OsStr::new("--detached").to_owned());
    rest
}

#[cfg(test)]
mod tests;
