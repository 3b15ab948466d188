//! The options of a mount: from its command line, and from the file of `--config`.
//!
//! SIGHUP reads the file again. The format of the log changes at once. All other options belong to
//! the session with the server or to the mount in the kernel, so they need a new mount.
//!
//! # Concurrency
//! The main thread reads the options. The thread `signals` reads the file again.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Command, FromArgMatches};
use option_file::{FileForm, LoadError, Loaded, Rules, changes, load, show};
use program_version::Build;
use rfs_status::logging::{self, SIGNAL};

use super::Args;

/// What a file can have, beside the definition of the command line.
const RULES: Rules<'static> = Rules {
    config: "config",
    line_only: &["config", "check-config", "detached"],
    form: FileForm::Mounts { source: "address" },
};

/// Where the options come from, and those that the mount has.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    command: Command,
    /// The words of the command line.
    words: Vec<OsString>,
    /// The current directory at the start.
    directory: PathBuf,
    loaded: Loaded,
}

impl Configuration {
    /// Reads the options of a program that was started with `words`.
    ///
    /// # Errors
    /// The file or the command line is invalid.
    pub(crate) fn read(build: Build, words: &[OsString]) -> Result<(Configuration, Args), LoadError> {
        // Without one, only absolute paths work.
        let directory = std::env::current_dir().unwrap_or_default();
        let command = build.command::<Args>();
        let (loaded, args) = parse(&command, words, &directory)?;
        Ok((Configuration { command, words: words.to_vec(), directory, loaded }, args))
    }

    /// Returns true if the options come from a file, too.
    pub(crate) fn has_file(&self) -> bool {
        self.loaded.file.is_some()
    }

    /// Returns the options in effect, as a file has them.
    pub(crate) fn show(&self) -> String {
        show(&self.loaded.effective)
    }

    /// Reads the file again, applies what can change, and logs what needs a new mount. An invalid
    /// file changes nothing.
    pub(crate) fn reload(&mut self) {
        let (loaded, args) = match parse(&self.command, &self.words, &self.directory) {
            Ok(parsed) => parsed,
            Err(e) => {
                return log::error!(target: SIGNAL, "the options stay as they were: {}", e.one_line());
            }
        };
        let changes = changes(&self.loaded.effective, &loaded.effective);
        if changes.is_empty() {
            log::info!("SIGHUP: no option has changed");
        }
        for change in changes {
            if change.key != "log-format" {
                log::warn!(target: SIGNAL, "SIGHUP: {change}: needs a new mount");
                continue;
            }
            logging::set_format(args.log_format);
            let effective = &mut self.loaded.effective;
            effective.retain(|one| one.key != change.key);
            effective.extend(loaded.effective.iter().find(|one| one.key == change.key).cloned());
            log::info!("SIGHUP: {change}: applied");
        }
    }
}

fn parse(command: &Command, words: &[OsString], directory: &Path) -> Result<(Loaded, Args), LoadError> {
    let loaded = load(command, &RULES, words, directory)?;
    let args = Args::from_arg_matches(&loaded.matches)
        .map_err(|error| LoadError::Line { error: Box::new(error), notes: Vec::new() })?;
    Ok((loaded, args))
}
