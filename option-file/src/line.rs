//! The words of a command line: its options, and the other words.
//!
//! The words alone may be an incomplete command line, whose rest is in a file. So they are read
//! without the rules between options.
//!
//! No I/O, no locks, no clock.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use clap::{Arg, ArgAction, Command};

/// A command line without the name of its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The words of options, in order.
    pub(crate) options: Vec<OsString>,
    /// The identifier of each option that is known, with its last value.
    pub(crate) given: BTreeMap<String, OsString>,
    /// The words that belong to no option.
    pub(crate) positionals: Vec<OsString>,
}

impl Line {
    /// Reads the words of a command line.
    pub(crate) fn read(command: &Command, words: &[OsString]) -> Line {
        let mut line = Line::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            if text == "--" {
                line.positionals.extend(words.cloned());
                break;
            }
            let Some(arg) = text.starts_with('-').then(|| find(command, &text)) else {
                line.positionals.push(word.clone());
                continue;
            };
            line.options.push(word.clone());
            let Some(arg) = arg else { continue };
            let (_, value) = text.split_once('=').unwrap_or_default();
            let mut value = OsString::from(value);
            if takes_next_word(arg)
                && !text.contains('=')
                && let Some(next) = words.next()
            {
                line.options.push(next.clone());
                value.clone_from(next);
            }
            line.given.insert(arg.get_id().to_string(), value);
        }
        line
    }

    /// Returns the value of an option.
    pub(crate) fn value(&self, id: &str) -> Option<&OsStr> {
        self.given.get(id).map(OsString::as_os_str)
    }
}

/// Returns the option of a word.
fn find<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or_default();
    command.get_arguments().find(|arg| match name.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long) || arg.get_all_aliases().unwrap_or_default().contains(&long)
        }
        // A short option with its value attached is one word.
        None => name.len() == 2 && arg.get_short() == name.chars().nth(1),
    })
}

fn takes_next_word(arg: &Arg) -> bool {
    let has_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    has_value
        && !arg.is_require_equals_set()
        && arg.get_num_args().is_none_or(|number| number.min_values() > 0)
}
