//! The entries that a file can have, beside the definition of a command line.
//!
//! No I/O, no locks, no clock.

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm<'a> {
    /// The options of one program.
    Options,
    /// A table of options for each mount point. Options before the first table are for all.
    Mounts {
        /// Key of the first of the two words that a command line has besides options. The second is
        /// the mount point.
        source: &'a str,
    },
}

/// The entries that a file can have, beside the definition of the command line.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Name of the option that names the file.
    pub config: &'a str,
    /// Names of options that only a command line has, with that of the file.
    pub line_only: &'a [&'a str],
    /// The form of the file.
    pub form: FileForm<'a>,
}

impl<'a> Rules<'a> {
    /// Returns the key of the first word besides options.
    pub(crate) fn source_key(&self) -> Option<&'a str> {
        match self.form {
            FileForm::Options => None,
            FileForm::Mounts { source } => Some(source),
        }
    }
}
