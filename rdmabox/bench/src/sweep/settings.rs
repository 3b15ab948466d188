//! Options as text. Sweeps and experiments can therefore vary any option of the command line. Each
//! combination is parsed by the parser of the command line.

use std::collections::BTreeMap;

use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

use crate::{Error, Result, load::LoadArgs};

/// Option values by long option name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Returns settings from names and values. Later values replace earlier values.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Settings {
        Settings(pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns the load options that the command line sets.
    pub fn given(matches: &ArgMatches) -> Settings {
        let mut settings = BTreeMap::new();
        for arg in parser().get_arguments() {
            let (id, Some(name)) = (arg.get_id().as_str(), arg.get_long()) else { continue };
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            // The last value counts, as in the parser.
            if let Some(value) = matches.get_raw(id).and_then(|mut values| values.next_back()) {
                settings.insert(name.to_owned(), value.to_string_lossy().into_owned());
            }
        }
        Settings(settings)
    }

    /// Returns these settings, overridden by `over`.
    #[must_use]
    pub fn with(mut self, over: &Settings) -> Settings {
        self.0.extend(over.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// Returns these settings without an option.
    #[must_use]
    pub fn without(mut self, name: &str) -> Settings {
        self.0.remove(name);
        self
    }

    /// Returns true if an option is set.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the names of the options that are set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Parses the settings.
    pub fn parse(&self) -> Result<LoadArgs> {
        let args = self.0.iter().map(|(name, value)| format!("--{name}={value}"));
        parser()
            .try_get_matches_from(std::iter::once("sweep".to_owned()).chain(args))
            .and_then(|matches| LoadArgs::from_arg_matches(&matches))
            .map_err(|err| Error::usage(one_line(&err)))
    }
}

/// Returns the error and the tips of the parser, without the usage text.
pub fn one_line(err: &clap::Error) -> String {
    let text = err.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let wrong = text.split("\n\n").next().unwrap_or_default();
    let tips = text.lines().map(str::trim).filter(|line| line.starts_with("tip: "));
    let lines = wrong.lines().map(str::trim).map(str::to_owned);
    lines.chain(tips.map(|tip| format!("({tip})"))).collect::<Vec<_>>().join(" ")
}

/// Returns the names of all options that can be swept.
pub fn sweepable() -> Vec<String> {
    parser().get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect()
}

fn parser() -> Command {
    // --help and --version are not options of a load.
    LoadArgs::augment_args(Command::new("sweep")).disable_help_flag(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_settings_win() {
        let base = Settings::from_pairs([("size", "4k"), ("threads", "2")]);
        let both = base.with(&Settings::from_pairs([("size", "8k")]));
        let args = both.parse().unwrap();
        assert_eq!((args.size, args.threads), (Some(8192), 2));
        assert_eq!(both.names().collect::<Vec<_>>(), ["size", "threads"]);
    }

    #[test]
    fn an_invalid_option_is_reported_in_one_line() {
        for (name, value, says) in [
            ("threads", "x", "invalid value 'x' for '--threads <T>'"),
            ("threads", "0", "invalid value '0'"),
            ("pattern", "spiral", "invalid value 'spiral'"),
            ("dept", "3", "unexpected argument '--dept' found (tip: a similar argument exists: '--depth')"),
        ] {
            let err = Settings::from_pairs([(name, value)]).parse().unwrap_err();
            assert_eq!(err.exit_code(), 2);
            assert!(err.to_string().starts_with(says), "{err}");
            assert_eq!(err.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn everything_has_a_name_and_a_value() {
        let names = sweepable();
        for name in ["provider", "size", "threads", "depth", "mode", "reg", "polling", "window", "op"] {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
        assert!(parser().get_arguments().all(|arg| arg.get_action().takes_values()));
    }
}
