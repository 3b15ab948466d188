//! Attaching to a server, and calls to it.
//!
//! [`Client::connect`] makes a session, sends Attach, and measures the server's clock. All calls
//! of the client go through [`Client::call`], which retries after ENOSPC once started closes have
//! ended.
//!
//! # Concurrency
//! Any number of threads call. The message buffers are per thread, so a callback must not make a
//! call while this thread makes one.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::AtomicU64},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::{Address, ConnectError, RequestError, Session, SessionOptions, StartedReply};
use rfs_proto::{
    Attached, Attr, Errno, Identity, InUse, ROOT_INO, Reply, Request, VERSION, decode_reply,
    decode_reply_with, encode_request, record,
};

use crate::{
    AccessTimes, Client, ClientError, Remote,
    cache::{Cache, Effect},
    inode::InodeTable,
    io::checksum_read::Checksums,
    memory::records::Records,
    remote::{
        Mapped,
        clock::{ServerClock, local_now},
        idempotent::is_idempotent,
    },
    session::{
        reattach::{Reattacher, random_identity},
        reclaim::StateReclaimer,
        reconnect::ReconnectingSession,
    },
};

/// Options of an attach.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AttachOptions {
    /// Name of the export; empty for the server's first one.
    pub export: String,
    /// True if the client may cache. A thread must then run [`obey`](Client::obey).
    pub keeps: bool,
    /// Rule for accesses of files.
    pub access_times: AccessTimes,
    /// Rule for accesses of directories.
    pub directory_access_times: AccessTimes,
    /// True if no other session may use the export meanwhile.
    pub alone: bool,
    /// True if the export must have checksums.
    pub checked: bool,
    /// Time for which to retry while other sessions keep this one out.
    pub patience: Duration,
    /// True if the client reconnects after a loss of the session. Operations wait meanwhile, within
    /// their usual limits.
    pub returns: bool,
}

/// The reason why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The connection failed.
    #[error("cannot connect to {0}")]
    Connect(#[from] ConnectError),
    /// The system has no random numbers.
    #[error("getrandom failed: {0}")]
    Random(String),
    /// The key is read-only, and writing back needs to write.
    #[error("{address}: this key is read-only; --cache writeback needs write access")]
    ReadOnlyKey {
        /// The server's address.
        address: Address,
    },
    /// The server refused to attach, or is no rfs-server.
    #[error("{address}: cannot attach: {source}")]
    Attach {
        /// The server's address.
        address: Address,
        /// The error of the attach.
        source: ClientError,
    },
    /// The key is for another export.
    #[error("{address}: the key does not open the export {export:?}")]
    Key {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// The server has no such export.
    #[error("{address}: there is no export named {export:?}")]
    Export {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// Other sessions use the export, and this session demands exclusive use.
    #[error(
        "{address}: {} is in use by {sessions} other mount{}, and --cache writeback needs it to itself: use --cache auto",
        export_name(export), if *sessions == 1 { "" } else { "s" }
    )]
    NotAlone {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
        /// Number of other sessions.
        sessions: u64,
    },
    /// The export has no checksums.
    #[error(
        "{address}: {} has no checksums, which --checksum asks for: start the server with --checksum",
        export_name(export)
    )]
    Unchecked {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// Another session has exclusive use of the export.
    #[error(
        "{address}: {} is mounted with --cache writeback elsewhere, which excludes other mounts",
        export_name(export)
    )]
    Taken {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
}

/// Names an export for users.
fn export_name(export: &str) -> String {
    if export.is_empty() { "its first export".into() } else { format!("the export {export:?}") }
}

/// Pause between two attempts to attach.
const PAUSE: Duration = Duration::from_millis(10);
/// Limit of the wait until the server has ended the mount's previous session. It is longer than
/// the server's wait for a client that has memory mapped.
pub(crate) const SESSION_END_TIMEOUT: Duration = Duration::from_secs(5);

