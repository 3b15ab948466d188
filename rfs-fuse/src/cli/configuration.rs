//! The options of a mount: from its command line, and from the file of `--config`.
//!
//! SIGHUP reads the file again. The format of the log changes at once. All other options belong to
//! the session with the server or to the mount in the kernel, so they need a new mount.
//!
//! # Concurrency
//! The main thread reads the options. The thread `signals` reads the file again.

use std::ffi::OsString;

use option_file::{FileForm, LoadError, Rules};
use program_version::Build;
use rfs_status::logging::{self, SIGNAL};

use super::Args;

/// The entries that a file can have, beside the definition of the command line.
const RULES: Rules<'static> = Rules {
    config: "config",
    line_only: &["config", "check-config", "detached"],
    form: FileForm::Mounts { source: "address" },
};

/// Where the options come from, and those that the mount has.
pub(crate) type Configuration = option_file::Configuration<Args>;

/// Reads the options of a program that was started with `words`.
///
/// # Errors
/// The file or the command line is invalid.
pub(crate) fn read(build: Build, words: &[OsString]) -> Result<(Configuration, Args), LoadError> {
    Configuration::read(build.command::<Args>(), RULES, words.to_vec())
}

/// Reads the file again, applies the options that can change, and logs those that need a new mount.
/// An invalid file changes nothing.
pub(crate) fn reload(configuration: &mut Configuration) {
    let new = match configuration.read_again() {
        Ok(new) => new,
        Err(e) => {
            return log::error!(target: SIGNAL, "the options stay as they were: {}", e.one_line());
        }
    };
    if new.changes.is_empty() {
        log::info!("SIGHUP: no option has changed");
    }
    for change in &new.changes {
        if change.key != "log-format" {
            log::warn!(target: SIGNAL, "SIGHUP: {change}: needs a new mount");
            continue;
        }
        logging::set_format(new.options.log_format);
        configuration.applied(change, &new);
        log::info!("SIGHUP: {change}: applied");
    }
}
