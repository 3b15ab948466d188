//! The file service: connects rdmabox sessions to the dispatchers of the exports.
//!
//! It decodes requests, passes them to the dispatcher of the session's export, and encodes
//! replies. A session's first request selects its export. A malformed request ends its session,
//! and no other.
//!
//! # Concurrency
//! rdmabox calls from several threads at once. No lock is held while messages are decoded,
//! handled or encoded.

mod answer;
mod attached_exports;
mod clients;
pub mod keys;
mod reconnect;
mod served_export;
pub mod session_reaper;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use rdmabox::{CallError, Fencing, KeyId, Peer, ProviderKind, Service, SessionTerminator};
use rfs_proto::{
    Errno, OLDEST_VERSION, Reply, Request, VERSION, attach_version, encode_version_refusal, speaks,
};

use crate::{
    coherence::run_clock,
    dispatch::Dispatcher,
    memory_object::previous_clients::PreviousClients,
    session::{
        access_mode::AccessMode,
        client_table::ClientTable,
        mount_registry::{Arrival, Attached, Mounts},
        registry::Credentials,
        squash::Squash,
    },
};
use answer::{answer, decode, encode};
use attached_exports::AttachedExports;
use keys::Keys;
pub use served_export::{ExportRegions, ServedExport};
use session_reaper::ReaperSignal;

/// The version of the protocol after that of this server.
const NEXT_VERSION: u32 = VERSION + 1;

/// Default time after which a silent session ends.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(20);

/// The result of choosing an export for the first request of a connection.
enum Route<'a> {
    /// The connection belongs to a session of this export.
    Export(&'a ServedExport, Attached),
    /// The request only gets this reply.
    Reply(Reply),
    /// The client asks for a version of the protocol that the server does not speak.
    OtherVersion,
}

/// The file service of one or more exports.
#[derive(Debug)]
pub struct FileService {
    exports: Vec<ServedExport>,
    keys: Option<Arc<Keys>>,
    sessions: RwLock<AttachedExports>,
    /// The keys of sessions that have one.
    keyed: Mutex<HashMap<u64, KeyId>>,
    mounts: Mutex<Mounts>,
    /// The time in which a mount without a connection may reconnect.
    grace: Option<Duration>,
    /// Wakes the reaper when a mount has lost its connection.
    reaper_signal: Arc<ReaperSignal>,
    /// Clients of previous servers that may still write to memory.
    previous_clients: Arc<PreviousClients>,
    /// The time until which mounts of the previous server may reconnect.
    reconnect_until: Instant,
    /// Whether the server then kills clients that still map memory of a previous server.
    kill: bool,
    /// Ends connections; set once the host listens.
    terminator: OnceLock<SessionTerminator>,
    /// The clients of sessions, for the status.
    clients: Mutex<ClientTable>,
}

impl FileService {
    /// Creates a service of these exports. Clients that name no export and have no key get the
    /// first.
    pub fn new(exports: Vec<ServedExport>, keys: Option<Arc<Keys>>) -> FileService {
        let (sessions, keyed, mounts) = (RwLock::default(), Mutex::default(), Mutex::default());
        let (grace, reaper_signal, terminator) = (None, Arc::default(), OnceLock::new());
        let (previous_clients, reconnect_until, kill) = (Arc::default(), run_clock::now(), false);
        FileService {
            exports,
            keys,
            sessions,
            keyed,
            mounts,
            grace,
            reaper_signal,
            previous_clients,
            reconnect_until,
            kill,
            terminator,
            clients: Mutex::default(),
        }
    }

    /// Makes the service wait for mounts that lose their connection, and set `reaper_signal` then.
    /// Without this it only waits for mounts of the previous server. Their sessions are kept while
    /// a client still maps memory of a previous server.
    #[must_use]
    pub fn waiting(
        self,
        fencing: Fencing,
        reaper_signal: Arc<ReaperSignal>,
        previous_clients: Arc<PreviousClients>,
    ) -> FileService {
        let reconnect_until = run_clock::now() + fencing.lease.unwrap_or(DEFAULT_LEASE);
        let service = FileService {
            grace: fencing.lease,
            reaper_signal,
            previous_clients,
            reconnect_until,
            kill: fencing.kill,
            ..self
        };
        service.await_previous_mounts();
        service
    }

