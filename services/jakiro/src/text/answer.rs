//! Carries requests out, and writes their answers.
//!
//! A value goes from the memory of its partition to the output, in one copy.
//!
//! # Concurrency
//! Takes the lock of the partition of a key for each request.

use super::{plan::Step, request::Request};
use crate::store::{Item, Key, Partition, Store, StoreError, StoreOutcome};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A retrieval: the answer is in the output, if there is one.
    Value,
    Done,
    Number(u64),
    NotFound,
    NotStored,
    OtherVersion,
    Error(StoreError),
}

/// Carries out the request of a step, and appends the answer to the output.
pub(super) fn write(store: &Store, step: Step, request: &Request<'_>, output: &mut Vec<u8>) {
    let has_version = step == Step::Value { has_version: true };
    let run = |partition: &mut Partition, key: &Key<'_>, now| {
        execute(partition, key, now, request, has_version, output)
    };
    // The parser takes no key that is too long.
    let outcome = store.with_key(request.key(), run).unwrap_or(Outcome::NotFound);
    match step {
        Step::Say(text) | Step::Instead(text) => output.extend_from_slice(text.as_bytes()),
        Step::Line(done) => write_line(output, outcome, done),
        Step::Silence | Step::Value { .. } => {}
    }
}

fn execute(
    partition: &mut Partition,
    key: &Key<'_>,
    now: u64,
    request: &Request<'_>,
    has_version: bool,
    output: &mut Vec<u8>,
) -> Outcome {
    match *request {
        Request::Get { expires, .. } => {
            let item = match expires {
                Some(expires) => partition.get_and_touch(key, expires, now),
                None => partition.get(key, now),
            };
            if let Some(item) = item {
                write_value(output, key.bytes(), &item, has_version);
            }
            Outcome::Value
        }
        Request::Store { change, value, .. } => match partition.store(key, &change, value, now) {
            Ok(StoreOutcome::Stored(_)) => Outcome::Done,
            Ok(StoreOutcome::NotStored) => Outcome::NotStored,
            Ok(StoreOutcome::OtherVersion) => Outcome::OtherVersion,
            Ok(StoreOutcome::NotFound) => Outcome::NotFound,
            Err(error) => Outcome::Error(error),
        },
        Request::Count { delta, .. } => match partition.change_number(key, delta, now) {
            Ok(Some(number)) => Outcome::Number(number),
            Ok(None) => Outcome::NotFound,
            Err(error) => Outcome::Error(error),
        },
        Request::Touch { expires, .. } => found(partition.touch(key, expires, now)),
        Request::Delete { .. } => found(partition.delete(key, now)),
    }
}

fn found(is_found: bool) -> Outcome {
    if is_found { Outcome::Done } else { Outcome::NotFound }
}

fn write_value(output: &mut Vec<u8>, key: &[u8], item: &Item<'_>, has_version: bool) {
    // The longest head has 308 bytes.
    output.reserve(item.value_len() + 320);
    output.extend_from_slice(b"VALUE ");
    output.extend_from_slice(key);
    let mut push = |number: u64| {
        output.push(b' ');
        output.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    };
    push(item.flags().into());
    push(item.value_len() as u64);
    if has_version {
        push(item.version());
    }
    output.extend_from_slice(b"\r\n");
    item.append_to(output);
    output.extend_from_slice(b"\r\n");
}

/// Writes the line of an outcome; `done` is the line of success.
fn write_line(output: &mut Vec<u8>, outcome: Outcome, done: &'static str) {
    let text = match outcome {
        Outcome::Done | Outcome::Value => done,
        Outcome::Number(number) => {
            output.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            "\r\n"
        }
        Outcome::NotFound => "NOT_FOUND\r\n",
        Outcome::NotStored => "NOT_STORED\r\n",
        Outcome::OtherVersion => "EXISTS\r\n",
        Outcome::Error(StoreError::ValueTooLong) => "SERVER_ERROR object too large for cache\r\n",
        Outcome::Error(StoreError::Full) => "SERVER_ERROR out of memory storing object\r\n",
        Outcome::Error(StoreError::NotANumber) => {
            "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
        }
    };
    output.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Change, Delta, StoreMode, StoreOptions};

    fn put(mode: StoreMode, value: &'static [u8]) -> Request<'static> {
        Request::Store { key: b"key", change: Change { flags: 7, ..Change::new(mode) }, value }
    }

    #[test]
    fn requests_have_their_answers() {
        let store = Store::new(&StoreOptions::new(4 << 20)).expect("a store");
        let line = Step::Line("STORED\r\n");
        let get = Request::Get { key: b"key", expires: None };
        let value = |has_version| Step::Value { has_version };
        let count = Request::Count { key: b"key", delta: Delta::Up(9) };
        let long = vec![b'x'; store.max_value()].leak();
        for (step, request, wanted) in [
            (value(false), get, ""),
            (line, put(StoreMode::Replace, b"x"), "NOT_STORED\r\n"),
            (line, put(StoreMode::Append, b"x"), "NOT_STORED\r\n"),
            (line, put(StoreMode::CompareVersion(1), b"x"), "NOT_FOUND\r\n"),
            (line, Request::Touch { key: b"key", expires: 1 }, "NOT_FOUND\r\n"),
            (line, Request::Delete { key: b"key" }, "NOT_FOUND\r\n"),
            (line, count, "NOT_FOUND\r\n"),
            (line, put(StoreMode::Set, b"a\r\nb"), "STORED\r\n"),
            (value(false), get, "VALUE key 7 4\r\na\r\nb\r\n"),
            (
                value(false),
                Request::Get { key: b"key", expires: Some(u64::MAX) },
                "VALUE key 7 4\r\na\r\nb\r\n",
            ),
            (value(true), get, "VALUE key 7 4 1\r\na\r\nb\r\n"),
            (line, count, "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
            (line, put(StoreMode::Add, b"x"), "NOT_STORED\r\n"),
            (line, put(StoreMode::CompareVersion(9), b"x"), "EXISTS\r\n"),
            (line, put(StoreMode::Append, long), "SERVER_ERROR object too large for cache\r\n"),
            (Step::Silence, put(StoreMode::CompareVersion(1), b"1"), ""),
            (line, count, "10\r\n"),
            (Step::Instead("other\r\n"), Request::Delete { key: b"key" }, "other\r\n"),
            (value(true), get, ""),
            (line, put(StoreMode::Set, b"x"), "STORED\r\n"),
            (value(false), Request::Get { key: b"key", expires: Some(0) }, "VALUE key 7 1\r\nx\r\n"),
            (value(false), get, ""),
        ] {
            let mut output = Vec::new();
            write(&store, step, &request, &mut output);
            assert_eq!(String::from_utf8_lossy(&output), wanted, "{request:?}");
        }
    }
}
