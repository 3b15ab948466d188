//! Up to which size requests are copied through registered memory.

use std::{fmt, str::FromStr};

use crate::size;

/// Which work requests go through the pre-registered pool (preMR); for longer ones the caller's memory is registered
/// (dynMR). Written as `auto`, or as a [size]: `4096`, `4k`, `1m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PreMrThreshold {
    /// Up to where copying was measured to be no dearer than registering, when the session was made: see
    /// [`calibrate`](super::calibrate()).
    #[default]
    Auto,
    /// Those of at most so many bytes: 0 is none of them, and `u64::MAX` all that fit the pool.
    Bytes(u64),
}

/// A text is no threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no threshold: write auto, or a number of bytes, for example 4096, 128k, 1m")]
pub struct ThresholdError(String);

const UNITS: [(u8, u32); 3] = [(b'g', 30), (b'm', 20), (b'k', 10)];

impl FromStr for PreMrThreshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        if text == "auto" {
            return Ok(PreMrThreshold::Auto);
        }
        size::parse(text).map(PreMrThreshold::Bytes).map_err(|_| ThresholdError(text.to_owned()))
    }
}

impl fmt::Display for PreMrThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PreMrThreshold::Bytes(bytes) = *self else { return f.pad("auto") };
        let whole = UNITS.iter().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
        match whole {
            Some((unit, shift)) => f.pad(&format!("{}{}", bytes >> shift, char::from(*unit))),
            None => f.pad(&bytes.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PreMrThreshold::*, *};

    #[test]
    fn sizes_and_auto_are_understood() {
        let cases = [
            ("auto", Auto),
            ("0", Bytes(0)),
            ("4096", Bytes(4096)),
            ("4k", Bytes(4096)),
            ("928K", Bytes(928 << 10)),
            ("1m", Bytes(1 << 20)),
            ("2GiB", Bytes(2 << 30)),
            ("18446744073709551615", Bytes(u64::MAX)),
        ];
        for (text, threshold) in cases {
            assert_eq!(text.parse(), Ok(threshold), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "k", "Auto", "-1", "+1", "18446744073709551616", "17179869184g"] {
            assert_eq!(text.parse::<PreMrThreshold>(), Err(ThresholdError(text.into())));
        }
    }

    #[test]
    fn it_is_written_with_the_largest_unit_that_fits() {
        let cases = [(0, "0"), (1, "1"), (4096, "4k"), (4097, "4097"), (3 << 20, "3m"), (1 << 30, "1g")];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{Auto:>6}|{:<4}|", Bytes(4096)), "  auto|4k  |");
    }

    proptest! {
        #[test]
        fn it_round_trips(bytes: u64, shift in 0..64u32) {
            let threshold = Bytes(bytes >> shift << (shift / 2));
            prop_assert_eq!(threshold.to_string().parse(), Ok(threshold));
        }
    }
}