    /// Sets the handle that ends connections.
    pub fn set_terminator(&self, terminator: SessionTerminator) {
        // A host listens once.
        let _ = self.terminator.set(terminator);
    }

    /// Ends a connection, if it has not ended by itself.
    fn end_peer(&self, peer: u64, reason: &str) {
        if let Some(terminator) = self.terminator.get() {
            terminator.end(peer, reason);
        }
    }

    /// Ends a session on the request of its dispatcher, with or without a connection.
    pub fn end_session(&self, export: usize, session: u64, reason: &str) {
        let now = run_clock::now();
        let (peer, away) = {
            let mut mounts = self.mounts.lock();
            (mounts.peer_of(export, session), mounts.give_up(export, session, now))
        };
        match away {
            true => {
                log::warn!("session {session}: ending without a connection: {reason}");
                self.give_up_now();
            }
            false => {
                // The lower 32 bits of a session's number are its connection, if this server
                // admitted it.
                let connection = Dispatcher::connection_of(session);
                let is_of_now = self.exports[export].dispatcher.session_number(connection) == session;
                match peer.or(is_of_now.then_some(connection)) {
                    Some(peer) => self.end_peer(peer, reason),
                    None => log::debug!("session {session} of a previous server: ending: {reason}"),
                }
            }
        }
    }

    /// Returns the sessions with one of these keys.
    pub fn sessions_with(&self, keys: &[KeyId]) -> Vec<u64> {
        let keyed = self.keyed.lock();
        keyed.iter().filter(|(_, key)| keys.contains(key)).map(|(session, _)| *session).collect()
    }

    /// Returns the export and rights of a connection.
    fn export(&self, peer: u64) -> Option<Route<'_>> {
        let attached = self.sessions.read().get(peer)?;
        Some(Route::Export(self.exports.get(attached.export)?, attached))
    }

    /// Returns the squash of a peer's key.
    fn squash(&self, peer: &Peer) -> Squash {
        let opens = |key| self.keys.as_ref().and_then(|keys| keys.opens(key));
        // A key that was removed has its session ended.
        peer.key().and_then(opens).map_or(Squash::None, |opens| opens.squash)
    }

    /// Returns the export and rights for a peer that asks for the export `name`.
    fn allowed(&self, peer: &Peer, name: &str) -> Result<Attached, Errno> {
        let place = |name| self.exports.iter().position(|export| export.name == name);
        let session = |export: usize| self.exports[export].dispatcher.session_number(peer.id());
        let Some(key) = peer.key() else {
            let export = if name.is_empty() { Some(0) } else { place(name) };
            let export = export.ok_or(Errno::ENOENT)?;
            return Ok(Attached { export, rights: AccessMode::Write, session: session(export) });
        };
        let opens = self.keys.as_ref().and_then(|keys| keys.opens(key)).ok_or(Errno::EACCES)?;
        // A peer without a key to an export does not learn whether it exists.
        match name.is_empty() || place(name) == Some(opens.export) {
            true => {
                Ok(Attached { export: opens.export, rights: opens.rights, session: session(opens.export) })
            }
            false => Err(Errno::EACCES),
        }
    }

    /// Handles the first request of a connection: selects its export, or returns a reply.
    fn choose(&self, peer: &Peer, request: &[u8]) -> Result<Route<'_>, String> {
        let refuse = |errno| Ok(Route::Reply(Reply::Error(errno)));
        // Another version may encode the rest differently.
        if let Some(version) = attach_version(request)
            && !speaks(version)
        {
            let older = if version < VERSION { "client" } else { "server" };
            let said = format!(
                "{peer}: the client has protocol version {version}, the server {OLDEST_VERSION} to {VERSION}"
            );
            match version {
                // Such a client speaks the version of this server, too, and attaches again.
                NEXT_VERSION => log::debug!("{said}"),
                _ => log::warn!("{said}: upgrade the {older}"),
            }
            return Ok(Route::OtherVersion);
        }
        let Request::Attach { client: description, export: name, mount, version, .. } = decode(request)?
        else {
            return refuse(Errno::EPROTO);
        };
        let wanted = match self.allowed(peer, name) {
            Ok(wanted) => wanted,
            Err(errno) => {
                log::warn!("{peer}: {description:?} refused for export {name:?}: {errno}");
                return refuse(errno);
            }
        };
        let wanted = match self.arrival(peer, mount, wanted) {
            Arrival::New => wanted,
            Arrival::Back(before) => return Ok(self.resume_mount(peer, before, (version, description))),
            Arrival::Refused => return refuse(Errno::EACCES),
            Arrival::Doomed => return Ok(Route::Reply(Reply::Ending)),
            Arrival::Ending(before) => {
                self.end_peer(before, "its mount has reconnected");
                return Ok(Route::Reply(Reply::Ending));
            }
        };
        // Of two concurrent requests the first counts, and the export refuses the second. A request
        // after the end of the session leaves nothing behind.
        let attached = self.sessions.write().choose(peer.id(), wanted, || {
            let export = &self.exports[wanted.export];
            let credentials = Credentials { key: peer.key().copied(), rights: wanted.rights };
            let squash = self.squash(peer);
            let regions = export.regions(peer, reach(wanted.rights, squash));
            export.dispatcher.attachments().began_as(wanted.session, regions, credentials);
            export.dispatcher.attachments().squash(wanted.session, squash);
            self.attach_client(peer, wanted, description);
        });
        match attached {
            Some(attached) => Ok(Route::Export(&self.exports[attached.export], attached)),
            None => refuse(Errno::EPROTO),
        }
    }
}

