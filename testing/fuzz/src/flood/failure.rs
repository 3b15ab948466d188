//! The first failure of a flood or of an attack.

use std::io;

use super::attack::Attack;
use crate::usage::Usage;

/// The first failure of a flood or of an attack.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An operation of the good client failed, or read wrong data.
    #[error("the good client: {0}")]
    Good(String),
    /// A connection could not be made.
    #[error("cannot connect {client}: {source}")]
    Connect {
        /// The kind of client.
        client: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The server gave a member no reply or a wrong reply.
    #[error("a member: {0}")]
    Member(String),
    /// The server did not release resources within `GRACE`.
    #[error("the server's process used {before:?} before the flood and uses {after:?} now")]
    Left {
        /// Usage before the flood.
        before: Usage,
        /// Usage after the flood.
        after: Usage,
    },
    /// The server used more memory during the flood than the limit.
    #[error("the server's process used {before} bytes of memory before the flood and {peak} at its peak")]
    Grown {
        /// Memory before the flood, in bytes.
        before: u64,
        /// Peak memory during the flood, in bytes.
        peak: u64,
    },
    /// The server did not withstand an attack.
    #[error("during the attack {attack}: {failure}")]
    Attack {
        /// The attack.
        attack: Attack,
        /// The failure.
        failure: Box<Failure>,
    },
    /// The usage of the server's process cannot be read.
    #[error("the server's process: {0}")]
    Gone(#[from] io::Error),
}

impl Failure {
    /// Names the attack during which this failure occurred.
    pub(super) fn during(self, attack: Attack) -> Failure {
        Failure::Attack { attack, failure: Box::new(self) }
    }
}
