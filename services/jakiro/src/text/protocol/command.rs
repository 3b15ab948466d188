//! Commands of the memcached text protocol, as its public description (`protocol.txt` of the
//! memcached project) has them.
//!
//! # Concurrency
//! Plain values.

use crate::store::{Delta, StoreMode};

/// A command of a client. A retrieval becomes one command for each key, and one for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// One key of `get`, `gets`, `gat` or `gats`.
    Key {
        /// The key.
        key: &'a [u8],
        /// The form of the retrieval.
        retrieval: Retrieval,
    },
    /// The end of the keys of a retrieval, which the server answers with `END`.
    EndOfKeys,
    /// `set`, `add`, `replace`, `cas`, `append` or `prepend`, with its value.
    Store(Store<'a>),
    /// A command with a value that is too long. The parser drops the value.
    TooLong {
        /// The key.
        key: &'a [u8],
        /// The condition of the command.
        mode: StoreMode,
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// `incr` or `decr`.
    Count {
        /// The key.
        key: &'a [u8],
        /// The change of the number.
        delta: Delta,
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// The new time of expiry, as the client has it.
        exptime: i64,
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// The delay in seconds, or a time after 1970. Not positive: now.
        exptime: i64,
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// `stats`, with an argument or without.
    Stats(Option<&'a [u8]>),
    /// `version`.
    Version,
    /// `verbosity`.
    Verbosity {
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// `quit`.
    Quit,
    /// A line that is no command. The connection goes on.
    Malformed {
        /// The fault.
        fault: Fault,
        /// True if the client wants no answer.
        quiet: bool,
    },
    /// A line that no client of this protocol sends. The server closes the connection, and answers
    /// the fault before if there is one.
    Stray(Option<Fault>),
}

/// The form of a retrieval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retrieval {
    /// True if answers have the version of the item (`gets`, `gats`).
    pub has_version: bool,
    /// The new time of expiry (`gat`, `gats`), as the client has it.
    pub exptime: Option<i64>,
}

/// A command that stores a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The condition.
    pub mode: StoreMode,
    /// The key.
    pub key: &'a [u8],
    /// A number for the client's own use.
    pub flags: u32,
    /// The time of expiry, as the client has it.
    pub exptime: i64,
    /// The value.
    pub value: &'a [u8],
    /// True if the client wants no answer.
    pub quiet: bool,
}

/// The fault of a line. Its answer is the [`line`](Fault::line) of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// No such command, or a wrong number of words.
    Unknown,
    /// A key of more than 250 bytes, or a number that is none.
    Format,
    /// A time of expiry that is no number.
    Exptime,
    /// A difference that is no number.
    Delta,
    /// `delete` with words that it does not know.
    DeleteUsage,
    /// No line break after a value.
    Chunk,
    /// A line that is longer than every command.
    LineLength,
}

impl Fault {
    /// Returns the line of the answer, with its line break.
    pub fn line(self) -> &'static str {
        match self {
            Fault::Unknown => "ERROR\r\n",
            Fault::Format => "CLIENT_ERROR bad command line format\r\n",
            Fault::Exptime => "CLIENT_ERROR invalid exptime argument\r\n",
            Fault::Delta => "CLIENT_ERROR invalid numeric delta argument\r\n",
            Fault::DeleteUsage => "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
            Fault::Chunk => "CLIENT_ERROR bad data chunk\r\n",
            Fault::LineLength => "CLIENT_ERROR line too long\r\n",
        }
    }
}
