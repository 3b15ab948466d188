//! The entries of a TOML file, with their lines.
//!
//! No I/O, no locks, no clock.

use std::path::{Path, PathBuf};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::error::FileError;

/// The value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A flag.
    Bool(bool),
    /// A text, or the digits of a decimal number.
    Text(String),
    /// Several values.
    List(Vec<Value>),
    /// A value that no option has: its type and its text.
    Other(&'static str, String),
}

/// The type of a number that is not decimal.
pub(crate) const NOT_DECIMAL: &str = "a number that is not decimal";

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// Line of the key, counted from 1.
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// A table of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// Line of the name, counted from 1.
    pub(crate) line: usize,
    pub(crate) entries: Vec<Entry>,
}

/// A file: the entries before its first table, and the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) path: PathBuf,
    pub(crate) entries: Vec<Entry>,
    pub(crate) tables: Vec<Table>,
}

impl Document {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The text is not TOML.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Document, FileError> {
        let parsed = DeTable::parse(text).map_err(|e| FileError::Syntax {
            path: path.to_owned(),
            line: line_at(text, e.span().map_or(0, |span| span.start)),
            reason: e.message().to_owned(),
        })?;
        let mut document = Document { path: path.to_owned(), entries: Vec::new(), tables: Vec::new() };
        for (key, value) in in_order(parsed.get_ref()) {
            let (name, line) = (key.get_ref().to_string(), line_at(text, key.span().start));
            match value.get_ref() {
                DeValue::Table(table) => {
                    document.tables.push(Table { name, line, entries: entries(text, table) });
                }
                other => document.entries.push(Entry { key: name, line, value: value_of(other) }),
            }
        }
        Ok(document)
    }
}

/// A key and its value, with their places in the text.
type Spot<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// Returns the entries of a table in the order of the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Spot<'a, 'i>> {
    let mut spots: Vec<_> = table.iter().collect();
    spots.sort_by_key(|(key, _)| key.span().start);
    spots
}

fn entries(text: &str, table: &DeTable<'_>) -> Vec<Entry> {
    let entry = |(key, value): Spot<'_, '_>| Entry {
        key: key.get_ref().to_string(),
        line: line_at(text, key.span().start),
        value: value_of(value.get_ref()),
    };
    in_order(table).into_iter().map(entry).collect()
}

fn value_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::Boolean(is_set) => Value::Bool(*is_set),
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Value::Text(number.as_str().to_owned()),
        // Its digits mean one number to TOML, and may mean another one to the option.
        DeValue::Integer(number) => Value::Other(NOT_DECIMAL, number.as_str().to_owned()),
        DeValue::Float(number) => Value::Text(number.as_str().to_owned()),
        DeValue::Array(list) => Value::List(list.iter().map(|one| value_of(one.get_ref())).collect()),
        DeValue::Datetime(date) => Value::Other("a date", date.to_string()),
        DeValue::Table(_) => Value::Other("a table", String::new()),
    }
}

/// Returns the line of a byte of a text, counted from 1.
fn line_at(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Document, FileError> {
        Document::parse(Path::new("/etc/x.toml"), text)
    }

    #[test]
    fn entries_have_their_lines_and_the_order_of_the_file() {
        let text = "# first\nmemory = \"4G\"\nlease = 20\n\nchecksum = true\nlisten = [\n \"a\",\n \"b\"]\n\
                    [\"/mnt\"]\nthreads = 1_0\n";
        let document = parse(text).unwrap();
        let lines: Vec<_> = document.entries.iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(lines, [("memory", 2), ("lease", 3), ("checksum", 5), ("listen", 6)]);
        let text = |text: &str| Value::Text(text.into());
        let values: Vec<_> = document.entries.iter().map(|entry| entry.value.clone()).collect();
        let list = Value::List(vec![text("a"), text("b")]);
        assert_eq!(values, [text("4G"), text("20"), Value::Bool(true), list]);
        let [table] = &document.tables[..] else { panic!("{document:?}") };
        assert_eq!((table.name.as_str(), table.line), ("/mnt", 9));
        assert_eq!((&table.entries[0].value, table.entries[0].line), (&text("10"), 10));
    }

    /// 0o660 is 432 for TOML, and an option that reads octal digits would take 432 for 0o432.
    #[test]
    fn a_number_that_is_not_decimal_is_not_taken_for_its_digits() {
        let document = parse("socket-mode = 0o660\nlease = 0x10").unwrap();
        for entry in document.entries {
            assert!(matches!(entry.value, Value::Other("a number that is not decimal", _)), "{entry:?}");
        }
    }

    #[test]
    fn a_mistake_of_syntax_has_its_line() {
        for (text, line) in [("memory = \n", 1), ("a = 1\nb == 2\n", 2), ("a = 1\n\na = 2\n", 3)] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("/etc/x.toml:{line}: ")), "{error}");
        }
    }
}
