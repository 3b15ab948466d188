//! The options of a running program, which can be read again.
//!
//! # Concurrency
//! Plain values. Reads the file.

use std::{
    ffi::OsString,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use clap::{Command, FromArgMatches};

use crate::{
    effective_options::{Change, EffectiveOption, changes, show},
    error::LoadError,
    merge::{Loaded, load},
    rules::Rules,
};

/// Where the options `P` of a program come from, and those that it runs with.
#[derive(Clone, Debug)]
pub struct Configuration<P> {
    command: Command,
    rules: Rules<'static>,
    /// The words of the command line.
    words: Vec<OsString>,
    /// The current directory at the start.
    directory: PathBuf,
    loaded: Loaded,
    options: PhantomData<P>,
}

/// Options that were read again.
#[derive(Clone, Debug)]
pub struct NewOptions<P> {
    /// All options.
    pub options: P,
    /// The options that differ from those that the program runs with.
    pub changes: Vec<Change>,
    effective: Vec<EffectiveOption>,
}

impl<P: FromArgMatches> Configuration<P> {
    /// Reads the options of a program that was started with `words`, of which the first is its
    /// name. `command` defines its command line.
    ///
    /// # Errors
    /// The file or the command line is invalid.
    pub fn read(
        command: Command,
        rules: Rules<'static>,
        words: Vec<OsString>,
    ) -> Result<(Configuration<P>, P), LoadError> {
        // Without one, only absolute paths work.
        let directory = std::env::current_dir().unwrap_or_default();
        let (loaded, options) = parse(&command, &rules, &words, &directory)?;
        Ok((Configuration { command, rules, words, directory, loaded, options: PhantomData }, options))
    }

    /// Returns true if the options come from a file, too.
    pub fn has_file(&self) -> bool {
        self.loaded.file.is_some()
    }

    /// Returns the options in effect, as a file has them.
    pub fn show(&self) -> String {
        show(&self.loaded.effective)
    }

    /// Reads the file again, and changes nothing.
    ///
    /// # Errors
    /// The file is invalid.
    pub fn read_again(&self) -> Result<NewOptions<P>, LoadError> {
        let (loaded, options) = parse(&self.command, &self.rules, &self.words, &self.directory)?;
        let changes = changes(&self.loaded.effective, &loaded.effective);
        Ok(NewOptions { options, changes, effective: loaded.effective })
    }

    /// Records that the program runs with a changed option.
    pub fn applied(&mut self, change: &Change, new: &NewOptions<P>) {
        let effective = &mut self.loaded.effective;
        effective.retain(|one| one.key != change.key);
        effective.extend(new.effective.iter().find(|one| one.key == change.key).cloned());
    }
}

fn parse<P: FromArgMatches>(
    command: &Command,
    rules: &Rules<'_>,
    words: &[OsString],
    directory: &Path,
) -> Result<(Loaded, P), LoadError> {
    let loaded = load(command, rules, words, directory)?;
    let options = P::from_arg_matches(&loaded.matches)
        .map_err(|error| LoadError::Line { error: Box::new(error), notes: Vec::new() })?;
    Ok((loaded, options))
}
