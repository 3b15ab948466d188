//! Lines for the terminal, which may be closed: the steps of an area are undone all the same.
//!
//! # Concurrency
//! As stdout and stderr.

use std::{
    fmt,
    io::{self, Write},
};

/// Prints a line.
pub(super) fn say(line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// Prints a warning.
pub(super) fn warn(line: fmt::Arguments<'_>) {
    writeln!(io::stderr().lock(), "rfs-paging: {line}").ok();
}
