//! The text of `--version`: version, commit and protocols of a program.
//!
//! The scripts of this tree set `RFS_COMMIT` for cargo. Each program reads it in `main.rs`. A new
//! commit therefore links the programs once more, and compiles no library.
//!
//! # Concurrency
//! Plain values.
#![forbid(unsafe_code)]

use std::{ffi::OsString, fmt};

use clap::{Command, CommandFactory, Parser};

/// The build of a program, and the protocols that it speaks.
///
/// ```
/// use program_version::Build;
///
/// let build = Build { version: "1.2.3", commit: Some("c0ffee"), protocols: &[("protocol", 14)] };
/// assert_eq!(build.to_string(), "1.2.3 (commit c0ffee, protocol 14)");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Version of the program.
    pub version: &'static str,
    /// Commit of the sources: `option_env!("RFS_COMMIT")` in the program.
    pub commit: Option<&'static str>,
    /// Names and versions of the protocols.
    pub protocols: &'static [(&'static str, u32)],
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (commit {}", self.version, self.commit.unwrap_or("unknown"))?;
        for (name, number) in self.protocols {
            write!(f, ", {name} {number}")?;
        }
        f.write_str(")")
    }
}

impl Build {
    /// Returns the definition of a command line whose `--version` prints this build.
    pub fn command<P: CommandFactory>(self) -> Command {
        // The parser keeps the text until the program ends.
        let text: &'static str = Box::leak(self.to_string().into_boxed_str());
        P::command().version(text)
    }

    /// Parses a command line whose `--version` prints this build.
    ///
    /// # Errors
    /// The command line is invalid, or it asks for help or the version.
    pub fn try_parse_from<P: Parser>(
        self,
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<P, clap::Error> {
        let mut command = self.command::<P>();
        let mut matches = command.try_get_matches_from_mut(arguments)?;
        P::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }

    /// Parses the command line of this process. Ends it if the command line is invalid, or asks for
    /// help or the version.
    pub fn parse<P: Parser>(self) -> P {
        self.try_parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "program", version)]
    struct Cli {
        #[arg(long)]
        number: u32,
    }

    const BUILD: Build = Build { version: "1.2.3", commit: None, protocols: &[("protocol", 2), ("log", 3)] };

    #[test]
    fn the_version_has_all_parts() {
        let shown = BUILD.try_parse_from::<Cli>(["program", "--version"]).expect_err("a text");
        assert_eq!(shown.kind(), ErrorKind::DisplayVersion);
        assert_eq!(shown.to_string(), "program 1.2.3 (commit unknown, protocol 2, log 3)\n");
    }

    #[test]
    fn other_command_lines_are_parsed_as_before() {
        let parse = |words: &[&str]| BUILD.try_parse_from::<Cli>(words);
        assert_eq!(parse(&["program", "--number", "7"]).expect("valid").number, 7);
        let error = parse(&["program", "--number", "x"]).expect_err("no number");
        assert!(error.to_string().contains("invalid value 'x'"), "{error}");
    }
}
