//! The errors of a file of options.

use std::{io, path::PathBuf};

/// A file of options that cannot be used. A retry is safe, and has the same result until the file
/// changes.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("--config {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{path}:{line}: no valid TOML: {reason}: a line is a key and a value, such as threads = 2, or text = \"x\"", path = .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// The program has no such option.
    #[error("{path}:{line}: {key}: no such option: {hint}", path = .path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The key.
        key: String,
        /// The nearest name, and where all names are.
        hint: String,
    },
    /// An option has another value.
    #[error("{path}:{line}: {key}: {reason}", path = .path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The key.
        key: String,
        /// The reason, and a next step.
        reason: String,
    },
    /// A table, where the program has none.
    #[error("{path}:{line}: [{name}]: {program} has no tables: write its options one per line, before any [table]", path = .path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Name of the table.
        name: String,
        /// Name of the program.
        program: String,
    },
    /// A mount point that is not an absolute path.
    #[error("{path}:{line}: [{name:?}]: no absolute path: name the table by its mount point, such as [\"/mnt/rfs\"]", path = .path.display())]
    RelativePoint {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Name of the table.
        name: String,
    },
    /// The file has no table for the mount.
    #[error("{path}: {reason}", path = .path.display())]
    Point {
        /// The file.
        path: PathBuf,
        /// The reason, and a next step.
        reason: String,
    },
}

/// A command line and a file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Help, a version, or an invalid command line.
    #[error("{error}{}", shown(.notes))]
    Line {
        /// The error of the parser.
        error: Box<clap::Error>,
        /// Notes about the file: where it has the options that the error names.
        notes: Vec<String>,
    },
    /// An invalid file.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LoadError {
    /// Prints the error, or the help that was asked for. Returns the exit code of the program.
    pub fn report(&self, program: &str) -> u8 {
        match self {
            LoadError::Line { error, notes } => {
                // If the output is closed, the text has no place to go.
                error.print().ok();
                eprint!("{}", shown(notes));
                u8::try_from(error.exit_code()).unwrap_or(2)
            }
            LoadError::File(error) => {
                eprintln!("{program}: {error}");
                2
            }
        }
    }

    /// Returns the error as one line of a log.
    pub fn one_line(&self) -> String {
        let text = self.to_string();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.filter(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
        lines.collect::<Vec<_>>().join(" ")
    }
}

fn shown(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}
