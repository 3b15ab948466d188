//! Parses a command line, and prints help or the reason why it is invalid.
//!
//! # Concurrency
//! The main thread, at the start of the program.

use std::ffi::OsString;

use clap::Parser;

/// Exit code for an invalid command line.
pub(crate) const USAGE: u8 = 2;

/// Parses the command line of a command. If it asks for help or is invalid, prints that and returns
/// the exit code.
pub(crate) fn parse<A: Parser>(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<A, u8> {
    A::try_parse_from(arguments).map_err(|e| {
        // Help goes to stdout. If stdout is closed, the error has no place to go.
        e.print().ok();
        u8::try_from(e.exit_code()).unwrap_or(USAGE)
    })
}
