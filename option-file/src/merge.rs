//! Parses a file and a command line together.
//!
//! # Concurrency
//! Plain values. [`load`] reads the file.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgMatches, Command,
    error::{ContextKind, ContextValue},
};

use crate::{
    document::{Document, Entry, Table, Value},
    effective_options::{EffectiveOption, effective},
    error::{FileError, LoadError},
    line::Line,
    rules::{FileForm, Rules},
    setting::{Setting, check},
};

/// A valid command line, with the options of a file.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// The parsed options.
    pub(crate) matches: ArgMatches,
    /// The options in the order of their definition, with their origin.
    pub(crate) effective: Vec<EffectiveOption>,
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
}

/// The part of a command line that a file contributes.
#[derive(Debug, Default)]
struct Contribution {
    settings: Vec<Setting>,
    source: Option<(OsString, usize)>,
    point: Option<OsString>,
}

/// Parses a command line of which the first word is the program's name, with the options of the
/// file that it names. Relative paths of the file and of a mount point begin in `directory`.
///
/// # Errors
/// The file or the command line is invalid, or they do not fit together.
pub(crate) fn load(
    command: &Command,
    rules: &Rules<'_>,
    words: &[OsString],
    directory: &Path,
) -> Result<Loaded, LoadError> {
    let (name, rest) =
        words.split_first().map_or((OsString::new(), words), |(name, rest)| (name.clone(), rest));
    let line = Line::read(command, rest);
    let id = command.get_arguments().find(|arg| arg.get_long() == Some(rules.config)).map(Arg::get_id);
    let path = id.and_then(|id| line.value(id.as_str())).filter(|path| !path.is_empty());
    // Without a file, and for help, the parser has the command line as it is.
    let Some(path) = path.filter(|_| !asks_for_help(rest)) else {
        return parse(command, rules, words.to_vec(), &[], None, None);
    };
    let path = directory.join(path);
    let read = |source| FileError::Read { path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(read)?;
    let document = Document::parse(&path, &text)?;
    let file = contribution(command, rules, &document, (&line, directory))?;
    let settings = remaining(command, &line, file.settings);
    let mut merged = vec![name];
    merged.extend(settings.iter().flat_map(|setting| setting.words.iter().cloned()));
    merged.extend(line.options.iter().cloned());
    let source_of_file = file.source.as_ref().filter(|_| line.positionals.len() < 2);
    let mut positionals = line.positionals.clone();
    if let FileForm::Mounts { .. } = rules.form {
        positionals = match &line.positionals[..] {
            [] | [_] => {
                source_of_file.map(|(source, _)| source.clone()).into_iter().chain(file.point).collect()
            }
            all => all.to_vec(),
        };
    }
    merged.push("--".into());
    merged.extend(positionals);
    let source = source_of_file.map(|(source, line)| (source.as_os_str(), *line));
    parse(command, rules, merged, &settings, Some(path), source)
}

fn asks_for_help(words: &[OsString]) -> bool {
    let mut words = words.iter().take_while(|word| *word != "--");
    words.any(|word| ["--help", "-h", "--version", "-V"].iter().any(|help| word == help))
}

fn parse(
    command: &Command,
    rules: &Rules<'_>,
    words: Vec<OsString>,
    settings: &[Setting],
    file: Option<PathBuf>,
    source: Option<(&OsStr, usize)>,
) -> Result<Loaded, LoadError> {
    let matches = command.clone().try_get_matches_from(words).map_err(|error| {
        let notes = file.as_deref().map_or_else(Vec::new, |path| notes(&error, path, settings));
        LoadError::Line { error: Box::new(error), notes }
    })?;
    let effective = effective(command, rules, &matches, (file.as_deref(), settings, source));
    Ok(Loaded { matches, effective, file })
}

/// Returns where the file has the options that an error names, or that it has some of the options.
fn notes(error: &clap::Error, path: &Path, settings: &[Setting]) -> Vec<String> {
    let mut named = Vec::new();
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        match error.get(kind) {
            Some(ContextValue::String(text)) => named.push(text.clone()),
            Some(ContextValue::Strings(texts)) => named.extend(texts.iter().cloned()),
            _ => {}
        }
    }
    let is_named = |setting: &&Setting| {
        let name = format!("--{}", setting.key);
        named.iter().any(|text| text.split([' ', '=', '[']).next() == Some(name.as_str()))
    };
    let note = |setting: &Setting| format!("{}:{}: {} is there", path.display(), setting.line, setting.key);
    let notes: Vec<String> = settings.iter().filter(is_named).map(note).collect();
    match notes.is_empty() && error.use_stderr() {
        true => vec![format!("options come from {}, too", path.display())],
        false => notes,
    }
}

