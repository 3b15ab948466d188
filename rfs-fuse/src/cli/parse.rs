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
    or_print(A::try_parse_from(arguments))
}

/// Returns the result of a parser. If it is help, a version or an error, prints it and returns the
/// exit code.
pub(crate) fn or_print<A>(result: Result<A, clap::Error>) -> Result<A, u8> {
    result.map_err(|e| {
        // Help goes to stdout. If stdout is closed, the error has no place to go.
        e.print().ok();
        u8::try_from(e.exit_code()).unwrap_or(USAGE)
    })
}
