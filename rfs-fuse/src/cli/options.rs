//! The options of each component, from the command line. No I/O, no locks, no clock.

use std::{os::fd::RawFd, path::Path, time::Duration};

use rdmabox::{Session, SessionOptions};
use rfs_proto::Identity;

use super::{
    Args,
    connection::Connection,
    usage::UsageError,
    values::{Cache, IoUring, LostServer},
};
use crate::{
    fuse::{FOREVER, Settings},
    mount::{Flags, MountOptions, descriptor},
    status::AccessOffer,
};
use rfs_client::{AccessTimes, AttachOptions, DetachParams};
use rfs_status::mounts::access::{ServerAccess, TlsFiles};

/// Time to wait for a mount that has just ended, if the server still has its session.
const PREVIOUS_MOUNT_LIMIT: Duration = Duration::from_secs(1);

/// Default time for which a server holds a call back while it waits for another client.
pub(super) const DEFAULT_RECALL_TIMEOUT: Duration = Duration::from_secs(8);

impl Args {
    /// Returns the options of the mount.
    pub fn mount_options(&self) -> MountOptions {
        MountOptions {
            source: self.source(),
            fs_type: format!("fuse.{}", self.subtype),
            allow_other: self.allow_other(),
            labels: self.labels.for_kernel(),
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

    /// Returns the descriptor that stands for the mount point: the open FUSE device of a mount that
    /// another program has made. `None`: this program mounts.
    ///
    /// # Errors
    /// An option is for the program that mounts.
    pub(crate) fn descriptor(&self) -> Result<Option<RawFd>, UsageError> {
        let Some(number) = descriptor(&self.mount_point()) else { return Ok(None) };
        let for_mount = [
            (self.read_only, "--read-only"),
            (self.noexec, "--noexec"),
            (self.suid, "--suid"),
            (self.dev, "--dev"),
            (self.sync, "--sync"),
            (self.allow_other, "--allow-other"),
            (self.no_allow_other, "--no-allow-other"),
            (self.for_swap, "--for-swap"),
            (!self.labels.for_kernel().is_empty(), "a SELinux label"),
            (self.lost_server == Some(LostServer::Remount), "--lost-server remount"),
        ];
        match for_mount.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => Err(UsageError::ForMount { option, point: self.mount_point() }),
            None => Ok(Some(number)),
        }
    }

    /// Returns true if all users may use the mount.
    pub fn allow_other(&self) -> bool {
        self.allow_other || (!self.no_allow_other && rustix::process::geteuid().is_root())
    }

    /// Returns the number of session threads.
    pub fn threads(&self) -> usize {
        self.threads.into()
    }

    /// Returns the action once no session with the server is possible any more. A mount with a swap
    /// area stays, because the kernel needs it until `swapoff`.
    pub fn lost_server(&self) -> LostServer {
        let default = if self.for_swap { LostServer::Stay } else { LostServer::End };
        self.lost_server.unwrap_or(default)
    }

    /// Returns whether requests arrive over io_uring.
    pub fn io_uring(&self) -> IoUring {
        if self.no_io_uring { IoUring::Off } else { self.io_uring }
    }

    /// Returns the settings that `init` negotiates with the kernel.
    pub fn settings(&self) -> Settings {
        let cache = if self.direct_io { Cache::None } else { self.cache };
        let keeps = cache != Cache::None;
        Settings {
            births: self.births,
            max_write: self.max_write,
            max_readahead: self.max_readahead,
            attr_timeout: if keeps { self.attr_timeout.unwrap_or(FOREVER) } else { Duration::ZERO },
            entry_timeout: if keeps { self.entry_timeout.unwrap_or(FOREVER) } else { Duration::ZERO },
            direct_io: !keeps,
            keeps,
            writeback: cache == Cache::Writeback,
        }
    }

    /// Returns the name of the cache mode.
    pub(crate) fn cache_name(&self) -> &'static str {
        match self.cache {
            _ if self.direct_io => "none",
            Cache::Auto => "auto",
            Cache::None => "none",
            Cache::Writeback => "writeback",
        }
    }

