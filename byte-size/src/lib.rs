//! Byte sizes in text form, for the command lines and messages of the programs.
//!
//! No I/O, no locks, no clock.

use parse_size::Config;

/// One KiB.
pub const KIB: u64 = 1 << 10;
/// One MiB.
pub const MIB: u64 = 1 << 20;
/// One GiB.
pub const GIB: u64 = 1 << 30;

/// Error for a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size: expected bytes, or a unit of 1024 such as 64k, 1.5m or 4g")]
pub struct SizeError(String);

/// Maximum number of digits with a fraction or unit; more digits exceed the precision of the
/// conversion.
const MAX_DIGITS: usize = 18;

/// Parses `4096`, `4k`, `64K`, `1.5m`, `1MiB`, `2 GB`. All units are powers of 1024.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    if digits > MAX_DIGITS {
        // A plain integer may still fit.
        let whole = if digits == text.len() { text.parse().ok() } else { None };
        return whole.ok_or_else(|| SizeError(text.to_owned()));
    }
    Config::new().with_binary().parse_size(text).map_err(|_| SizeError(text.to_owned()))
}

/// Parses like [`parse`], but rejects zero.
pub fn parse_nonzero(text: &str) -> Result<u64, SizeError> {
    parse(text).and_then(|size| if size == 0 { Err(SizeError(text.to_owned())) } else { Ok(size) })
}

/// Formats `4096` as `4 KiB`, `1 << 30` as `1 GiB`, and other values with one decimal.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize; // At most 6.
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        format!("{} {}", bytes / unit, UNITS[power])
    } else {
        format!("{:.1} {}", bytes as f64 / unit as f64, UNITS[power])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_are_too_long_are_rejected() {
        for text in ["18446744073709551616", "18446744073709551615.5", "1844674407370955161518446744"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn units_are_powers_of_1024() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4k", 4 * KIB),
            ("64K", 64 * KIB),
            ("64KiB", 64 * KIB),
            ("64KB", 64 * KIB),
            ("1.5m", 3 << 19),
            ("0.25K", 256),
            ("2 MiB", 2 * MIB),
            ("4G", 4 * GIB),
            ("4gb", 4 * GIB),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_size_is_rejected() {
        for text in [
            "",
            " ",
            "k",
            "-1",
            "+1",
            "1x",
            "4G4",
            ".5G",
            "1.2.3",
            "18446744073709551616",
            "18446744073709551615K",
            "99999999999999g",
        ] {
            assert_eq!(parse(text), Err(SizeError(text.into())));
        }
        assert_eq!(parse_nonzero("0k"), Err(SizeError("0k".into())));
        assert_eq!(parse_nonzero("1k"), Ok(KIB));
    }

    #[test]
    fn sizes_are_formatted() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (4096, "4 KiB"),
            (4097, "4.0 KiB"),
            (MIB, "1 MiB"),
            (3 * GIB / 2, "1.5 GiB"),
            (2 << 40, "2 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn whole_units_round_trip(size in 1..1024u64, power in 0..6u32) {
            let size = size << (10 * power);
            prop_assert_eq!(parse(&show(size)), Ok(size));
        }
    }
}
