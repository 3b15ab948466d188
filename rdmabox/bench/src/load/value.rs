//! Parsers and formatters of option values. No I/O, no locks, no clock.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Serialize, Serializer};

/// The length of a phase: a number of requests, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Number of requests of all threads together.
    Ops(u64),
    /// Duration.
    Time(Duration),
}

impl FromStr for Extent {
    type Err = String;

    /// Parses a bare number as a count, and a number with a unit as a time.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count) => Ok(Self::Ops(count)),
            Err(_) => duration(text).map(Self::Time).map_err(|_| {
                format!("{text:?} is neither a number of requests nor a time such as 200ms or 2s")
            }),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ops(count) => write!(f, "{count} requests"),
            Self::Time(time) => write!(f, "{time:?}"),
        }
    }
}

impl Serialize for Extent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ops(count) => serializer.serialize_u64(*count),
            Self::Time(time) => serializer.collect_str(&format_args!("{time:?}")),
        }
    }
}

/// Longest duration of an option.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses a time: `100us`, `1.5ms`, `2s`, `1m`, `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid time {text:?}: expected a number and a unit, such as 100us, 20ms or 2s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let time: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let time = Duration::try_from(time).map_err(|_| wrong())?;
    if time > MAX_DURATION { Err(format!("{text:?} is more than a day")) } else { Ok(time) }
}

/// Parses a number of requests: `500`, `20k`, `1m` (powers of 1000).
pub fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("invalid number of requests {text:?}: expected a number such as 500, 20k or 1m");
    let (number, factor) = match text.to_ascii_lowercase() {
        text if text.ends_with('k') => (text[..text.len() - 1].to_owned(), 1000),
        text if text.ends_with('m') => (text[..text.len() - 1].to_owned(), 1_000_000),
        text => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).filter(|count| *count > 0).ok_or_else(wrong)
}

/// The admission window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Maximum number of bytes in flight.
    Bytes(u64),
    /// No limit.
    None,
}

impl Window {
    /// Returns the limit in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::None => u64::MAX,
        }
    }
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            _ => byte_size::parse_nonzero(text).map(Self::Bytes).map_err(|e| format!("{e}, or \"none\"")),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&byte_size::show(*bytes)),
            Self::None => f.write_str("none"),
        }
    }
}

/// The memory of work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// Always copied through preregistered memory (preMR), up to the block size of the pool.
    Pre,
    /// The caller's buffer is always registered on the fly (dynMR).
    Dyn,
    /// The runtime decides.
    Auto,
    /// The load's own buffers are registered memory: nothing is copied or registered. Started
    /// requests only.
    Registered,
    /// Copied up to this number of bytes, registered above.
    Threshold(u64),
}

impl FromStr for Reg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pre" => Ok(Self::Pre),
            "dyn" => Ok(Self::Dyn),
            "auto" => Ok(Self::Auto),
            "registered" => Ok(Self::Registered),
            _ => byte_size::parse_nonzero(text).map(Self::Threshold).map_err(|_| {
                format!("{text:?}: write pre, dyn, auto, registered, or a threshold such as 64k")
            }),
        }
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pre => f.write_str("pre"),
            Self::Dyn => f.write_str("dyn"),
            Self::Auto => f.write_str("auto"),
            Self::Registered => f.write_str("registered"),
            Self::Threshold(bytes) => f.write_str(&byte_size::show(*bytes)),
        }
    }
}

/// Serializes a displayable value as a string.
pub fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, time) in [
            ("100us", Duration::from_micros(100)),
            ("1.5ms", Duration::from_micros(1500)),
            ("2s", Duration::from_secs(2)),
            ("1m", Duration::from_secs(60)),
            ("0", Duration::ZERO),
        ] {
            assert_eq!(duration(text), Ok(time), "{text}");
        }
        for text in ["", "2", "x", "-1s", "25h", "2 parsecs"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn extents() {
        assert_eq!("1000".parse(), Ok(Extent::Ops(1000)));
        assert_eq!("0".parse(), Ok(Extent::Ops(0)));
        assert_eq!("200ms".parse(), Ok(Extent::Time(Duration::from_millis(200))));
        assert!("soon".parse::<Extent>().is_err());
    }

    #[test]
    fn counts() {
        assert_eq!([count("7"), count("20k"), count("1M")], [Ok(7), Ok(20_000), Ok(1_000_000)]);
        for text in ["", "k", "0", "-1", "1g", "99999999999999999999", "99999999999999999m"] {
            assert!(count(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn windows_and_registrations() {
        assert_eq!(["7m".parse(), "none".parse()], [Ok(Window::Bytes(7 << 20)), Ok(Window::None)]);
        assert!("0".parse::<Window>().is_err());
        assert_eq!(
            ["pre", "dyn", "auto", "registered", "64k"].map(str::parse),
            [Ok(Reg::Pre), Ok(Reg::Dyn), Ok(Reg::Auto), Ok(Reg::Registered), Ok(Reg::Threshold(65536))]
        );
        assert!("post".parse::<Reg>().is_err());
    }
}
