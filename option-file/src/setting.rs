//! Checks an entry of a file against the option of its name.
//!
//! No I/O, no locks, no clock.

use std::{error::Error as _, ffi::OsString, path::Path};

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    document::{Entry, NOT_DECIMAL, Value},
    error::FileError,
    rules::Rules,
};

/// Similarity from which on a name is offered for an unknown one: 0 is none, 1 is the same word.
const SIMILAR: f64 = 0.7;

/// An option that a file sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Identifier of the option in its command.
    pub(crate) id: String,
    /// Name of the option.
    pub(crate) key: String,
    /// Line of the file, counted from 1.
    pub(crate) line: usize,
    /// Words of a command line with the same meaning. Empty for `false` and `[]`, which only
    /// replace another setting of the option.
    pub(crate) words: Vec<OsString>,
}

/// Returns the option of a name that a file can have.
fn option<'a>(command: &'a Command, rules: &Rules<'_>, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key) && is_setting(arg, rules))
}

/// Returns true for options that a file can have.
pub(crate) fn is_setting(arg: &Arg, rules: &Rules<'_>) -> bool {
    let sets = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
    sets && arg.get_long().is_some_and(|name| !rules.line_only.contains(&name))
}

/// Returns the option that an entry sets.
///
/// # Errors
/// The option does not exist, or does not take the value.
pub(crate) fn check(
    command: &Command,
    rules: &Rules<'_>,
    path: &Path,
    entry: &Entry,
) -> Result<Setting, FileError> {
    let Entry { key, line, value } = entry;
    let arg = option(command, rules, key).ok_or_else(|| FileError::Unknown {
        path: path.to_owned(),
        line: *line,
        key: key.clone(),
        hint: hint(command, rules, key),
    })?;
    let words =
        words(arg, key, value).and_then(|words| parses(arg, &words).map(|()| words)).map_err(|reason| {
            FileError::Value { path: path.to_owned(), line: *line, key: key.clone(), reason }
        })?;
    Ok(Setting { id: arg.get_id().to_string(), key: key.clone(), line: *line, words })
}

/// Returns the nearest name that a file can have, and where all names are.
fn hint(command: &Command, rules: &Rules<'_>, key: &str) -> String {
    let all = format!("`{} --help` lists the options", command.get_name());
    if rules.line_only.contains(&key) {
        return format!("it belongs on the command line: remove it here; {all}");
    }
    let names = command.get_arguments().filter(|arg| is_setting(arg, rules)).filter_map(Arg::get_long);
    let names = names.chain(rules.source_key());
    let likeness = |name: &&str| strsim::jaro_winkler(key, name);
    match names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|name| likeness(name) > SIMILAR) {
        Some(near) => format!("did you mean {near}? {all}"),
        None => all,
    }
}

/// Returns the words of a command line for a value.
///
/// # Errors
/// The type of the value is not that of the option: the reason and a next step.
fn words(arg: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let takes_no_value = arg.get_num_args().is_some_and(|number| number.min_values() == 0);
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Bool(true)) => Ok(vec![format!("--{key}").into()]),
        (ArgAction::SetTrue, Value::Bool(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, other) => {
            Err(format!("expected true or false, found {}: write {key} = true", described(other)))
        }
        (ArgAction::Set, Value::Bool(true)) if takes_no_value => Ok(vec![format!("--{key}").into()]),
        (ArgAction::Append, Value::List(list)) => list.iter().map(|one| word(arg, key, one)).collect(),
        (_, one) => Ok(vec![word(arg, key, one)?]),
    }
}

/// Returns the word of a command line for one value.
fn word(arg: &Arg, key: &str, value: &Value) -> Result<OsString, String> {
    let Value::Text(text) = value else {
        let form =
            arg.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name.as_str());
        return Err(match value {
            Value::Other(NOT_DECIMAL, _) => {
                format!(
                    "found {}: write it in quotes, as on the command line, or as a decimal number",
                    described(value)
                )
            }
            Value::List(_) if !matches!(arg.get_action(), ArgAction::Append) => {
                format!("found a list, but the option has one value: write {key} = \"{form}\"")
            }
            _ => format!("expected a text or a number, found {}: write {key} = \"{form}\"", described(value)),
        });
    };
    Ok(format!("--{key}={text}").into())
}

fn described(value: &Value) -> String {
    match value {
        Value::Bool(is_set) => is_set.to_string(),
        Value::Text(text) => format!("{text:?}"),
        Value::List(_) => "a list".into(),
        Value::Other(kind, text) if text.is_empty() => (*kind).into(),
        Value::Other(kind, text) => format!("{kind} ({text})"),
    }
}

/// Parses words with the parser of an option alone.
///
/// # Errors
/// The option refuses the value: the reason.
fn parses(arg: &Arg, words: &[OsString]) -> Result<(), String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Ok(());
    }
    let mut alone = Arg::new("value")
        .long("value")
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone());
    if let Some(number) = arg.get_num_args() {
        alone = alone.num_args(number).require_equals(arg.is_require_equals_set());
    }
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let values = words.iter().filter_map(|word| word.to_str()?.split_once('='));
    let words = values.map(|(_, value)| format!("--value={value}"));
    let parsed = Command::new("file").no_binary_name(true).arg(alone).try_get_matches_from(words);
    parsed.map(drop).map_err(|e| reason(&e))
}

/// Returns why a parser has refused a value.
fn reason(error: &clap::Error) -> String {
    let found = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(text)) => format!("invalid value {text:?}: "),
        _ => String::new(),
    };
    if let (ErrorKind::InvalidValue, Some(ContextValue::Strings(valid))) =
        (error.kind(), error.get(ContextKind::ValidValue))
        && !valid.is_empty()
    {
        return format!("{found}expected {}", valid.join(", "));
    }
    match error.source() {
        Some(source) => format!("{found}{source}"),
        None => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}
