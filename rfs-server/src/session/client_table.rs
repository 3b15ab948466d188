//! The clients of sessions, for the status of a server. No I/O, no locks.
//!
//! An entry outlives the connection of its session, because the session may be resumed. The figures
//! describe clients to people; nothing in the server depends on them.
//!
//! # Concurrency
//! None; a lock of the service protects it.

use std::{collections::HashMap, time::Instant};

use rdmabox::{Heartbeat, KeyId, PeerProcess, ProviderKind};
use rfs_proto::ClientDescription;

/// A connection of a client, as rdmabox describes it.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Number of the connection.
    pub peer: u64,
    /// Network address of the client, or `this host`.
    pub address: String,
    /// Transport of its requests.
    pub provider: ProviderKind,
    /// The key that it has proved.
    pub key: Option<KeyId>,
    /// Its process, if that is known here.
    pub process: Option<PeerProcess>,
    /// When it was last heard of.
    pub heartbeat: Heartbeat,
}

/// The client of a session.
#[derive(Clone, Debug)]
pub struct SessionClient {
    /// Its connection, or its last one.
    pub connection: Connection,
    /// Its description of itself.
    pub description: ClientDescription,
    /// Time of the loss of the connection, if it is lost.
    pub lost: Option<Instant>,
}

/// The clients of all sessions, by export and session.
#[derive(Debug, Default)]
pub struct ClientTable(HashMap<(usize, u64), SessionClient>);

impl ClientTable {
    /// Records the client that attaches to a session, or resumes it.
    pub fn attach(
        &mut self,
        export: usize,
        session: u64,
        connection: Connection,
        description: ClientDescription,
    ) {
        self.0.insert((export, session), SessionClient { connection, description, lost: None });
    }

    /// Records the loss of a session's connection `peer`, unless the session has another one.
    pub fn lose(&mut self, export: usize, session: u64, peer: u64, now: Instant) {
        let client = self.0.get_mut(&(export, session));
        if let Some(client) = client.filter(|client| client.connection.peer == peer) {
            client.lost = Some(now);
        }
    }

    /// Removes the client of a session that has ended.
    pub fn end(&mut self, export: usize, session: u64) {
        self.0.remove(&(export, session));
    }

    /// Returns the clients of an export by session.
    pub fn of(&self, export: usize) -> HashMap<u64, SessionClient> {
        let own = self.0.iter().filter(|((other, _), _)| *other == export);
        own.map(|((_, session), client)| (*session, client.clone())).collect()
    }
}
