//! The log of a program: lines of one format, to stderr or to the system's log.
//!
//! [`init`] starts the logger. Repetitions of a warning or error are left out and counted, unless
//! the message answers a signal ([`SIGNAL`]). Warnings and
//! errors count for the status, even if a filter keeps them out of the log.
//!
//! # Concurrency
//! Any thread logs. A thread `log` runs while messages are left out, and writes their number after
//! a while. The memory of repetitions and the last error have a lock each, which is held
//! briefly.

mod counts;
mod logger;
mod repeats;
mod syslog;

pub use counts::{LogCounts, LoggedError, counts};
pub use logger::{LogFormat, SIGNAL, init, set_format};
pub use syslog::{SYSLOG, begin as log_to_syslog, is_in_use as is_syslog, send};
