//! Command lines: words, and the command that they form.
//!
//! A line has no line break any more. Words are separated by spaces; other bytes, also control
//! characters, are parts of words.
//!
//! # Concurrency
//! Pure functions.

use super::{
    command::{Command, Fault, Retrieval},
    number::{parse_i64, parse_u32},
};
use crate::store::{Delta, MAX_KEY, StoreMode, parse_u64};

/// Words of the longest command, `cas` with `noreply`.
const MAX_WORDS: usize = 7;
/// Longest value that a client may announce, in bytes. The server drops values above its own limit.
const MAX_ANNOUNCED: u64 = i32::MAX as u64 - 2;

/// The meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A command without a value.
    Whole(Command<'a>),
    /// A retrieval. Its keys are the words from a place of the line on, and none is too long.
    Keys { retrieval: Retrieval, keys: usize },
    /// A command whose value of `len` bytes follows.
    Value { mode: StoreMode, key: &'a [u8], flags: u32, exptime: i64, len: usize, quiet: bool },
}

/// The first words of a line.
struct Words<'a> {
    words: [&'a [u8]; MAX_WORDS],
    /// Number of words, also if there are more than fit.
    count: usize,
    last: &'a [u8],
}

impl<'a> Words<'a> {
    fn of(line: &'a [u8]) -> Words<'a> {
        let mut words = Words { words: [b""; MAX_WORDS], count: 0, last: b"" };
        for word in line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
            if let Some(place) = words.words.get_mut(words.count) {
                *place = word;
            }
            words.count += 1;
            words.last = word;
        }
        words
    }

    fn is_quiet(&self) -> bool {
        self.last == b"noreply"
    }

    fn key(&self) -> Option<&'a [u8]> {
        Some(self.words[1]).filter(|key| key.len() <= MAX_KEY)
    }
}

/// Returns the first word of a line, and the place behind it.
pub(super) fn first_word(line: &[u8]) -> (&[u8], usize) {
    let begin = line.iter().position(|byte| *byte != b' ').unwrap_or(line.len());
    let len = line[begin..].iter().position(|byte| *byte == b' ').unwrap_or(line.len() - begin);
    (&line[begin..begin + len], begin + len)
}

/// Parses a line.
pub(super) fn parse(line: &[u8]) -> Line<'_> {
    let (name, keys) = first_word(line);
    match name {
        b"get" => return parse_keys(line, Retrieval { has_version: false, exptime: None }, keys),
        b"gets" => return parse_keys(line, Retrieval { has_version: true, exptime: None }, keys),
        b"gat" => return parse_touching(line, false, keys),
        b"gats" => return parse_touching(line, true, keys),
        _ => {}
    }
    let words = Words::of(line);
    match name {
        b"set" => parse_store(&words, StoreMode::Set, 5),
        b"add" => parse_store(&words, StoreMode::Add, 5),
        b"replace" => parse_store(&words, StoreMode::Replace, 5),
        b"append" => parse_store(&words, StoreMode::Append, 5),
        b"prepend" => parse_store(&words, StoreMode::Prepend, 5),
        b"cas" => parse_store(&words, StoreMode::CompareVersion(0), 6),
        _ => Line::Whole(parse_other(name, &words)),
    }
}

fn malformed<'a>(fault: Fault, quiet: bool) -> Command<'a> {
    Command::Malformed { fault, quiet }
}

/// Checks the keys of a retrieval. A key that is too long spoils all of them.
fn parse_keys(line: &[u8], retrieval: Retrieval, keys: usize) -> Line<'_> {
    let mut words = line[keys..].split(|byte| *byte == b' ').filter(|word| !word.is_empty()).peekable();
    // `gat` without keys has found all keys that it asks for.
    if words.peek().is_none() && retrieval.exptime.is_none() {
        return Line::Whole(malformed(Fault::Unknown, false));
    }
    if words.any(|key| key.len() > MAX_KEY) {
        return Line::Whole(malformed(Fault::Format, false));
    }
    Line::Keys { retrieval, keys }
}

fn parse_touching(line: &[u8], has_version: bool, exptime: usize) -> Line<'_> {
    let (word, len) = first_word(&line[exptime..]);
    if word.is_empty() {
        return Line::Whole(malformed(Fault::Unknown, false));
    }
    let Some(seconds) = parse_i64(word) else {
        return Line::Whole(malformed(Fault::Exptime, false));
    };
    parse_keys(line, Retrieval { has_version, exptime: Some(seconds) }, exptime + len)
}

