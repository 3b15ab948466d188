//! Options of a program in a TOML file, with the names of its command line.
//!
//! [`Configuration`] reads the file that `--config` names, checks it against the program's own
//! [`clap::Command`], and parses file and command line together. So a file knows the options of the
//! command line and no others. An option of the command line replaces that of the file, and those
//! options of the file that it excludes. It tells where each option comes from, and reads the file
//! again.
//!
//! # Concurrency
//! Plain values. A [`Configuration`] reads one file; the other modules do no I/O.
#![forbid(unsafe_code)]

mod configuration;
mod document;
mod effective_options;
mod error;
mod line;
mod merge;
mod rules;
mod setting;

#[cfg(test)]
mod tests;

pub use configuration::{Configuration, NewOptions};
pub use effective_options::Change;
pub use error::{FileError, LoadError};
pub use rules::{FileForm, Rules};
