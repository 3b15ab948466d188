//! Options of a program in a TOML file, with the names of its command line.
//!
//! [`load`] reads the file that `--config` names, checks it against the program's own
//! [`clap::Command`], and parses file and command line together. So a file knows the options of the
//! command line and no others. An option of the command line replaces that of the file, and those
//! options of the file that it excludes. [`Loaded`] has the result, and tells where each option
//! comes from.
//!
//! # Concurrency
//! Plain values. [`load`] reads one file; the other modules do no I/O.
#![forbid(unsafe_code)]

mod document;
mod effective;
mod error;
mod line;
mod merge;
mod rules;
mod setting;

#[cfg(test)]
mod tests;

pub use effective::{Change, Effective, Origin, changes, show};
pub use error::{FileError, LoadError};
pub use merge::{Loaded, load};
pub use rules::{FileForm, Rules};