fn parse_store<'a>(words: &Words<'a>, mode: StoreMode, count: usize) -> Line<'a> {
    if words.count != count && words.count != count + 1 {
        return Line::Whole(malformed(Fault::Unknown, false));
    }
    let quiet = words.is_quiet();
    let [_, _, flags, exptime, len, version, _] = words.words;
    let mode = match mode {
        StoreMode::CompareVersion(_) => parse_u64(version).map(StoreMode::CompareVersion),
        mode => Some(mode),
    };
    let len = parse_u64(len).filter(|len| *len <= MAX_ANNOUNCED);
    match (mode, words.key(), parse_u32(flags), parse_i64(exptime), len) {
        (Some(mode), Some(key), Some(flags), Some(exptime), Some(len)) => {
            Line::Value { mode, key, flags, exptime, len: len as usize, quiet }
        }
        _ => Line::Whole(malformed(Fault::Format, quiet)),
    }
}

/// Parses a command that has no value and is no retrieval.
fn parse_other<'a>(name: &'a [u8], words: &Words<'a>) -> Command<'a> {
    let quiet = words.is_quiet();
    let counts = match name {
        b"delete" => 2..=4,
        b"incr" | b"decr" | b"touch" => 3..=4,
        b"flush_all" => 1..=3,
        b"verbosity" => 2..=3,
        b"version" | b"quit" => 1..=1,
        b"stats" => 1..=usize::MAX,
        // A browser on a page of another site sends such a line.
        _ if words.last.starts_with(b"HTTP/") => return Command::Stray(None),
        _ => return malformed(Fault::Unknown, false),
    };
    if !counts.contains(&words.count) {
        return malformed(Fault::Unknown, false);
    }
    match name {
        b"delete" => parse_delete(words),
        b"incr" => parse_count(words, Delta::Up),
        b"decr" => parse_count(words, Delta::Down),
        b"touch" => match (words.key(), parse_i64(words.words[2])) {
            (None, _) => malformed(Fault::Format, quiet),
            (_, None) => malformed(Fault::Exptime, quiet),
            (Some(key), Some(exptime)) => Command::Touch { key, exptime, quiet },
        },
        b"flush_all" if words.count == 1 + usize::from(quiet) => Command::FlushAll { exptime: 0, quiet },
        b"flush_all" => match parse_i64(words.words[1]) {
            Some(exptime) => Command::FlushAll { exptime, quiet },
            None => malformed(Fault::Exptime, quiet),
        },
        b"verbosity" if parse_u32(words.words[1]).is_none() => malformed(Fault::Format, quiet),
        b"verbosity" => Command::Verbosity { quiet },
        b"stats" => Command::Stats(Some(words.words[1]).filter(|word| !word.is_empty())),
        b"version" => Command::Version,
        _ => Command::Quit,
    }
}

/// Parses `delete KEY [0] [noreply]`; old clients send the 0.
fn parse_delete<'a>(words: &Words<'a>) -> Command<'a> {
    let quiet = words.count > 2 && words.is_quiet();
    let has_zero = words.count > 2 && words.words[2] == b"0";
    if words.count != 2 + usize::from(quiet) + usize::from(has_zero) {
        return malformed(Fault::DeleteUsage, quiet);
    }
    match words.key() {
        Some(key) => Command::Delete { key, quiet },
        None => malformed(Fault::Format, quiet),
    }
}

