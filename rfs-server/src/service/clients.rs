//! The clients of sessions, for the status of a server.
//!
//! # Concurrency
//! As the service. The lock of the table is held for single calls, and no other lock is taken under
//! it.

use std::{
    collections::HashMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::Peer;
use rfs_proto::ClientDescription;
use rfs_status::text::printable;

use super::FileService;
use crate::session::{
    client_table::{Connection, SessionClient},
    mount_registry::Attached,
};

/// Pause between two attempts to fence a session at stores.
const FENCE_PAUSE: Duration = Duration::from_millis(500);

/// Returns the client's description of itself, for the log.
fn describe(client: &ClientDescription) -> String {
    let ClientDescription { program, pid, host, user, mount_point, .. } = client;
    let mut parts = vec![program.clone()];
    parts.extend((!host.is_empty()).then(|| format!("host {host}")));
    parts.extend(pid.map(|pid| format!("process {pid}")));
    parts.extend(user.map(|user| format!("user {user}")));
    parts.extend((!mount_point.is_empty()).then(|| format!("mounted on {mount_point}")));
    // The text comes from the client.
    printable(&parts.join(", "))
}

impl FileService {
    /// Records the client of a session that attaches or is resumed.
    pub(super) fn attach_client(&self, peer: &Peer, attached: Attached, description: &str) {
        let connection = Connection {
            peer: peer.id(),
            address: peer.address().to_owned(),
            provider: peer.provider(),
            key: peer.key().copied(),
            process: peer.process(),
            heartbeat: peer.heartbeat(),
        };
        let Attached { export, session, .. } = attached;
        let description = ClientDescription::parse(description);
        let name = &self.exports[export].name;
        log::info!("{peer}: attached to the export {name} as session {session}: {}", describe(&description));
        self.clients.lock().attach(export, session, connection, description);
    }

    /// Records that a session has lost its connection.
    pub(super) fn lose_client(&self, peer: &Peer, Attached { export, session, .. }: Attached) {
        self.clients.lock().lose(export, session, peer.id(), Instant::now());
    }

    /// Ends a session whose connection has ended. If it may reach stores, it ends when it cannot
    /// reach them any more.
    pub(super) fn finish_session(&self, export: usize, session: u64) {
        self.clients.lock().end(export, session);
        let dispatcher = &self.exports[export].dispatcher;
        if !dispatcher.space().lent().is_some_and(|lent| lent.is_admitted(session)) {
            return dispatcher.attachments().ended(session);
        }
        let weak = Arc::downgrade(dispatcher);
        let fence = move || {
            while let Some(dispatcher) = weak.upgrade() {
                if dispatcher.space().lent().is_none_or(|lent| lent.fence(session)) {
                    return dispatcher.attachments().ended(session);
                }
                drop(dispatcher);
                thread::sleep(FENCE_PAUSE);
            }
        };
        if let Err(e) = thread::Builder::new().name("rfs-fence".into()).spawn(fence) {
            log::error!("session {session} keeps its files open, because no thread can fence it: {e}");
        }
    }

    /// Returns the clients of an export by session.
    pub(crate) fn clients_of(&self, export: usize) -> HashMap<u64, SessionClient> {
        self.clients.lock().of(export)
    }
}
