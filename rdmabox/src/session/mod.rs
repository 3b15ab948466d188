//! Sessions: who talks to whom, over which provider, with which queue pairs.
//!
//! A [`Host`] exports memory and answers calls; a [`Session`] is a client's connection to one. Each session has one
//! queue pair for messages and several for data, another one for late replies once a call waits for one, one for fetching the
//! answers to calls if both sides want that, and one control stream whose end is its end. A data queue pair that
//! breaks can be replaced; the others, the calls and the service do not notice.

mod address;
mod client;
mod connect;
mod ender;
mod error;
mod fetching;
mod handshake;
mod host;
mod host_queue_pairs;
mod hosted;
mod key;
mod key_file;
mod keyring;
mod late;
mod lease;
mod lender;
mod listener;
mod options;
mod peer;
mod proof;
mod reception;
mod rejoin;
mod resolve;
mod straggler;
mod strangers;
mod stream;
mod transfer;

pub use address::{Address, AddressError, ProviderKind, ProviderKindError};
pub use client::{Op, Session};
pub use ender::Ender;
pub use error::{ConnectError, HostError, RequestError};
pub use host::{Fencing, Host, Running};
pub use key::{Key, KeyError, KeyId, Secret, shown};
pub use key_file::{KeyFile, KeyFileError};
pub use keyring::{Domain, Grant, Keyring, Limits};
pub use lender::{Lender, RemoteMemory};
pub use options::{CallsBy, CallsByError, SessionOptions};
pub use peer::{Export, Peer, PeerProcess, Service};
pub use transfer::{NotWaited, Transfer};

#[cfg(feature = "fuzzing")]
pub(crate) use handshake::fuzz;
#[cfg(feature = "fuzzing")]
pub(crate) mod intruder;

pub use crate::{
    batch::BatchMode,
    polling::PollingMode,
    provider::rdma::{RdmaError, RdmaOptions},
    rpc::{Cancel, Later, MAX_CALL, Reply, StartedReply},
    runtime::Until,
    stats::StatsSnapshot,
    verbs::{Access, RemoteAddr, WcStatus},
};
