//! The clients of sessions, for the status of a server.
//!
//! # Concurrency
//! As the service. The lock of the table is held for single calls, and no other lock is taken under
//! it.

use std::{collections::HashMap, time::Instant};

use rdmabox::Peer;
use rfs_proto::ClientDescription;

use super::FileService;
use crate::session::{
    client_table::{Connection, SessionClient},
    mount_registry::Attached,
};

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
        self.clients.lock().attach(export, session, connection, description);
    }

    /// Records that a session has lost its connection.
    pub(super) fn lose_client(&self, peer: &Peer, Attached { export, session, .. }: Attached) {
        self.clients.lock().lose(export, session, peer.id(), Instant::now());
    }

    /// Ends a session whose connection has ended.
    pub(super) fn finish_session(&self, export: usize, session: u64) {
        self.exports[export].dispatcher.attachments().ended(session);
        self.clients.lock().end(export, session);
    }

    /// Returns the clients of an export by session.
    pub(crate) fn clients_of(&self, export: usize) -> HashMap<u64, SessionClient> {
        self.clients.lock().of(export)
    }
}