    /// Returns a warning for the user if the timeouts contradict each other. A call may take long
    /// because the server waits for other clients to acknowledge a recall. Such a call must not
    /// time out.
    pub fn doubt(&self) -> Option<String> {
        let timeout = self.timeout.filter(|timeout| *timeout <= DEFAULT_RECALL_TIMEOUT)?;
        let (timeout, patience) = (timeout.as_secs_f64(), DEFAULT_RECALL_TIMEOUT.as_secs_f64());
        Some(format!(
            "--timeout {timeout}: a call may take {patience} s while the server waits for another client, and a call beyond \
             --timeout ends this mount's session. Set --timeout to more than {patience}, or rfs-server --recall-timeout to \
             less than {timeout}"
        ))
    }

    /// Returns the options of the attach call.
    pub fn attach_options(&self) -> AttachOptions {
        let Settings { keeps, writeback, .. } = self.settings();
        AttachOptions {
            export: self.connection.export.clone(),
            caches: keeps,
            exclusive: writeback,
            needs_checksums: self.checksum,
            busy_timeout: PREVIOUS_MOUNT_LIMIT,
            reconnects: !self.no_return,
            access_times: self.access_times(self.noatime),
            directory_access_times: self.access_times(self.noatime || self.nodiratime),
            mount_point: String::new(),
            outlives_process: false,
        }
    }

    /// Returns the parameters by which the watchdog detaches the mount after a kill of this
    /// process.
    pub fn detach_params(&self, mount: Identity) -> Option<DetachParams> {
        let (address, tls) = (self.address().ok()??, self.tls().ok()?);
        let Connection { provider, export, key, .. } = self.connection.clone();
        Some(DetachParams { address, provider, export, key, tls, mount })
    }

    /// Returns the options that a program needs for a session beside that of this mount, with the
    /// same rights.
    ///
    /// # Errors
    /// The reason why the mount gives no access.
    pub(crate) fn server_access(&self, memory: Identity) -> Result<AccessOffer, String> {
        if !self.preload {
            return Err("this mount was started without --preload".into());
        }
        if self.settings().writeback {
            return Err("with --cache writeback this mount has the export to itself".into());
        }
        if self.connection.has_device_options() {
            return Err("programs do not get the options of an RDMA device".into());
        }
        let no_server = |e: UsageError| e.to_string();
        let address = self.address().map_err(no_server)?.ok_or("this mount has no server")?;
        let mut files = Vec::new();
        let mut hand_out = |path: &Path| {
            files.push(path.to_owned());
            files.len() - 1
        };
        let key = self.connection.key.as_deref().map(&mut hand_out);
        let tls = self.tls().map_err(no_server)?.map(|tls| TlsFiles {
            ca: hand_out(&tls.ca),
            name: tls.name,
            own: tls.own.map(|(certificate, key)| (hand_out(&certificate), hand_out(&key))),
        });
        let access_times = match self.access_times(self.noatime) {
            AccessTimes::Never => "never",
            AccessTimes::Relative => "relative",
            AccessTimes::Always => "always",
        };
        let SessionOptions { operation_timeout, connect_timeout, .. } = self.session_options();
        let access = ServerAccess {
            address: address.to_string(),
            provider: self.connection.provider.map(|provider| provider.to_string()),
            export: self.connection.export.clone(),
            memory: memory.to_string(),
            key,
            tls,
            access_times: access_times.into(),
            timeout_ms: u64::try_from(operation_timeout.as_millis()).unwrap_or(u64::MAX),
            connect_timeout_ms: u64::try_from(connect_timeout.as_millis()).unwrap_or(u64::MAX),
        };
        Ok(AccessOffer { access, files })
    }

    /// Returns which reads update access times. On a read-only mount no read does.
    fn access_times(&self, never: bool) -> AccessTimes {
        match never || self.read_only {
            true => AccessTimes::Never,
            false if self.strictatime || self.norelatime => AccessTimes::Always,
            false => AccessTimes::Relative,
        }
    }

    /// Returns the options of the session with the server.
    pub fn session_options(&self) -> SessionOptions {
        let (provider, rdma) = (self.connection.provider, self.connection.rdma());
        let mut options = Session::builder().provider(provider).rdma(rdma).into_options();
        if let Some(queue_pairs) = self.queue_pairs {
            options.queue_pairs = queue_pairs;
        }
        if let Some(window) = self.window {
            options.window_bytes = window;
        }
        if let Some(scope) = self.window_scope {
            options.window_scope = scope;
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
        if let Some(micros) = self.busy_poll_us {
            options.engine_look = Duration::from_micros(micros.into());
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
