//! Decimal numbers, as values and in commands.
//!
//! # Concurrency
//! Pure functions.

/// Parses digits. `None` for other bytes, for no digit, and from 2^64 on.
pub(crate) fn parse_u64(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(digit.into())
    })
}
