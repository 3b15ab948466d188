//! The constants of a modelled card, and the files that hold them.
//!
//! A file names a value, a basis and a source for each constant. So a reader sees which constants
//! are measured and which are fitted. `table` reads the entries and reports faults.
//!
//! # Concurrency
//! No locks, no clock. Only [`CardParameters::open`] reads a file.

mod table;

use std::path::Path;

use self::table::Tables;

/// The file of the card of the RDMAbox paper.
const CX3: &str = include_str!("cx3.toml");

/// The source of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Basis {
    /// Published, as stated.
    Measured,
    /// Computed from published figures.
    Derived,
    /// Chosen so that figures of a paper come out.
    Fitted,
    /// Typical of the hardware, without a publication.
    Assumed,
}

/// A constant, with its basis and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Constant {
    /// Its table and key, as `wire.latency_ns`.
    pub key: String,
    /// Its value, in the unit that the key ends with.
    pub value: u64,
    /// Its source.
    pub basis: Basis,
    /// The publication or the reason.
    pub source: String,
}

/// Error of a file of constants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// No file could be read, and no card has the name.
    #[error("cannot read {path}: {source}; name a file, or the card cx3")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The text is not TOML.
    #[error("{file} is not TOML: {fault}")]
    Syntax {
        /// The path, or "the text".
        file: String,
        /// The fault and its place.
        fault: String,
    },
    /// A constant is missing, unknown or invalid.
    #[error("{key} = {value}: {next}")]
    Invalid {
        /// The table and the key.
        key: String,
        /// The value as the file has it.
        value: String,
        /// How to mend it.
        next: String,
    },
}

macro_rules! parameters {
    ($($table:ident { $($key:ident: $range:expr),+ $(,)? })+) => {
        /// The constants of a card. Times are nanoseconds of model time.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Values {
            $(pub(crate) $table: $table,)+
        }

        $(
            #[allow(non_camel_case_types)]
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub(crate) struct $table {
                $(pub(crate) $key: u64,)+
            }
        )+

        impl Values {
            fn read(tables: &mut Tables) -> Result<Values, ParameterError> {
                Ok(Values {
                    $($table: $table {
                        $($key: tables.take(stringify!($table), stringify!($key), $range)?,)+
                    },)+
                })
            }
        }
    };
}

/// The longest time of a constant: one second.
const LONG: u64 = 1_000_000_000;

parameters! {
    doorbell { cpu_ns: 0..=LONG, card_ns: 0..=LONG }
    fetch { latency_ns: 0..=LONG, request_ns: 0..=LONG }
    work_request_cache { entries: 1..=LONG, miss_ns: 0..=LONG }
    context_cache { entries: 1..=LONG, miss_ns: 0..=LONG }
    translation_cache { bytes: 4096..=1 << 40, miss_ns: 0..=LONG }
    units { count: 1..=1024, request_ns: 0..=LONG }
    requester { request_ns: 0..=LONG }
    responder { request_ns: 0..=LONG }
    wire { megabits: 1..=100_000_000, latency_ns: 0..=LONG, packet_bytes: 64..=65_536, header_bytes: 0..=1024 }
    completion { card_ns: 0..=LONG }
    copy { request_ns: 0..=LONG, page_ns: 0..=LONG }
    registration { request_ns: 0..=LONG, page_ns: 0..=LONG }
    host {
        processors: 1..=65_536,
        request_ns: 0..=LONG,
        post_ns: 0..=LONG,
        poll_ns: 1..=LONG,
        completion_ns: 0..=LONG,
        interrupt_ns: 0..=LONG,
    }
}

/// The constants of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardParameters {
    name: String,
    constants: Vec<Constant>,
    pub(crate) values: Values,
}

impl CardParameters {
    /// Returns the card of the RDMAbox paper, a Mellanox ConnectX-3.
    pub fn cx3() -> CardParameters {
        CardParameters::parse(CX3).expect("a test reads the file of this crate")
    }

    /// Reads a card: `cx3`, or the path of a file.
    ///
    /// # Errors
    /// [`ParameterError`] names the file, or the key, its value and the next step. A retry is safe.
    pub fn open(card: &str) -> Result<CardParameters, ParameterError> {
        if card == "cx3" {
            return Ok(CardParameters::cx3());
        }
        let text = std::fs::read_to_string(Path::new(card))
            .map_err(|source| ParameterError::Read { path: card.into(), source })?;
        CardParameters::read(card, &text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(text: &str) -> Result<CardParameters, ParameterError> {
        CardParameters::read("the text", text)
    }

    /// Reads the text of `file`.
    fn read(file: &str, text: &str) -> Result<CardParameters, ParameterError> {
        let mut tables = Tables::parse(file, text)?;
        let values = Values::read(&mut tables)?;
        let (name, constants) = tables.finish()?;
        Ok(CardParameters { name, constants, values })
    }

    /// Returns the name of the card.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all constants, in the order of the model.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(from: &str, to: &str) -> String {
        assert!(CX3.contains(from), "{from}");
        CardParameters::parse(&CX3.replacen(from, to, 1)).expect_err("a fault").to_string()
    }

    #[test]
    fn the_file_of_the_crate_is_whole() {
        let card = CardParameters::cx3();
        assert_eq!(card.name(), "cx3");
        assert!(card.constants().iter().all(|constant| !constant.source.is_empty()));
        let fitted = card.constants().iter().filter(|constant| constant.basis == Basis::Fitted);
        let fitted: Vec<&str> = fitted.map(|constant| constant.key.as_str()).collect();
        // More of them would make a figure come out that ought to be predicted.
        assert_eq!(
            fitted,
            [
                "work_request_cache.entries",
                "work_request_cache.miss_ns",
                "units.count",
                "units.request_ns",
                "registration.request_ns",
                "host.request_ns"
            ]
        );
    }

    #[test]
    fn a_fault_names_key_value_and_next_step() {
        for (from, to, says) in [
            ("value = 374", "value = \"x\"", "requester.request_ns = \"x\": give a whole number"),
            ("value = 54540", "value = 0", "wire.megabits = 0: choose 1 to 100000000"),
            ("basis = \"measured\"", "basis = \"felt\"", "basis = felt: choose measured, derived, fitted or"),
            (
                "source = \"building a work request of 64 bytes\"",
                "source = \"\"",
                "host.post_ns.source = \"\": name",
            ),
            ("[responder]", "[responders]", "responder.request_ns = nothing: add"),
            ("card_ns = { value = 200", "carts = { value = 200", "completion.card_ns = nothing: add"),
            ("name = \"cx3\"", "", "name = nothing: add"),
            ("[copy]", "[copy]\nsize = 3", "copy.size = 3: remove it"),
            ("[copy]", "[copies]\n[copy]", "copies = {}: remove it"),
            ("[copy]", "[copy", "the text is not TOML: "),
            ("value = 374,", "value = 374, unit = \"ns\",", "requester.request_ns.unit = \"ns\": remove it"),
        ] {
            let text = refusal(from, to);
            assert!(text.contains(says), "{text:?} lacks {says:?}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, "[copy").expect("a file");
        let fault = CardParameters::open(path.to_str().expect("text")).expect_err("a fault").to_string();
        assert!(fault.starts_with(path.to_str().expect("text")), "{fault}");
        let missing = CardParameters::open("/nonexistent/card.toml").expect_err("no file").to_string();
        assert!(missing.contains("/nonexistent/card.toml") && missing.contains("cx3"), "{missing}");
    }
}
