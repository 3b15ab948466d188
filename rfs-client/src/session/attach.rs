//! Attaching to a server.
//!
//! [`Client::connect`] makes a session, sends Attach, and measures the server's clock.
//!
//! # Concurrency
//! The calling thread.

use std::sync::{Arc, atomic::AtomicU64};

use parking_lot::Mutex;
use rdmabox::{Address, RequestError, Session, SessionOptions, StartedReply};
use rfs_proto::{Attached, Errno, InUse, ROOT_INO, Reply, decode_reply, record};

use crate::{
    cache::Cache,
    client::Client,
    error::ClientError,
    inode::{access::AccessTimes, table::InodeTable},
    memory::{checksums::Checksums, records::Records},
    remote::{
        CallOptions, Mapped, Remote,
        address::{Region, RegionBounds},
        attached_session::AttachedSession,
    },
    session::{
        handshake::{AttachReply, attach_session},
        options::{AttachError, AttachOptions},
        reattach::{Reattacher, random_identity},
        reclaim::StateReclaimer,
        reconnect::ReconnectingSession,
    },
    transfers::Transfers,
};

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
        let mut options = options.clone();
        options.started_reply = Some(StartedReply::new(log_failure));
        let options = &options;
        let session = Session::connect(address, options)?;
        let mount = if attach.reconnects { Some(random_identity()?) } else { None };
        let call = |request: &[u8], reply: &mut Vec<u8>| session.call(request, reply);
        let attached = attach_session(call, attach, mount, attach.busy_timeout);
        let address = address.clone();
        let attached = attached.and_then(|reply| {
            let first: Arc<dyn Remote> =
                Arc::new(AttachedSession::new(Arc::clone(&session), &reply.attached));
            let Some(mount) = mount else { return Client::attached(first, attach, reply) };
            let factory = Reattacher::new(&address, options, attach, mount);
            let (timeout, factory) = (options.operation_timeout, Box::new(factory));
            let remote = ReconnectingSession::new(first, &reply.attached, timeout, factory);
            let remote = remote.map_err(|_| ClientError::Errno(Errno::EAGAIN))?;
            let client = Client::attached(remote.clone(), attach, reply).inspect_err(|_| remote.close())?;
            let (inodes, cache) = (Arc::clone(&client.inodes), Arc::clone(&client.cache));
            let session = Arc::clone(&client.session);
            remote.set_reclaimer(Box::new(StateReclaimer { inodes, cache, session }));
            Ok(client)
        });
        let mut client = attached.inspect_err(|_| session.close(options.operation_timeout)).map_err(
            |source| match source {
                ClientError::Errno(Errno::ENOENT) => {
                    AttachError::Export { address, export: attach.export.clone() }
                }
                ClientError::Errno(Errno::EACCES) => {
                    AttachError::Key { address, export: attach.export.clone() }
                }
                ClientError::Errno(Errno::EROFS) if attach.exclusive => AttachError::ReadOnlyKey { address },
                ClientError::Unchecked => AttachError::Unchecked { address, export: attach.export.clone() },
                ClientError::InUse(InUse { alone: true, .. }) => {
                    AttachError::Taken { address, export: attach.export.clone() }
                }
                ClientError::InUse(InUse { sessions, .. }) => {
                    AttachError::NotAlone { address, export: attach.export.clone(), sessions }
                }
                source => AttachError::Attach { address, source },
            },
        )?;
        client.wait_limit = options.operation_timeout;
        client.mount = mount;
        Ok(client)
    }

    /// Attaches over a session that is up; closes it if that fails.
    pub fn attach(remote: Arc<dyn Remote>, options: &AttachOptions) -> Result<Client, ClientError> {
        let call = |request: &[u8], reply: &mut Vec<u8>| remote.call(request, reply, CallOptions::default());
        attach_session(call, options, None, options.busy_timeout)
            .and_then(|reply| Client::attached(Arc::clone(&remote), options, reply))
            .inspect_err(|_| remote.close())
    }

    /// Creates the client of an attached session.
    fn attached(
        remote: Arc<dyn Remote>,
        AttachOptions { caches, exclusive, needs_checksums, access_times, directory_access_times, .. }: &AttachOptions,
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
        let arena = RegionBounds { region: Region::Arena, len: arena.len };
        let sums = sums.map(|sums| Checksums::new(&remote, sums, arena)).transpose()?;
        if *needs_checksums && sums.is_none() {
            return Err(ClientError::Unchecked);
        }
        Ok(Client {
            arena,
            arena_map: Mapped::of(&*remote, arena),
            records: Records::new(Arc::clone(&remote), table.len),
            sums,
            remote,
            clock,
            inodes,
            transfers: Transfers::default(),
            cache: Arc::new(Cache::new(*caches)),
            access_times: counted(*access_times),
            directory_access_times: counted(*directory_access_times),
            parts: Mutex::default(),
            exclusive: *exclusive,
            session: Arc::new(AtomicU64::new(session)),
            mount: None,
            read_only,
            confined,
            wait_limit: SessionOptions::default().operation_timeout,
        })
    }
}
