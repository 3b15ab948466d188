//! Attaching to a server.
//!
//! [`Client::connect`] makes a session, sends Attach, and measures the server's clock.
//!
//! # Concurrency
//! The calling thread.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use rdmabox::{Address, RequestError, Session, SessionOptions, StartedReply};
use rfs_proto::{Attached, Errno, Identity, InUse, Reply, decode_reply, record};

use crate::{
    client::{Attachment, Client},
    error::ClientError,
    inode::access::AccessTimes,
    remote::kept_state::KeptState,
    remote::{
        CallOptions, Remote,
        address::{Region, RegionBounds},
        attached_session::AttachedSession,
        checksums::Checksums,
    },
    session::{
        handshake::{AttachReply, SESSION_END_TIMEOUT, attach_session},
        options::{AttachError, AttachOptions},
        reattach::{Reattacher, random_identity},
        reclaim::StateReclaimer,
        reconnect::ReconnectingSession,
    },
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

/// Notes a session in the kept state. Refuses a session that does not continue the one of the
/// previous process.
fn keep_session(kept: &KeptState, mount: Option<Identity>, attached: &Attached) -> Result<(), ClientError> {
    match (kept.is_taken_over(), mount) {
        (true, _) => {
            let (_, memory, session) = kept.session();
            if attached.resumed && attached.session == session && attached.memory == memory {
                return Ok(());
            }
            Err(ClientError::Protocol("the server has given up the session of the previous process"))
        }
        (false, Some(mount)) => {
            kept.set_session(mount, attached.memory, attached.session);
            Ok(())
        }
        (false, None) => Ok(()),
    }
}

/// Returns the reason for which there is no client.
fn attach_error(address: Address, attach: &AttachOptions, source: ClientError) -> AttachError {
    let export = || attach.export.clone();
    match source {
        ClientError::Errno(Errno::ENOENT) => AttachError::Export { address, export: export() },
        ClientError::Errno(Errno::EACCES) => AttachError::Key { address, export: export() },
        ClientError::Errno(Errno::EROFS) if attach.exclusive => AttachError::ReadOnlyKey { address },
        ClientError::Errno(Errno::EOPNOTSUPP) if attach.exclusive => {
            AttachError::Evicting { address, export: export() }
        }
        ClientError::Unchecked => AttachError::Unchecked { address, export: export() },
        ClientError::InUse(InUse { alone: true, .. }) => AttachError::Taken { address, export: export() },
        ClientError::InUse(InUse { sessions, .. }) => {
            AttachError::NotAlone { address, export: export(), sessions }
        }
        source => AttachError::Attach { address, source },
    }
}

/// The identity of the mount, and the limit of a wait for another client.
#[derive(Clone, Copy)]
struct Limits {
    mount: Option<Identity>,
    wait_limit: Duration,
}

impl Client {
    /// Connects to the server at `address` and attaches to it.
    pub fn connect(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
    ) -> Result<Client, AttachError> {
        Client::connect_as(address, options, attach, None)
    }

    /// Connects as [`connect`](Self::connect), and keeps the state of the mount in `kept`. If a
    /// previous process has written it, continues the session of that process. `repeated` are the
    /// kernel's numbers of the requests that the kernel has sent again.
    ///
    /// # Errors
    /// The server has given the session of the previous process up, among others.
    pub fn connect_kept(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
        (kept, repeated): (&Arc<KeptState>, &HashSet<u64>),
    ) -> Result<Client, AttachError> {
        Client::connect_as(address, options, attach, Some((kept, repeated)))
    }

    fn connect_as(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
        kept: Option<(&Arc<KeptState>, &HashSet<u64>)>,
    ) -> Result<Client, AttachError> {
        let previous = kept.filter(|(kept, _)| kept.is_taken_over()).map(|(kept, _)| kept.session());
        let attach = &AttachOptions { outlives_process: kept.is_some(), ..attach.clone() };
        let mut options = options.clone();
        options.started_reply = Some(StartedReply::new(log_failure));
        let options = &options;
        let session = Session::connect(address, options)?;
        let mount = match previous {
            Some((mount, ..)) => Some(mount),
            None if attach.reconnects => Some(random_identity()?),
            None => None,
        };
        let busy = if previous.is_some() { SESSION_END_TIMEOUT } else { attach.busy_timeout };
        let limits = Limits { mount, wait_limit: options.operation_timeout };
        let call = |request: &[u8], reply: &mut Vec<u8>| session.call(request, reply);
        let attached = attach_session(call, session.description(), attach, mount, busy);
        let address = address.clone();
        let attached = attached.and_then(|reply| {
            if let Some((kept, _)) = kept {
                keep_session(kept, mount, &reply.attached)?;
            }
            // A previous process may have written to stores.
            let reached = Arc::new(AtomicBool::new(previous.is_some()));
            let first: Arc<dyn Remote> = Arc::new(AttachedSession::new(
                Arc::clone(&session),
                &reply.attached,
                reply.version,
                Arc::clone(&reached),
            ));
            let Some(mount) = mount else { return attached_client(first, attach, reply, limits) };
            let factory = Reattacher::new(&address, options, attach, (mount, reached));
            let (timeout, factory) = (options.operation_timeout, Box::new(factory));
            let state = kept.map(|(kept, _)| Arc::clone(kept));
            let remote = ReconnectingSession::new(first, &reply.attached, timeout, factory, state);
            let remote = remote.map_err(|_| ClientError::Errno(Errno::EAGAIN))?;
            let client = attached_client(remote.clone(), attach, reply, limits);
            let mut client = client.inspect_err(|_| remote.close())?;
            client.final_loss = Some(remote.final_loss());
            let (caching, session) = (Arc::clone(&client.caching), Arc::clone(&client.session));
            remote.set_reclaimer(Box::new(StateReclaimer { caching, session }));
            if let Some((kept, repeated)) = kept {
                client.caching.inodes.keep_state(kept);
                if kept.is_taken_over()
                    && let Err(e) = remote.repeat_kept_calls(|unique| repeated.contains(&unique))
                {
                    // The next attempt needs the session, which a client ends when it is dropped.
                    std::mem::forget(client);
                    return Err(e.into());
                }
                client.continue_from(kept);
            }
            Ok(client)
        });
        attached
            .inspect_err(|_| session.close(options.operation_timeout))
            .map_err(|source| attach_error(address, attach, source))
    }

    /// Attaches over a session that is up; closes it if that fails.
    pub fn attach(remote: Arc<dyn Remote>, options: &AttachOptions) -> Result<Client, ClientError> {
        Client::attach_within(remote, options, SessionOptions::default().operation_timeout)
    }

    /// Attaches as [`attach`](Self::attach), with this limit of a wait for another client.
    pub(crate) fn attach_within(
        remote: Arc<dyn Remote>,
        options: &AttachOptions,
        wait_limit: Duration,
    ) -> Result<Client, ClientError> {
        let limits = Limits { mount: None, wait_limit };
        let call = |request: &[u8], reply: &mut Vec<u8>| remote.call(request, reply, CallOptions::default());
        attach_session(call, remote.status().transport, options, None, options.busy_timeout)
            .and_then(|reply| attached_client(Arc::clone(&remote), options, reply, limits))
            .inspect_err(|_| remote.close())
    }
}

/// Creates the client of an attached session.
fn attached_client(
    remote: Arc<dyn Remote>,
    AttachOptions { caches, exclusive, needs_checksums, access_times, directory_access_times, .. }: &AttachOptions,
    AttachReply { attached, clock, .. }: AttachReply,
    Limits { mount, wait_limit }: Limits,
) -> Result<Client, ClientError> {
    let Attached { arena, table, sums, session, read_only, confined, memory, .. } = attached;
    if !table.addr.is_multiple_of(8) || table.len < record::LEN as u64 {
        return Err(ClientError::Protocol("a table that is not aligned, or empty"));
    }
    if session == 0 {
        return Err(ClientError::Protocol("a session without a number"));
    }
    // A read-only session changes no access times.
    let counted = |times| if read_only { AccessTimes::Never } else { times };
    let arena = RegionBounds { region: Region::Arena, len: arena.len };
    let sums = sums.map(|sums| Checksums::new(&remote, sums, arena)).transpose()?;
    if *needs_checksums && sums.is_none() {
        return Err(ClientError::Unchecked);
    }
    Ok(Client::new(Attachment {
        remote,
        clock,
        session,
        mount,
        memory,
        arena,
        table_len: table.len,
        sums,
        read_only,
        confined,
        exclusive: *exclusive,
        caches: *caches,
        access_times: counted(*access_times),
        directory_access_times: counted(*directory_access_times),
        wait_limit,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_cache_names_the_export_and_the_options() {
        let attach = AttachOptions { export: "kv".into(), exclusive: true, ..AttachOptions::default() };
        let refused = |attach: &AttachOptions| {
            let address = "unix:/s".parse().unwrap();
            attach_error(address, attach, ClientError::Errno(Errno::EOPNOTSUPP)).to_string()
        };
        let why = refused(&attach);
        let parts = ["unix:/s", "the export \"kv\"", "evict=", "--cache writeback", "--cache auto"];
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        let plain = AttachOptions { exclusive: false, ..attach };
        assert!(!refused(&plain).contains("writeback"));
    }
}
