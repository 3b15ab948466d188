//! The options in effect, with their origins, and the differences of two states.
//!
//! No I/O, no locks, no clock.

use std::{
    ffi::OsStr,
    fmt::{self, Write},
    path::{Path, PathBuf},
};

use clap::{ArgAction, ArgMatches, Command, parser::ValueSource};

use crate::{
    rules::{FileForm, Rules},
    setting::{Setting, is_setting},
};

/// Where an option comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    CommandLine,
    /// A line of the file, counted from 1.
    File(PathBuf, usize),
    /// The environment.
    Environment,
    /// The default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::CommandLine => f.write_str("command line"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Environment => f.write_str("environment"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// An option in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectiveOption {
    /// Name of the option.
    pub(crate) key: String,
    /// Its value, as a file has it.
    pub(crate) value: String,
    /// Where it comes from.
    pub(crate) origin: Origin,
}

/// An option that differs between two states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the option.
    pub key: String,
    /// Its old value, as a file has it. `None`: it was not given.
    pub old: Option<String>,
    /// Its new value.
    pub new: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".into());
        write!(f, "{}: {} -> {}", self.key, shown(&self.old), shown(&self.new))
    }
}

/// Returns the options that differ, in the order of the new state. Options that are gone come last.
pub(crate) fn changes(old: &[EffectiveOption], new: &[EffectiveOption]) -> Vec<Change> {
    let value =
        |of: &[EffectiveOption], key: &str| of.iter().find(|one| one.key == key).map(|one| one.value.clone());
    let gone = old.iter().filter(|one| value(new, &one.key).is_none());
    let change = |one: &EffectiveOption| Change {
        key: one.key.clone(),
        old: value(old, &one.key),
        new: value(new, &one.key),
    };
    new.iter().chain(gone).map(change).filter(|change| change.old != change.new).collect()
}

/// Returns the options as a file has them, with their origins as comments. Defaults are comments,
/// too, so that the text is a file with the same meaning.
pub(crate) fn show(options: &[EffectiveOption]) -> String {
    let line = |one: &EffectiveOption| {
        let mark = if one.origin == Origin::Default { "#" } else { "" };
        format!("{mark}{} = {}", one.key, one.value)
    };
    let width = options.iter().map(|one| line(one).len()).max().unwrap_or(0).min(60);
    let mut text = String::new();
    for one in options {
        // A string takes every text.
        let _ = writeln!(text, "{:width$}  # {}", line(one), one.origin);
    }
    text
}

/// Returns the options in effect. The last argument has the file, the options that it sets, and the
/// first word besides options if it comes from the file.
pub(crate) fn effective(
    command: &Command,
    rules: &Rules<'_>,
    matches: &ArgMatches,
    (file, settings, source): (Option<&Path>, &[Setting], Option<(&OsStr, usize)>),
) -> Vec<EffectiveOption> {
    let in_file = |line: usize| Origin::File(file.unwrap_or(Path::new("")).to_owned(), line);
    let mut all = Vec::new();
    if let FileForm::Mounts { source: key } = rules.form {
        let positional = command.get_positionals().next();
        let words = positional.and_then(|arg| matches.get_raw(arg.get_id().as_str()));
        let words: Vec<_> = words.into_iter().flatten().collect();
        if let [first, _] = &words[..] {
            let origin = source.map_or(Origin::CommandLine, |(_, line)| in_file(line));
            all.push(EffectiveOption { key: key.into(), value: literal(&first.to_string_lossy()), origin });
        }
    }
    for arg in command.get_arguments().filter(|arg| is_setting(arg, rules)) {
        let (id, key) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => match settings.iter().find(|setting| setting.id == id) {
                Some(setting) => in_file(setting.line),
                None => Origin::CommandLine,
            },
            Some(ValueSource::EnvVariable) => Origin::Environment,
            Some(_) if !arg.is_hide_set() => Origin::Default,
            _ => continue,
        };
        let raw = matches.get_raw(id).into_iter().flatten();
        let values: Vec<_> = raw.map(|value| literal(&value.to_string_lossy())).collect();
        let value = match arg.get_action() {
            // A flag that is not given has no entry.
            ArgAction::SetTrue if origin == Origin::Default => continue,
            ArgAction::SetTrue => "true".into(),
            ArgAction::Append => format!("[{}]", values.join(", ")),
            _ => values.into_iter().next_back().unwrap_or_default(),
        };
        all.push(EffectiveOption { key: key.into(), value, origin });
    }
    all
}

/// Returns a value of TOML for a text of a command line.
fn literal(text: &str) -> String {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_ok();
    let keeps_digits = text == "0" || !text.starts_with('0');
    match is_number && keeps_digits {
        true => text.to_owned(),
        false => toml::Value::String(text.to_owned()).to_string(),
    }
}
