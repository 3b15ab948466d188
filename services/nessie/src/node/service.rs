//! The calls that a node answers: the address of its memory, and commands of local programs.
//!
//! No call is part of an operation of another node. A command makes this node act as a client for a
//! program that is none: `nessie get`, `put`, `delete` and `status`.
//!
//! # Concurrency
//! rdmabox calls the service on its threads. Commands run on a thread of the node.

use std::sync::{Arc, OnceLock, Weak, mpsc::Sender};

use rdmabox::{CallError, Export, Peer, PendingReply, Reply, Service};

use super::{
    cluster::{peer::WHERE, roster::JoinRequest},
    stats::Counters,
};

/// A command of a local program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Returns the value of a key.
    Get(Vec<u8>),
    /// Stores a value.
    Put(Vec<u8>, Vec<u8>),
    /// Removes the value of a key.
    Delete(Vec<u8>),
    /// Returns the state of the node as text.
    Status,
    /// Moves the value of a key from the table of this node to that of the asked one.
    Adopt(Vec<u8>, u16),
    /// Moves all values of a joined node to other nodes, and gives the node up.
    Leave,
}

impl Command {
    /// Encodes a command: a letter, the length of the key, key and value.
    pub fn encode(&self) -> Vec<u8> {
        let number;
        let (letter, key, value): (u8, &[u8], &[u8]) = match self {
            Command::Adopt(key, from) => {
                number = from.to_le_bytes();
                (b'a', key, &number)
            }
            Command::Leave => (b'l', &[], &[]),
            Command::Get(key) => (b'g', key, &[]),
            Command::Put(key, value) => (b'p', key, value),
            Command::Delete(key) => (b'd', key, &[]),
            Command::Status => (b's', &[], &[]),
        };
        let mut bytes = vec![letter];
        bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes
    }

    /// Decodes a command. `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Command> {
        let (&letter, rest) = bytes.split_first()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (key, value) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        match (letter, value.is_empty()) {
            (b'g', true) => Some(Command::Get(key.to_vec())),
            (b'p', _) => Some(Command::Put(key.to_vec(), value.to_vec())),
            (b'd', true) => Some(Command::Delete(key.to_vec())),
            (b's', true) if key.is_empty() => Some(Command::Status),
            (b'l', true) if key.is_empty() => Some(Command::Leave),
            (b'a', false) => Some(Command::Adopt(key.to_vec(), u16::from_le_bytes(value.try_into().ok()?))),
            _ => None,
        }
    }
}

/// Executes commands.
pub(super) trait Execute: Send + Sync {
    /// Returns the reply, or the reason of the failure.
    fn execute(&self, command: Command) -> Result<Vec<u8>, String>;
    /// Returns the roster for a node that joins, or the reason of the refusal.
    fn admit(&self, request: &JoinRequest) -> Result<Vec<u8>, String>;
}

/// The service of a node.
pub(super) struct NodeService {
    /// For local sessions without a key.
    pub(super) export: Export,
    /// For sessions with a key.
    pub(super) keyed: Option<Export>,
    pub(super) counters: Arc<Counters>,
    pub(super) commands: Sender<(Command, PendingReply)>,
    pub(super) executor: Arc<OnceLock<Weak<dyn Execute>>>,
    /// The threads of the host execute commands: the node serves a server-driven store.
    pub(super) server_driven: bool,
}

impl NodeService {
    fn store(&self) -> Result<Arc<dyn Execute>, CallError> {
        self.executor.get().and_then(Weak::upgrade).ok_or(CallError::from("the node starts or stops"))
    }
}

impl Service for NodeService {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        if request == WHERE {
            Counters::add(&self.counters.calls);
            let export = self.keyed.as_ref().filter(|_| peer.key().is_some()).unwrap_or(&self.export);
            reply.extend_from_slice(&peer.remote_mr(export).to_le_bytes());
            return Ok(());
        }
        if let Some(joining) = JoinRequest::decode(request) {
            let bytes = self.store()?.admit(&joining).map_err(CallError::Rejected)?;
            reply.extend_from_slice(&bytes);
            return Ok(());
        }
        let command = Command::decode(request).ok_or("unknown request")?;
        Counters::add(&self.counters.commands);
        if self.server_driven {
            let bytes = self.store()?.execute(command).map_err(CallError::Rejected)?;
            reply.extend_from_slice(&bytes);
            return Ok(());
        }
        self.commands.send((command, reply.defer())).map_err(|_| CallError::from("the node stops"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_command_round_trips(key: Vec<u8>, value: Vec<u8>) {
            let put = Command::Put(key.clone(), value);
            let adopt = Command::Adopt(key.clone(), 7);
            let others = [Command::Delete(key.clone()), Command::Status, Command::Leave, adopt];
            for command in [Command::Get(key), put].into_iter().chain(others) {
                prop_assert_eq!(Command::decode(&command.encode()), Some(command));
            }
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            if let Some(command) = Command::decode(&bytes) {
                prop_assert_eq!(command.encode(), bytes);
            }
        }
    }
}
