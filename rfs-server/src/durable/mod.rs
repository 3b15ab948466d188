//! A file system that survives its server: everything of it lies in files that the next server maps again.
//!
//! An export has a directory with three files, because clients are handed descriptors of two of them and of no more: `arena` has the bytes of
//! files, `table` the attribute records, and `state` what a server knows besides: a header, which blocks of the arena may
//! hold bytes, and a log of all changes of the metadata. A server that is killed loses no store that it has made to a shared mapping; so
//! nothing is flushed, and what has to hold is the order of stores alone: a change is in the log before its reply is sent, and before
//! space and records that it gives up are used for anything else. LOG.md has the formats.
//!
//! From the bottom up: [`op`] is the language of the log, [`log`] the place of its transactions, [`replay`] what they add up to, [`before`] the sessions among that,
//! [`dirt`] the blocks that may hold bytes, [`header`] says what an object is, [`object`] opens and makes it, and [`tether`] knows who
//! may still write to it as a client of a server before. What a step of a
//! request has changed is put into words in `dispatch::journal`, and `dispatch::recovery` makes a file system of it again.

pub mod before;
pub mod dirt;
pub mod header;
pub mod log;
pub mod object;
pub mod op;
pub mod replay;
mod reservation;
pub mod tether;

pub use dirt::Dirt;
pub use header::{Header, Shape};
pub use log::Log;
pub use object::{Object, ObjectError, ObjectStore};
pub use tether::{Former, Tether};

/// A hash of words: FNV-1a, taken word by word, with the upper half folded in after each step. It finds what was written in part, not
/// malice.
fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

/// The words of bytes, the last one filled up with zeroes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}
