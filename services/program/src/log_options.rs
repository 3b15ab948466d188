//! The option `--log-format`, which every program of a service has.

use clap::Args;
use rfs_status::logging::{self, LogFormat};

/// How a program logs.
#[derive(Args, Clone, Copy, Debug)]
pub struct LogOptions {
    /// Format of log lines. text: time, level, module and message. json: an object with these
    /// fields in each line. Repeated warnings and errors are left out and counted
    #[arg(
        long,
        value_name = "text|json",
        value_enum,
        hide_possible_values = true,
        default_value = "text",
        global = true
    )]
    pub log_format: LogFormat,
}

impl LogOptions {
    /// Starts the log on stderr. The variable RUST_LOG replaces `filter`.
    pub fn start(self, filter: &str) {
        logging::init(filter, self.log_format);
    }
}
