//! The systems that are compared, as processes of this machine.
//!
//! # Concurrency
//! Each client thread has a connection of its own.

mod jakiro_server;
mod memcached;

use std::{path::PathBuf, time::Duration};

use rdmabox::{CallsBy, ProviderKind};
use serde::{Deserialize, Serialize};

pub(crate) use self::jakiro_server::serve;
use self::{jakiro_server::JakiroServer, memcached::Memcached};
use crate::error::Error;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum System {
    /// The store, whose clients fetch replies.
    Jakiro,
    /// The store, which sends replies.
    ServerReply,
    /// The store, which WRITEs replies to memory of the client.
    ServerWrite,
    /// memcached over its own protocol.
    Memcached,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Jakiro => "jakiro",
            System::ServerReply => "server-reply",
            System::ServerWrite => "server-write",
            System::Memcached => "memcached",
        }
    }

    pub(crate) fn calls(self) -> CallsBy {
        match self {
            System::Jakiro => CallsBy::Fetch,
            System::ServerWrite => CallsBy::Write,
            System::ServerReply | System::Memcached => CallsBy::Reply,
        }
    }
}

/// How clients reach a system, and how large it is.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) system: System,
    pub(crate) provider: ProviderKind,
    pub(crate) server_threads: usize,
    /// Bytes of the first READ of a reply.
    pub(crate) fetch_size: usize,
    pub(crate) memory: u64,
    /// Milliseconds for which the server polls for requests.
    pub(crate) poll_ms: u32,
}

/// Longest time until a server is ready.
const START: Duration = Duration::from_secs(30);

/// A running server. It ends when the value is dropped.
pub(crate) trait Server {
    /// Connects a client.
    fn connect(&self) -> Result<Box<dyn Connection>, Error>;
}

/// Counts of a client whose replies are fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fetches {
    /// Replies that were fetched. Others came as messages, because the server was slow.
    pub(crate) replies: u64,
    /// READs that found their reply, or the rest of a long one.
    pub(crate) reads: u64,
    /// READs that came before the reply.
    pub(crate) early: u64,
}

impl std::ops::Add for Fetches {
    type Output = Fetches;

    fn add(self, other: Fetches) -> Fetches {
        Fetches {
            replies: self.replies + other.replies,
            reads: self.reads + other.reads,
            early: self.early + other.early,
        }
    }
}

impl std::ops::Sub for Fetches {
    type Output = Fetches;

    fn sub(self, earlier: Fetches) -> Fetches {
        Fetches {
            replies: self.replies - earlier.replies,
            reads: self.reads - earlier.reads,
            early: self.early - earlier.early,
        }
    }
}

/// A client of one thread.
pub(crate) trait Connection: Send {
    /// Gets a value. Returns false if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error>;
    /// Stores a value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;
    /// Returns the READs of replies so far.
    fn fetches(&self) -> Fetches {
        Fetches::default()
    }
}

/// Starts a server.
pub(crate) fn start(setting: &Setting) -> Result<Box<dyn Server>, Error> {
    match setting.system {
        System::Jakiro | System::ServerReply | System::ServerWrite => {
            Ok(Box::new(JakiroServer::start(setting)?))
        }
        System::Memcached => Ok(Box::new(Memcached::start(setting)?)),
    }
}

/// Returns the program memcached, if it is installed.
pub(crate) fn memcached_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("memcached")).find(|program| program.is_file())
}