thread_local! {
    /// Request and reply buffers of the call in flight on this thread.
    static MESSAGES: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

pub(crate) fn call_on(remote: &dyn Remote, request: &Request<'_>) -> Result<Reply, ClientError> {
    call_with(remote, request, None).map(|(reply, _)| reply)
}

/// Calls, in `era` only if given. Also returns the attributes of the changed directory, if the
/// reply has them.
fn call_with(
    remote: &dyn Remote,
    request: &Request<'_>,
    era: Option<u32>,
) -> Result<(Reply, Option<Attr>), ClientError> {
    MESSAGES.with_borrow_mut(|(out, back)| {
        encode_request(request, out);
        match (is_idempotent(request), era) {
            (true, None) => remote.call(out, back)?,
            (false, None) => remote.call_once(out, back)?,
            (true, Some(era)) => remote.call_in(era, out, back)?,
            (false, Some(era)) => remote.call_once_in(era, out, back)?,
        }
        let (reply, directory) = match request.directory() {
            Some(_) => decode_reply_with(back)?,
            None => (decode_reply(back)?, None),
        };
        match reply {
            Reply::Error(errno) => Err(ClientError::Errno(errno)),
            reply => Ok((reply, directory)),
        }
    })
}

/// The server's reply to an attach, and its clock.
pub(crate) struct AttachReply {
    pub(crate) attached: Attached,
    clock: ServerClock,
}

/// Attaches over a connected session. Retries for up to `patience` while other sessions keep it
/// out, or the mount's previous session still ends.
pub(crate) fn attach_session(
    remote: &dyn Remote,
    AttachOptions { export, keeps, alone, .. }: &AttachOptions,
    mount: Option<Identity>,
    patience: Duration,
) -> Result<AttachReply, ClientError> {
    let name = format!("rfs-fuse {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id());
    let request =
        Request::Attach { version: VERSION, client: &name, export, keeps: *keeps, alone: *alone, mount };
    let give_up = Instant::now() + patience;
    loop {
        let sent = local_now();
        match call_on(remote, &request)? {
            Reply::InUse(_) | Reply::Ending if Instant::now() < give_up => thread::sleep(PAUSE),
            Reply::Attached(attached) => {
                let clock = ServerClock::from_exchange(sent, attached.now, local_now());
                return Ok(AttachReply { attached, clock });
            }
            Reply::InUse(others) => return Err(ClientError::InUse(others)),
            Reply::Ending => return Err(ClientError::Errno(Errno::EAGAIN)),
            _ => return Err(ClientError::Protocol("the reply to Attach is of the wrong kind")),
        }
    }
}

/// Logs the error reply of a started call.
fn log_failure(outcome: Result<&[u8], RequestError>) {
    match outcome.map(decode_reply) {
        // Started calls run in any order, and the last close removes a file without a name.
        Ok(Ok(Reply::Error(Errno::ESTALE))) => {}
        Ok(Ok(Reply::Error(errno))) => {
            log::warn!("cannot close a file or set its access time: {errno}")
        }
        Ok(Err(e)) => log::warn!("unreadable reply: {e}"),
        // Operations that use the session report its end.
        Ok(Ok(_)) | Err(_) => {}
    }
}

impl Client {
    /// Connects to the server at `address` and attaches to it.
    pub fn connect(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
    ) -> Result<Client, AttachError> {
        let options =
            &SessionOptions { started_reply: Some(StartedReply::new(log_failure)), ..options.clone() };
        let first: Arc<dyn Remote> = Session::connect(address, options)?;
        let mount = if attach.returns { Some(random_identity()?) } else { None };
        let attached = attach_session(&*first, attach, mount, attach.patience);
        let address = address.clone();
        let attached = attached.and_then(|reply| {
            let Some(mount) = mount else { return Client::attached(first.clone(), attach, reply) };
            let factory = Reattacher::new(&address, options, attach, mount);
            let (timeout, factory) = (options.operation_timeout, Box::new(factory));
            let remote = ReconnectingSession::new(Arc::clone(&first), &reply.attached, timeout, factory);
            let remote = remote.map_err(|_| ClientError::Errno(Errno::EAGAIN))?;
            let client = Client::attached(remote.clone(), attach, reply).inspect_err(|_| remote.close())?;
            let (inodes, cache) = (Arc::clone(&client.inodes), Arc::clone(&client.cache));
            let session = Arc::clone(&client.session);
            remote.set_reclaimer(Box::new(StateReclaimer { inodes, cache, session }));
            Ok(client)
        });
        let mut client = attached.inspect_err(|_| first.close()).map_err(|source| match source {
            ClientError::Errno(Errno::ENOENT) => {
                AttachError::Export { address, export: attach.export.clone() }
            }
            ClientError::Errno(Errno::EACCES) => AttachError::Key { address, export: attach.export.clone() },
            ClientError::Errno(Errno::EROFS) if attach.alone => AttachError::ReadOnlyKey { address },
            ClientError::Unchecked => AttachError::Unchecked { address, export: attach.export.clone() },
            ClientError::InUse(InUse { alone: true, .. }) => {
                AttachError::Taken { address, export: attach.export.clone() }
            }
            ClientError::InUse(InUse { sessions, .. }) => {
                AttachError::NotAlone { address, export: attach.export.clone(), sessions }
            }
            source => AttachError::Attach { address, source },
        })?;
        client.wait_limit = options.operation_timeout;
        client.mount = mount;
        Ok(client)
    }

    /// Attaches over a session that is up; closes it if that fails.
    pub fn attach(remote: Arc<dyn Remote>, options: &AttachOptions) -> Result<Client, ClientError> {
        attach_session(&*remote, options, None, options.patience)
            .and_then(|reply| Client::attached(Arc::clone(&remote), options, reply))
            .inspect_err(|_| remote.close())
    }

    /// Creates the client of an attached session.
    fn attached(
        remote: Arc<dyn Remote>,
        AttachOptions { keeps, alone, checked, access_times, directory_access_times, .. }: &AttachOptions,
        AttachReply { attached, clock }: AttachReply,
    ) -> Result<Client, ClientError> {
        let Attached { arena, table, sums, session, read_only, confined, .. } = attached;
        if !table.addr.is_multiple_of(8) || table.len < record::LEN as u64 {
            return Err(ClientError::Protocol("an attribute table that is not aligned, or empty"));
        }
        if session == 0 {
            return Err(ClientError::Protocol("a session without a number"));
        }
        // A read-only session changes no access times.
        let counted = |times| if read_only { AccessTimes::Never } else { times };
        let inodes = Arc::<InodeTable>::default();
        // The root directory is referenced without a lookup.
        inodes.acquire(ROOT_INO);
        let sums = sums.map(|sums| Checksums::new(&remote, sums, &arena)).transpose()?;
        if *checked && sums.is_none() {
            return Err(ClientError::Unchecked);
        }
        Ok(Client {
            arena,
            arena_map: Mapped::of(&*remote, &arena),
            records: Records::new(Arc::clone(&remote), table),
            sums,
            remote,
            clock,
            inodes,
            in_flight: crate::transfers::in_flight::InFlight::default(),
            alone_streak: crate::transfers::in_flight::AloneStreak::default(),
            coalescer: crate::transfers::coalescer::Coalescer::default(),
            write_retries: Arc::default(),
            cache: Arc::new(Cache::new(*keeps)),
            access_times: counted(*access_times),
            directory_access_times: counted(*directory_access_times),
            parts: Mutex::default(),
            alone: *alone,
            session: Arc::new(AtomicU64::new(session)),
            mount: None,
            read_only,
            confined,
            wait_limit: SessionOptions::default().operation_timeout,
        })
    }

    /// Starts a call and ignores its reply.
    pub(crate) fn start(&self, request: &Request<'_>) -> Result<(), ClientError> {
        MESSAGES.with_borrow_mut(|(out, _)| {
            encode_request(request, out);
            Ok(self.remote.start_call(out)?)
        })
    }

    /// Calls the server. If the server has no space or no free inode, waits for started closes,
    /// which may free some, and retries once.
    pub(crate) fn call(&self, request: &Request<'_>) -> Result<Reply, ClientError> {
        self.call_or_retry(request, None)
    }

    /// Calls as [`call`](Self::call), in one era only.
    pub(crate) fn call_in(&self, era: u32, request: &Request<'_>) -> Result<Reply, ClientError> {
        self.call_or_retry(request, Some(era))
    }

    fn call_or_retry(&self, request: &Request<'_>, era: Option<u32>) -> Result<Reply, ClientError> {
        match self.call_once(request, era) {
            Err(ClientError::Errno(Errno::ENOSPC)) => {
                self.remote.finish_calls()?;
                self.call_once(request, era)
            }
            outcome => outcome,
        }
    }

    fn call_once(&self, request: &Request<'_>, era: Option<u32>) -> Result<Reply, ClientError> {
        let ask = || call_with(&*self.remote, request, era);
        match Effect::of(request) {
            Some(effect) if self.cache.is_on() => self.change(&effect, ask),
            _ => ask().map(|(reply, _)| reply),
        }
    }

    /// Returns false once the session has ended. Every operation fails then.
    pub fn is_connected(&self) -> bool {
        self.remote.is_connected()
    }

    /// Returns the identity of this mount, if it reconnects. A process with the identity can act as
    /// the mount.
    pub fn mount(&self) -> Option<Identity> {
        self.mount
    }

    /// Returns true if the session is read-only for all users: every change fails with EROFS.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns true if the server's memory is mapped here, so that reads and writes wait for no
    /// other process.
    pub fn is_mapped(&self) -> bool {
        self.records.is_mapped()
    }

    /// Describes the transport and the checksums, for users.
    pub fn description(&self) -> String {
        let compares = if self.sums.is_some() { ", with checksums" } else { "" };
        self.remote.description() + compares
    }

    /// Returns the session's counters by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.remote.counters()
    }

    /// Returns the number of referenced inodes.
    pub fn known_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// Ends the session. Operations in flight fail.
    pub fn close_session(&self) {
        self.remote.close();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.remote.close();
    }
}
