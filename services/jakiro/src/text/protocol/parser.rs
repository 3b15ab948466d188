//! Cuts the bytes of a connection into commands.
//!
//! The caller keeps the bytes that are not used yet, and hands them over again with more bytes. The
//! commands do not depend on where the input is split. The parser keeps no bytes of the input.
//!
//! # Concurrency
//! A plain value of one connection.

use memchr::memchr;

use super::{
    command::{Command, Fault, Retrieval, Store},
    line::{self, Line},
};
use crate::store::MAX_VALUE;

/// Longest line of a command that is no retrieval, in bytes.
pub const MAX_LINE: usize = 2048;
/// Longest line of a retrieval, in bytes.
pub const MAX_GET_LINE: usize = 1 << 20;

/// The place of a connection in the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parser {
    state: State,
    /// Bytes of the input that are known to have no line break.
    searched: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// At the begin of a line.
    #[default]
    Line,
    /// Inside the line of a retrieval, of which `left` bytes are left with the line break.
    Keys { retrieval: Retrieval, left: usize },
    /// Inside a value that is dropped.
    Drop { left: usize },
    /// After a command that ends the connection: the rest of the input is dropped.
    End,
}

/// A step of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Bytes of the input that the step uses up.
    pub used: usize,
    /// The command, or the least length that the unused input must have for the next one.
    pub outcome: Result<Command<'a>, usize>,
}

impl<'a> Progress<'a> {
    fn command(used: usize, command: Command<'a>) -> Progress<'a> {
        Progress { used, outcome: Ok(command) }
    }

    fn more(used: usize, needed: usize) -> Progress<'a> {
        Progress { used, outcome: Err(needed) }
    }
}

impl Parser {
    /// Takes the next command from the begin of the input.
    ///
    /// `max_value` is the length in bytes from which values are dropped, at most [`MAX_VALUE`]. If
    /// it shrinks while a value is incomplete, the parser drops that value.
    pub fn next<'a>(&mut self, input: &'a [u8], max_value: usize) -> Progress<'a> {
        match self.state {
            State::Line => self.line(input, max_value.min(MAX_VALUE)),
            State::Keys { retrieval, left } => self.key(input, retrieval, left),
            State::Drop { left } => self.drop_value(input, left, max_value),
            State::End => Progress::more(input.len(), 1),
        }
    }

    /// Returns true if the connection has ended: the parser drops all further input.
    pub fn is_done(&self) -> bool {
        self.state == State::End
    }

    fn end<'a>(&mut self, input: &[u8], command: Command<'a>) -> Progress<'a> {
        self.state = State::End;
        Progress::command(input.len(), command)
    }

    /// Takes the command of a line, with its value.
    fn line<'a>(&mut self, input: &'a [u8], max_value: usize) -> Progress<'a> {
        let from = self.searched.min(input.len());
        let Some(place) = memchr(b'\n', &input[from..]) else {
            self.searched = input.len();
            if is_too_long(input, input.len()) {
                return self.end(input, Command::Stray(Some(Fault::LineLength)));
            }
            return Progress::more(0, input.len() + 1);
        };
        let place = from + place;
        self.searched = 0;
        if is_too_long(input, place) {
            return self.end(input, Command::Stray(Some(Fault::LineLength)));
        }
        let text = &input[..place];
        match line::parse(text.strip_suffix(b"\r").unwrap_or(text)) {
            Line::Whole(command @ (Command::Quit | Command::Stray(_))) => self.end(input, command),
            Line::Whole(command) => Progress::command(place + 1, command),
            Line::Keys { retrieval, keys } => {
                self.state = State::Keys { retrieval, left: place + 1 - keys };
                let mut progress = self.next(&input[keys..], max_value);
                progress.used += keys;
                progress
            }
            Line::Value { mode, key, len, quiet, .. } if len > max_value => {
                self.state = State::Drop { left: len + 2 };
                Progress::command(place + 1, Command::TooLong { key, mode, quiet })
            }
            Line::Value { mode, key, flags, exptime, len, quiet } => {
                let (begin, end) = (place + 1, place + 1 + len);
                let Some(line_break) = input.get(end..end + 2) else {
                    return Progress::more(0, end + 2);
                };
                let value = &input[begin..end];
                let command = match line_break {
                    b"\r\n" => Command::Store(Store { mode, key, flags, exptime, value, quiet }),
                    _ => Command::Malformed { fault: Fault::Chunk, quiet },
                };
                Progress::command(end + 2, command)
            }
        }
    }

    /// Takes the next key of a retrieval.
    fn key<'a>(&mut self, input: &'a [u8], retrieval: Retrieval, left: usize) -> Progress<'a> {
        let Some(rest) = input.get(..left) else {
            return Progress::more(0, left);
        };
        let text = rest.strip_suffix(b"\n").unwrap_or(rest);
        let (key, used) = line::first_word(text.strip_suffix(b"\r").unwrap_or(text));
        if key.is_empty() {
            self.state = State::Line;
            return Progress::command(left, Command::EndOfKeys);
        }
        self.state = State::Keys { retrieval, left: left - used };
        Progress::command(used, Command::Key { key, retrieval })
    }

    fn drop_value<'a>(&mut self, input: &'a [u8], left: usize, max_value: usize) -> Progress<'a> {
        if left > input.len() {
            self.state = State::Drop { left: left - input.len() };
            return Progress::more(input.len(), 1);
        }
        self.state = State::Line;
        let mut progress = self.line(&input[left..], max_value.min(MAX_VALUE));
        progress.used += left;
        progress
    }
}

/// Returns true if a line of at least `len` bytes is longer than its command may be.
fn is_too_long(input: &[u8], len: usize) -> bool {
    if len <= MAX_LINE {
        return false;
    }
    let (name, _) = line::first_word(&input[..MAX_LINE]);
    len > MAX_GET_LINE || !matches!(name, b"get" | b"gets" | b"gat" | b"gats")
}

#[cfg(test)]
mod tests;
