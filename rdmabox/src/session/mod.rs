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

mod address;
mod client;
mod error;
mod fetch_qp;
pub(crate) mod handshake;
mod host;
mod lease;
mod memory_server;
mod resolve;
pub(crate) mod stream;

pub use self::{
    address::{Address, AddressError, ProviderKind, ProviderKindError},
    client::{
        CallsBy, CallsByError, Op, Pending, PendingCall, Session, SessionBuilder, SessionOptions, Transfer,
        across, wait_all, wait_any,
    },
    error::{ConnectError, HostError},
    handshake::VERSION as PROTOCOL,
    host::{Export, Fencing, Heartbeat, Host, HostHandle, Peer, PeerProcess, Service, SessionTerminator},
    memory_server::MemoryServer,
};

#[cfg(feature = "fuzzing")]
pub(crate) use self::handshake::fuzz;

pub use crate::{
    auth::{
        Domain, Grant, Key, KeyError, KeyFile, KeyFileError, KeyId, Keyring, Limits, LimitsError, Secret,
        shown,
    },
    batch::{BatchMode, BatchModeError},
    error::{Failed, RequestError},
    polling::{PollingMode, PollingModeError},
    provider::{
        rdma::{RdmaError, RdmaOptions},
        soft::ConnectedProcess,
    },
    rpc::{Answer, AnswerCounts, CallError, Cancel, MAX_CALL, PendingReply, Reply, StartedReply},
    runtime::Until,
    stats::StatsSnapshot,
    verbs::{Access, AtomicOp, AtomicOps, AtomicScope, RemoteAddr, RemoteMr, RemoteMrError, WcStatus},
};
