//! The options of the server: from its command line, and from the file of `--config`.
//!
//! # Concurrency
//! The main thread. Reads the file.

mod check;
mod reload;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Command, FromArgMatches};
use option_file::{Change, Effective, FileForm, LoadError, Loaded, Rules, changes, load, show};
use program_version::Build;

pub(super) use self::{
    check::check,
    reload::{reload, warn_of_expiry},
};
use super::cli::Cli;

/// What a file can have, beside the definition of the command line.
const RULES: Rules<'static> = Rules {
    config: "config",
    line_only: &["config", "check-config", "new-key", "key-file"],
    form: FileForm::Options,
};

/// Where the options come from, and those that the server runs with.
#[derive(Debug)]
pub(super) struct Configuration {
    command: Command,
    /// The words of the command line.
    words: Vec<OsString>,
    /// The current directory at the start.
    directory: PathBuf,
    loaded: Loaded,
}

/// Options that were read again.
#[derive(Debug)]
pub(super) struct NewOptions {
    pub(super) cli: Cli,
    /// The options that differ from those that the server runs with.
    pub(super) changes: Vec<Change>,
    effective: Vec<Effective>,
}

impl Configuration {
    /// Reads the options of a program that was started with `words`.
    ///
    /// # Errors
    /// The file or the command line is invalid.
    pub(super) fn read(build: Build, words: Vec<OsString>) -> Result<(Configuration, Cli), LoadError> {
        // Without one, only absolute paths work.
        let directory = std::env::current_dir().unwrap_or_default();
        let command = build.command::<Cli>();
        let (loaded, cli) = parse(&command, &words, &directory)?;
        Ok((Configuration { command, words, directory, loaded }, cli))
    }

    /// Returns true if the options come from a file, too.
    pub(super) fn has_file(&self) -> bool {
        self.loaded.file.is_some()
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// The file is invalid.
    pub(super) fn read_again(&self) -> Result<NewOptions, LoadError> {
        let (loaded, cli) = parse(&self.command, &self.words, &self.directory)?;
        let changes = changes(&self.loaded.effective, &loaded.effective);
        Ok(NewOptions { cli, changes, effective: loaded.effective })
    }

    /// Records that the server runs with a changed option.
    pub(super) fn applied(&mut self, change: &Change, new: &NewOptions) {
        let effective = &mut self.loaded.effective;
        effective.retain(|one| one.key != change.key);
        effective.extend(new.effective.iter().find(|one| one.key == change.key).cloned());
    }

    /// Returns the options in effect, as a file has them.
    pub(super) fn show(&self) -> String {
        show(&self.loaded.effective)
    }
}

fn parse(command: &Command, words: &[OsString], directory: &Path) -> Result<(Loaded, Cli), LoadError> {
    let loaded = load(command, &RULES, words, directory)?;
    let cli = Cli::from_arg_matches(&loaded.matches)
        .map_err(|error| LoadError::Line { error: Box::new(error), notes: Vec::new() })?;
    Ok((loaded, cli))
}