impl FileService {
    /// Answers a request. An error ends the session.
    fn route(&self, peer: &Peer, request: &[u8], reply: &mut rdmabox::Reply<'_>) -> Result<(), String> {
        let chosen = match self.export(peer.id()) {
            Some(chosen) => chosen,
            None => self.choose(peer, request)?,
        };
        match chosen {
            Route::Export(export, attached) => {
                // A client that maps the records reads them without a request.
                let reads_records = peer.provider() == ProviderKind::Shm;
                answer(&export.dispatcher, (attached, reads_records), request, reply, |request, answer| {
                    self.track_mount(peer, attached, request, answer);
                })?;
            }
            Route::Reply(answer) => encode(&answer, reply),
            Route::OtherVersion => encode_version_refusal(reply),
        }
        Ok(())
    }
}

impl Service for FileService {
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        log::debug!("session {}: {}", peer.id(), peer.description());
        if let Some(key) = peer.key() {
            self.keyed.lock().insert(peer.id(), *key);
        }
        self.sessions.write().begin(peer.id());
        Ok(())
    }

    fn call(&self, peer: &Peer, request: &[u8], reply: &mut rdmabox::Reply<'_>) -> Result<(), CallError> {
        // Errors of operations are replies. The rest is a client that violates the protocol.
        self.route(peer, request, reply).map_err(CallError::EndSession)
    }

    fn disconnected(&self, peer: &Peer) {
        let chosen = self.sessions.write().end(peer.id());
        self.keyed.lock().remove(&peer.id());
        if peer.clings() {
            // This server cannot release the memory while the client maps it. The next server
            // releases it when no client maps it.
            return log::warn!("{peer}: the client still maps the memory: the next server waits for it");
        }
        if let Some(attached) = chosen {
            self.connection_ended(peer, attached);
        }
        log::debug!("session {}: disconnected", peer.id());
    }
}

/// Returns the memory rights of a session. With a squash only the server changes memory.
fn reach(rights: AccessMode, squash: Squash) -> AccessMode {
    if squash.is_none() { rights } else { AccessMode::Read }
}
