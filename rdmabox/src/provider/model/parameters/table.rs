//! Reads the entries of a file of constants, and reports the first fault.
//!
//! No I/O, no locks, no clock.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use super::{Basis, Constant, ParameterError};

/// The entries that are not read yet, and the constants that are.
pub(super) struct Tables {
    left: Table,
    constants: Vec<Constant>,
}

fn invalid(key: &str, value: impl ToString, next: impl Into<String>) -> ParameterError {
    ParameterError::Invalid { key: key.into(), value: value.to_string(), next: next.into() }
}

impl Tables {
    pub(super) fn parse(file: &str, text: &str) -> Result<Tables, ParameterError> {
        let left = text.parse().map_err(|e: toml::de::Error| {
            let fault = e.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            ParameterError::Syntax { file: file.into(), fault }
        })?;
        Ok(Tables { left, constants: Vec::new() })
    }

    /// Reads and removes the constant `key` of `table`, which must lie in `range`.
    pub(super) fn take(
        &mut self,
        table: &str,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, ParameterError> {
        let name = format!("{table}.{key}");
        let missing = || invalid(&name, "nothing", "add { value = N, basis = \"...\", source = \"...\" }");
        let entry = self.left.get_mut(table).and_then(Value::as_table_mut).and_then(|t| t.remove(key));
        let entry = entry.ok_or_else(missing)?;
        const PARTS: [&str; 3] = ["value", "basis", "source"];
        let mut parts = entry.as_table().into_iter().flatten();
        if let Some((part, value)) = parts.find(|(part, _)| !PARTS.contains(&part.as_str())) {
            let part = format!("{name}.{part}");
            return Err(invalid(&part, value, "remove it: an entry has value, basis and source"));
        }
        let text = |part: &str| entry.get(part).and_then(Value::as_str).unwrap_or_default().to_owned();
        let value = match entry.get("value") {
            Some(Value::Integer(value)) => *value,
            Some(other) => return Err(invalid(&name, other, "give a whole number without quotes")),
            None => return Err(missing()),
        };
        let value = u64::try_from(value)
            .ok()
            .filter(|value| range.contains(value))
            .ok_or_else(|| invalid(&name, value, format!("choose {} to {}", range.start(), range.end())))?;
        let basis = match text("basis").as_str() {
            "measured" => Basis::Measured,
            "derived" => Basis::Derived,
            "fitted" => Basis::Fitted,
            "assumed" => Basis::Assumed,
            other => {
                let key = format!("{name}.basis");
                return Err(invalid(&key, other, "choose measured, derived, fitted or assumed"));
            }
        };
        let source = text("source");
        if source.is_empty() {
            return Err(invalid(&format!("{name}.source"), "\"\"", "name the publication or the reason"));
        }
        self.constants.push(Constant { key: name, value, basis, source });
        Ok(value)
    }

    /// Returns the card's name and the constants. Fails if an entry is left.
    pub(super) fn finish(mut self) -> Result<(String, Vec<Constant>), ParameterError> {
        let name = match self.left.remove("name") {
            Some(Value::String(name)) if !name.is_empty() => name,
            Some(other) => return Err(invalid("name", other, "give a text in quotes")),
            None => return Err(invalid("name", "nothing", "add name = \"...\"")),
        };
        let known =
            |table: &str| self.constants.iter().any(|constant| constant.key.split('.').next() == Some(table));
        for (table, value) in &self.left {
            match value.as_table().and_then(|entries| entries.iter().next()) {
                Some((key, value)) => {
                    return Err(invalid(
                        &format!("{table}.{key}"),
                        value,
                        "remove it: the model has no such key",
                    ));
                }
                None if value.is_table() && known(table) => {}
                None => return Err(invalid(table, value, "remove it: the model has no such table")),
            }
        }
        Ok((name, self.constants))
    }
}
