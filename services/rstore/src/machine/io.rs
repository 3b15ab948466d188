//! Inputs and outputs of the master's state machine.
//!
//! # Concurrency
//! Plain values.

use pool::{ClientId, Incarnation, Order, Outcome, StoreId};
use serde::{Deserialize, Serialize};

use crate::proto::{Answer, Request, Resume, StoreCard};

/// Settings of a master. They are part of its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settings {
    /// Length of a chunk in bytes.
    pub chunk_bytes: u64,
    /// Most free chunks that stay prepared.
    pub cache_chunks: u64,
    /// Milliseconds of a writer's lease.
    pub lease_millis: u64,
    /// Milliseconds after which a disconnected client, or store, is lost.
    pub grace_millis: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { chunk_bytes: 64 << 20, cache_chunks: u64::MAX, lease_millis: 10_000, grace_millis: 5_000 }
    }
}

/// An event for the machine. `call` names the call that gets a reply. An event of a link that
/// another link has replaced has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// A client connects. `nonce` is random.
    Hello {
        /// The call.
        call: u64,
        /// The name of a client that comes back.
        resume: Option<Resume>,
        /// The random number of a new client.
        nonce: u128,
    },
    /// A client calls.
    Call {
        /// The call.
        call: u64,
        /// The caller.
        client: ClientId,
        /// The request.
        request: Request,
    },
    /// The session of a client has ended.
    ClientGone(ClientId),
    /// A store joins.
    Register {
        /// The call.
        call: u64,
        /// The store.
        card: StoreCard,
    },
    /// The master can give orders to a store, which has these chunks.
    StoreReady {
        /// The store.
        store: StoreId,
        /// Number of the link.
        link: u64,
        /// Its chunks.
        chunks: Vec<u32>,
    },
    /// The session in which a store has registered has ended.
    StoreGone(StoreId),
    /// The master cannot give orders to a store.
    LinkLost {
        /// The store.
        store: StoreId,
        /// Number of the link.
        link: u64,
    },
    /// A store has answered an order.
    OrderDone {
        /// Number of the link.
        link: u64,
        /// Number of the order.
        order: u64,
        /// Its effect.
        outcome: Outcome,
    },
    /// The master has started again, with the state of its log: no client and no store is
    /// connected.
    Restart,
    /// Time has passed.
    Tick,
}

/// An action that the machine asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Answer a call.
    Reply {
        /// The call.
        call: u64,
        /// The client whose epoch the reply has.
        client: Option<ClientId>,
        /// The answer.
        answer: Answer,
    },
    /// Connect to a store in place of an earlier link, and report that it is ready or lost.
    Connect {
        /// The store.
        store: StoreId,
        /// Number of the link.
        link: u64,
        /// Its address.
        address: String,
        /// The number of its run.
        incarnation: Incarnation,
    },
    /// Give an order to a store, and report its outcome.
    Order {
        /// The store.
        store: StoreId,
        /// Number of the order.
        number: u64,
        /// The order.
        order: Order,
    },
    /// A store is lost or refused, or its link is: end the connections to it. A store that runs
    /// registers again.
    Disconnect(StoreId),
}
