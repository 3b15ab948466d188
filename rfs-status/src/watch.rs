//! Prints the answer of a program once, or again and again, as a table or as JSON.
//!
//! # Concurrency
//! The calling thread, which sleeps between two answers. Ctrl-C ends the program.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use clap::Args;
use serde::de::DeserializeOwned;

use crate::control::AskError;

/// Options of a command that shows a status.
#[derive(Clone, Debug, Default, Args)]
pub struct ShowOptions {
    /// Print JSON instead of tables. Names of fields stay from version to version
    #[arg(long)]
    pub json: bool,

    /// Print again every SECONDS [default: 2]. Rates are those of the time in between. With --json
    /// each answer is one line
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = parse_interval
    )]
    pub watch: Option<Duration>,
}

/// Parses the interval of `--watch`.
///
/// # Errors
/// The text is no number of seconds from 0.1 to a day.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("invalid number of seconds {text:?}"))?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("it has to be between 0.1 and 86400 seconds".into()),
    }
}

/// Returns the arguments with `--watch 5` as `--watch=5`. Another argument behind `--watch` is none
/// of it.
pub fn join_interval(arguments: &[OsString]) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let number = argument.to_str().filter(|text| text.parse::<f64>().is_ok());
        match (joined.last_mut(), number) {
            (Some(last), Some(number)) if *last == "--watch" => last.push(format!("={number}")),
            _ => joined.push(argument.clone()),
        }
    }
    joined
}

/// Prints the answers of a program. `ask` returns a JSON document. `render` renders one as text,
/// with the document before.
///
/// A terminal is cleared in between. Elsewhere an empty line separates texts. The end of the reader
/// of standard output ends the command without an error.
///
/// # Errors
/// The error of `ask`.
pub fn show<S: DeserializeOwned>(
    options: &ShowOptions,
    mut ask: impl FnMut() -> Result<String, AskError>,
    render: impl Fn(&S, Option<&S>) -> String,
) -> Result<(), AskError> {
    let mut out = io::stdout();
    let clears = options.watch.is_some() && !options.json && out.is_terminal();
    let mut before: Option<S> = None;
    loop {
        let document = ask()?;
        let text = if options.json {
            json(&document, options.watch.is_some())
        } else {
            let malformed = |e: serde_json::Error| AskError::Foreign { why: e.to_string() };
            let now: S = serde_json::from_str(&document).map_err(malformed)?;
            let text = render(&now, before.as_ref());
            let separator = match (clears, &before) {
                (true, _) => CLEAR,
                (false, Some(_)) => "\n",
                (false, None) => "",
            };
            before = Some(now);
            format!("{separator}{text}")
        };
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        match options.watch {
            Some(interval) if written.is_ok() => thread::sleep(interval),
            _ => return Ok(()),
        }
    }
}

/// Moves the cursor to the first line, and clears the screen below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Returns a document on one line, or indented.
fn json(document: &str, is_line: bool) -> String {
    let indented = |value: serde_json::Value| format!("{value:#}\n");
    match serde_json::from_str(document) {
        Ok(value) if !is_line => indented(value),
        _ => format!("{document}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "x", "0", "-1", "nan", "inf", "1e9"] {
            assert!(parse_interval(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_a_number_behind_watch_is_its_interval() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, joined) in [
            ("status --watch 5 /mnt", "status --watch=5 /mnt"),
            ("status --watch /mnt", "status --watch /mnt"),
            ("status 5 --watch", "status 5 --watch"),
            ("status --watch=1 5", "status --watch=1 5"),
        ] {
            assert_eq!(join_interval(&words(line)), words(joined));
        }
    }

    #[test]
    fn json_is_indented_or_a_line() {
        assert_eq!(json("{\"a\":1}", true), "{\"a\":1}\n");
        assert_eq!(json("{\"a\":1}", false), "{\n  \"a\": 1\n}\n");
    }
}
