//! Keeps a file system in files that outlive its server; the next server maps them again.
//!
//! Each export has a directory. `arena` has the bytes of files and `table` the attribute records;
//! clients get descriptors of these. `state` is the server's own: a header, a bitmap of nonzero
//! blocks, and a log of all metadata changes. Stores to a shared mapping survive a killed process,
//! so nothing is flushed. Only the order of stores matters: a change is in the log before its reply
//! is sent. It is also in the log before the space or records that it releases are used again.
//! docs/design/formats.md has the formats.
//!
//! Bottom up: [`op`], [`log`], [`replay`] with [`prior_sessions`] (sessions), [`nonzero_bitmap`],
//! [`header`], [`object`], [`client_marks`] and [`prior_clients`]. `dispatch::journal` writes the
//! operations, `dispatch::recovery` applies them.
//!
//! # Concurrency
//! See each module. The log and the client marks are for any thread; recovery uses one thread.

pub mod client_marks;
pub mod header;
pub mod log;
pub mod nonzero_bitmap;
pub mod object;
pub mod op;
pub mod prior_clients;
pub mod prior_sessions;
pub mod replay;
mod reservation;

pub use client_marks::ClientMarks;
pub use header::{Header, Shape};
pub use log::Log;
pub use nonzero_bitmap::NonzeroBitmap;
pub use object::{Object, ObjectError, ObjectStore};
pub use prior_clients::PriorClients;

/// Returns an FNV-1a hash over 64-bit words that folds the upper half in after each word. It
/// detects incomplete writes, not tampering.
fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

/// Splits bytes into little-endian words; pads the last word with zeroes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}
