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
    /// memcached over its own protocol.
    Memcached,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Jakiro => "jakiro",
            System::ServerReply => "server-reply",
            System::Memcached => "memcached",
        }
    }

    pub(crate) fn calls(self) -> CallsBy {
        if self == System::Jakiro { CallsBy::Fetch } else { CallsBy::Reply }
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
}

/// Longest time until a server is ready.
const START: Duration = Duration::from_secs(30);

/// A running server. It ends when the value is dropped.
pub(crate) trait Server {
    /// Connects a client.
    fn connect(&self) -> Result<Box<dyn Connection>, Error>;
}

/// A client of one thread.
pub(crate) trait Connection: Send {
    /// Gets a value. Returns false if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error>;
    /// Stores a value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;
    /// Returns the READs of replies so far.
    fn fetches(&self) -> u64 {
        0
    }
}

/// Starts a server.
pub(crate) fn start(setting: &Setting) -> Result<Box<dyn Server>, Error> {
    match setting.system {
        System::Jakiro | System::ServerReply => Ok(Box::new(JakiroServer::start(setting)?)),
        System::Memcached => Ok(Box::new(Memcached::start(setting)?)),
    }
}

/// Returns the program memcached, if it is installed.
pub(crate) fn memcached_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("memcached")).find(|program| program.is_file())
}
