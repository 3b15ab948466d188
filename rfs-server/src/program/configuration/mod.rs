//! The options of the server: from its command line, and from the file of `--config`.
//!
//! # Concurrency
//! The main thread. Reads the file.

mod check;
mod reload;

use std::ffi::OsString;

use option_file::{FileForm, LoadError, Rules};
use program_version::Build;

pub(super) use self::{
    check::check,
    reload::{reload, warn_of_expiry},
};
use super::cli::Cli;

/// The entries that a file can have, beside the definition of the command line.
const RULES: Rules<'static> = Rules {
    config: "config",
    line_only: &["config", "check-config", "new-key", "key-file"],
    form: FileForm::Options,
};

/// Where the options come from, and those that the server runs with.
pub(super) type Configuration = option_file::Configuration<Cli>;

/// Reads the options of a program that was started with `words`.
///
/// # Errors
/// The file or the command line is invalid.
pub(super) fn read(build: Build, words: Vec<OsString>) -> Result<(Configuration, Cli), LoadError> {
    Configuration::read(build.command::<Cli>(), RULES, words)
}
