//! Sessions between clients and hosts.
//!
//! A [`Host`] exports memory and answers calls. A [`Session`] is a client's connection to a host.
//! Each session has one control stream, and the session ends when that stream ends. It has one
//! queue pair for calls and several queue pairs for data. It may have one more for deferred
//! replies, connected by the first blocking call, and one for remote fetching. A broken data
//! queue pair can be replaced without an effect on calls or on the other queue pairs.
//!
//! # Concurrency
//! A [`Session`] may be used by any number of threads. Each submodule documents its own threads
//! and locks.

mod accept;
mod address;
mod client;
mod client_process;
mod connect;
mod deferred_qp;
mod error;
mod fetch_qp;
mod handshake;
mod host;
mod host_queue_pairs;
mod host_session;
mod key;
mod key_file;
mod keyring;
mod lease;
mod listener;
mod memory_server;
mod options;
mod peer;
mod pending_connections;
mod proof;
mod qp_connector;
mod resolve;
mod session_terminator;
mod stream;
mod transfer;

pub use address::{Address, AddressError, ProviderKind, ProviderKindError};
pub use client::{Op, Session};
pub use error::{ConnectError, HostError, RequestError};
pub use host::{Fencing, Host, Running};
pub use key::{Key, KeyError, KeyId, Secret, shown};
pub use key_file::{KeyFile, KeyFileError};
pub use keyring::{Domain, Grant, Keyring, Limits};
pub use memory_server::{Lender, RemoteMemory};
pub use options::{CallsBy, CallsByError, SessionOptions};
pub use peer::{Export, Peer, PeerProcess, Service};
pub use session_terminator::Ender;
pub use transfer::{NotWaited, Transfer};

#[cfg(feature = "fuzzing")]
pub(crate) use handshake::fuzz;
#[cfg(feature = "fuzzing")]
pub(crate) mod intruder;

pub use crate::{
    batch::BatchMode,
    polling::PollingMode,
    provider::{
        rdma::{RdmaError, RdmaOptions},
        soft::ConnectedProcess,
    },
    rpc::{Cancel, Later, MAX_CALL, Reply, StartedReply},
    runtime::Until,
    stats::StatsSnapshot,
    verbs::{Access, RemoteAddr, WcStatus},
};
