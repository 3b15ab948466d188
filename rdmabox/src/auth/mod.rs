//! Keys: secrets that clients and hosts share, their files, and proofs of their possession.
//!
//! # Concurrency
//! Plain values without locks. Secrets are in memory that core dumps exclude.

mod challenge;
mod key;
mod key_file;
mod keyring;

pub(crate) use self::challenge::{Nonce, Proof, Side, Transcript};
pub use self::key::{Key, KeyError, KeyId, Secret, shown};
pub use self::key_file::{KeyFile, KeyFileError};
pub use self::keyring::{Domain, Grant, Keyring, Limits, LimitsError};
