//! Decimal numbers of the protocol.
//!
//! A number has digits only, and a minus sign where it may be negative. Numbers that do not fit are
//! refused, and never cut off.
//!
//! # Concurrency
//! Pure functions.

use crate::store::parse_u64;

/// Parses digits of a number below 2^32.
pub(super) fn parse_u32(digits: &[u8]) -> Option<u32> {
    parse_u64(digits)?.try_into().ok()
}

/// Parses digits, with a minus sign or without.
pub(super) fn parse_i64(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        None => parse_u64(text)?.try_into().ok(),
        Some(digits) => 0_i64.checked_sub_unsigned(parse_u64(digits)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_fit_are_numbers() {
        assert_eq!(parse_u64(b"0"), Some(0));
        assert_eq!(parse_u64(b"007"), Some(7));
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_i64(b"-0"), Some(0));
    }

    #[test]
    fn other_texts_are_none() {
        for text in [&b""[..], b"-", b"+1", b"1x", b"x", b" 1", b"1 ", b"--1", b"18446744073709551616"] {
            assert_eq!(parse_u64(text), None, "{text:?}");
            assert_eq!(parse_i64(text), None, "{text:?}");
        }
        assert_eq!(parse_u64(b"-1"), None);
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"9223372036854775808"), None);
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
    }
}
