//! Errors of the pure logic.

/// Bytes of a peer that no client of this version has written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// A word of an index has no watermark.
    #[error("index word {word:#018x} has no watermark: another program has written it")]
    Watermark {
        /// The word.
        word: u64,
    },
    /// A word of an index refers to an entry that does not exist.
    #[error("index word refers to entry {offset} of node {table}, which has no such entry")]
    Reference {
        /// Number of the node.
        table: u16,
        /// Number of the entry.
        offset: u32,
    },
    /// A data entry has another format.
    #[error("data entry of format {found}, not {expected}: the node runs another version")]
    Format {
        /// Format of this version.
        expected: u16,
        /// Format that the entry names.
        found: u16,
    },
    /// The lengths of a data entry exceed the entry.
    #[error("data entry with a key of {key} and a value of {value} bytes in {room} bytes")]
    Lengths {
        /// Length of the key in bytes.
        key: usize,
        /// Length of the value in bytes.
        value: usize,
        /// Bytes that the entry has for both.
        room: usize,
    },
    /// The control block of a node has another magic number, version or geometry.
    #[error("control block: {0}")]
    Control(String),
}