/// Returns the options of a file that a command line leaves in effect. Settings without words have
/// replaced others, and say no more than the default.
fn remaining(command: &Command, line: &Line, settings: Vec<Setting>) -> Vec<Setting> {
    let conflicts = |id: &str| -> BTreeSet<String> {
        let arg = command.get_arguments().find(|arg| arg.get_id() == id);
        let others = arg.map(|arg| command.get_arg_conflicts_with(arg)).unwrap_or_default();
        others.into_iter().map(|arg| arg.get_id().to_string()).collect()
    };
    let excluded: BTreeSet<String> = line.given.keys().flat_map(|id| conflicts(id)).collect();
    let is_replaced = |id: &str| line.given.contains_key(id) || excluded.contains(id);
    let excludes_given = |id: &str| conflicts(id).iter().any(|other| line.given.contains_key(other));
    let says = |one: &Setting| !one.words.is_empty();
    settings
        .into_iter()
        .filter(|one| says(one) && !is_replaced(&one.id) && !excludes_given(&one.id))
        .collect()
}

/// Checks the whole file, and returns its part for a command line.
fn contribution(
    command: &Command,
    rules: &Rules<'_>,
    document: &Document,
    (line, directory): (&Line, &Path),
) -> Result<Contribution, FileError> {
    let path = &document.path;
    let all = checked(command, rules, path, &document.entries)?;
    let FileForm::Mounts { .. } = rules.form else {
        let Some(table) = document.tables.first() else { return Ok(all) };
        let (line, name) = (table.line, table.name.clone());
        return Err(FileError::Table { path: path.clone(), line, name, program: command.get_name().into() });
    };
    let mut tables = Vec::new();
    for table in &document.tables {
        if !Path::new(&table.name).is_absolute() {
            let (line, name) = (table.line, table.name.clone());
            return Err(FileError::RelativePoint { path: path.clone(), line, name });
        }
        tables.push((table, checked(command, rules, path, &table.entries)?));
    }
    let (table, mut own) = selected(path, tables, (line, directory))?;
    let is_own = |setting: &Setting| own.settings.iter().any(|one| one.id == setting.id);
    let mut settings: Vec<Setting> = all.settings.into_iter().filter(|one| !is_own(one)).collect();
    settings.append(&mut own.settings);
    // The command line has the word for the mount point as its caller wrote it.
    let point = line.positionals.last().cloned().unwrap_or_else(|| table.name.clone().into());
    Ok(Contribution { settings, source: own.source.or(all.source), point: Some(point) })
}

/// Returns the table of the mount point that a command line names, or the only one.
fn selected<'a>(
    path: &Path,
    mut tables: Vec<(&'a Table, Contribution)>,
    (line, directory): (&Line, &Path),
) -> Result<(&'a Table, Contribution), FileError> {
    let there = tables.iter().map(|(table, _)| format!("{:?}", table.name)).collect::<Vec<_>>().join(", ");
    let failed = |reason| Err(FileError::Point { path: path.to_owned(), reason });
    let Some(point) = line.positionals.last() else {
        return match tables.len() {
            1 => Ok(tables.remove(0)),
            0 => failed("no mount point is there: add a table, such as [\"/mnt/rfs\"]".into()),
            _ => failed(format!("there are several mount points: name one of {there} on the command line")),
        };
    };
    let wanted: PathBuf = directory.join(point).components().collect();
    match tables.iter().position(|(table, _)| Path::new(&table.name) == wanted) {
        Some(at) => Ok(tables.swap_remove(at)),
        None if there.is_empty() => failed(format!("no mount point is there: add a table [{wanted:?}]")),
        None => failed(format!("no table for {wanted:?}: add [{wanted:?}], or name one of {there}")),
    }
}

/// Checks entries, and returns their contribution.
fn checked(
    command: &Command,
    rules: &Rules<'_>,
    path: &Path,
    entries: &[Entry],
) -> Result<Contribution, FileError> {
    let mut all = Contribution::default();
    for entry in entries {
        match &entry.value {
            Value::Text(text) if rules.source_key() == Some(&entry.key) => {
                all.source = Some((text.into(), entry.line));
            }
            _ => all.settings.push(check(command, rules, path, entry)?),
        }
    }
    Ok(all)
}