fn parse_count<'a>(words: &Words<'a>, delta: fn(u64) -> Delta) -> Command<'a> {
    let quiet = words.is_quiet();
    match (words.key(), parse_u64(words.words[2])) {
        (None, _) => malformed(Fault::Format, quiet),
        (_, None) => malformed(Fault::Delta, quiet),
        (Some(key), Some(number)) => Command::Count { key, delta: delta(number), quiet },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> (Fault, bool) {
        match parse(line.as_bytes()) {
            Line::Whole(Command::Malformed { fault, quiet }) => (fault, quiet),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn wrong_numbers_of_words_are_no_commands() {
        for line in [
            "",
            " ",
            "x",
            "nonsense",
            "GET a",
            "get",
            "gets ",
            "gat",
            "set a 0 0",
            "set a 0 0 1 noreply x",
            "cas a 0 0 1",
            "cas a 0 0 1 2 noreply x",
            "incr a",
            "incr a 1 noreply x",
            "touch a",
            "delete",
            "delete a 0 noreply x",
            "flush_all 1 noreply x",
            "verbosity",
            "verbosity 1 noreply x",
            "mg a",
            "version noreply",
            "quit now",
            "mn",
        ] {
            assert_eq!(fault(line), (Fault::Unknown, false), "{line}");
        }
    }

    #[test]
    fn wrong_words_are_named() {
        let long = "k".repeat(MAX_KEY + 1);
        for (line, wanted) in [
            (format!("get a {long} b"), (Fault::Format, false)),
            (format!("set {long} 0 0 1 noreply"), (Fault::Format, true)),
            (format!("delete {long}"), (Fault::Format, false)),
            (format!("incr {long} x"), (Fault::Format, false)),
            (format!("touch {long} x"), (Fault::Format, false)),
            ("set a x 0 1".into(), (Fault::Format, false)),
            ("set a -1 0 1".into(), (Fault::Format, false)),
            ("set a 4294967296 0 1".into(), (Fault::Format, false)),
            ("set a 0 x 1".into(), (Fault::Format, false)),
            ("set a 0 0 -1".into(), (Fault::Format, false)),
            ("set a 0 0 2147483646".into(), (Fault::Format, false)),
            ("cas a 0 0 1 x noreply".into(), (Fault::Format, true)),
            ("gat x a".into(), (Fault::Exptime, false)),
            ("touch a x noreply".into(), (Fault::Exptime, true)),
            ("flush_all x".into(), (Fault::Exptime, false)),
            ("incr a -1".into(), (Fault::Delta, false)),
            ("decr a 18446744073709551616".into(), (Fault::Delta, false)),
            ("delete a 1".into(), (Fault::DeleteUsage, false)),
            ("delete a 5 noreply".into(), (Fault::DeleteUsage, true)),
            ("delete a 0 0".into(), (Fault::DeleteUsage, false)),
            ("verbosity x".into(), (Fault::Format, false)),
        ] {
            assert_eq!(fault(&line), wanted, "{line}");
        }
    }

    #[test]
    fn commands_have_their_words() {
        let (key, quiet) = (&b"a"[..], false);
        for (line, wanted) in [
            ("delete a", Command::Delete { key, quiet }),
            ("delete a 0", Command::Delete { key, quiet }),
            ("delete a 0 noreply", Command::Delete { key, quiet: true }),
            ("delete a noreply", Command::Delete { key, quiet: true }),
            (" incr  a 5 ", Command::Count { key, delta: Delta::Up(5), quiet }),
            ("decr a 5 noreply", Command::Count { key, delta: Delta::Down(5), quiet: true }),
            ("touch a -1", Command::Touch { key, exptime: -1, quiet }),
            ("flush_all", Command::FlushAll { exptime: 0, quiet }),
            ("flush_all noreply", Command::FlushAll { exptime: 0, quiet: true }),
            ("flush_all 9", Command::FlushAll { exptime: 9, quiet }),
            ("flush_all 9 noreply", Command::FlushAll { exptime: 9, quiet: true }),
            ("stats", Command::Stats(None)),
            ("stats items", Command::Stats(Some(b"items"))),
            ("version", Command::Version),
            ("verbosity 1", Command::Verbosity { quiet }),
            ("quit", Command::Quit),
            ("GET / HTTP/1.1", Command::Stray(None)),
        ] {
            assert_eq!(parse(line.as_bytes()), Line::Whole(wanted), "{line}");
        }
        let line = Line::Value {
            mode: StoreMode::CompareVersion(7),
            key,
            flags: 1,
            exptime: 2,
            len: 3,
            quiet: true,
        };
        assert_eq!(parse(b"cas a 1 2 3 7 noreply"), line);
        let line = Line::Value { mode: StoreMode::Add, key, flags: 1, exptime: -2, len: 3, quiet };
        assert_eq!(parse(b"add a 1 -2 3 other"), line);
        let retrieval = Retrieval { has_version: true, exptime: Some(9) };
        assert_eq!(parse(b"gats 9 a b"), Line::Keys { retrieval, keys: 6 });
    }
}
