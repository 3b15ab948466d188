//! Size threshold between copying through registered memory and registering the caller's memory.
//!
//! # Concurrency
//! Any thread. `MEASURED` is held while a device is measured, and no other lock is taken then but
//! those of the device and of the session's pool.

use std::{collections::BTreeMap, fmt, str::FromStr};

use parking_lot::Mutex;
use parse_size::Config;

/// Thresholds of the RDMA devices that this process has measured, by name. Locked during a
/// measurement, so that no device is measured twice.
static MEASURED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Size limit of work requests that use a preMR. For longer requests the runtime registers the
/// caller's memory (dynMR). The text form is `by-provider`, `auto` or a number of bytes, with an
/// optional suffix: `4096`, `4k` (4096), `1m` (1,048,576), `1g`.
///
/// ```
/// use rdmabox::{PreMrThreshold, Session};
///
/// let threshold: PreMrThreshold = "64k".parse()?;
/// assert_eq!(threshold, PreMrThreshold::Bytes(65_536));
/// let builder = Session::builder().pre_mr_threshold(threshold);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PreMrThreshold {
    /// 4 KiB over shared memory and TCP, where a registration is an entry of a table. `Auto` over
    /// RDMA, where a card pins and translates pages.
    #[default]
    ByProvider,
    /// Largest size for which a copy was measured to cost no more than a registration. A session
    /// measures when it is created, which takes some milliseconds. Over RDMA a process measures
    /// each device once, with its first session.
    Auto,
    /// Size limit in bytes: 0 never uses the pool, `u64::MAX` uses it for every request that fits.
    Bytes(u64),
}

/// Threshold of the software device in bytes. Registering costs about as much there as copying this
/// many bytes.
const SOFTWARE_BYTES: u64 = 4096;

impl PreMrThreshold {
    /// Returns the threshold in bytes. `card` is the name of an RDMA device, `None` for the
    /// software device. `measure` measures it.
    pub(crate) fn in_force(self, card: Option<&str>, measure: impl FnOnce() -> u64) -> u64 {
        match (self, card) {
            (PreMrThreshold::Bytes(bytes), _) => bytes,
            (PreMrThreshold::ByProvider, None) => SOFTWARE_BYTES,
            (PreMrThreshold::Auto, None) => measure(),
            (PreMrThreshold::Auto | PreMrThreshold::ByProvider, Some(card)) => {
                *MEASURED.lock().entry(card.to_owned()).or_insert_with(measure)
            }
        }
    }
}

/// Error for a text that is not a threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a threshold: expected by-provider, auto or a size, for example 4096, 128k or 1m")]
pub struct ThresholdError(String);

const UNITS: [(u8, u32); 3] = [(b'g', 30), (b'm', 20), (b'k', 10)];

/// Maximum number of digits with a fraction or unit; more digits exceed the precision of the
/// conversion.
const MAX_DIGITS: usize = 18;

/// Returns the bytes of a size, or `None` for a text that is not a size.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    if digits > MAX_DIGITS {
        // A plain integer may still fit.
        return if digits == text.len() { text.parse().ok() } else { None };
    }
    Config::new().with_binary().parse_size(text).ok()
}

impl FromStr for PreMrThreshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        match text {
            "by-provider" => return Ok(PreMrThreshold::ByProvider),
            "auto" => return Ok(PreMrThreshold::Auto),
            _ => {}
        }
        parse_size(text).map(PreMrThreshold::Bytes).ok_or_else(|| ThresholdError(text.to_owned()))
    }
}

impl fmt::Display for PreMrThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match *self {
            PreMrThreshold::ByProvider => return f.pad("by-provider"),
            PreMrThreshold::Auto => return f.pad("auto"),
            PreMrThreshold::Bytes(bytes) => bytes,
        };
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

    use std::cell::Cell;

    use super::{PreMrThreshold::*, *};

    #[test]
    fn sizes_and_auto_are_parsed() {
        let cases = [
            ("by-provider", ByProvider),
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
    fn a_text_that_is_not_a_size_is_rejected() {
        for text in
            ["", "k", "Auto", "-1", "+1", "18446744073709551616", "17179869184g", "9999999999999999999k"]
        {
            assert_eq!(text.parse::<PreMrThreshold>(), Err(ThresholdError(text.into())));
        }
    }

    #[test]
    fn a_threshold_is_formatted_with_the_largest_exact_unit() {
        let cases = [(0, "0"), (1, "1"), (4096, "4k"), (4097, "4097"), (3 << 20, "3m"), (1 << 30, "1g")];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{Auto:>6}|{:<4}|{ByProvider}", Bytes(4096)), "  auto|4k  |by-provider");
    }

    /// Catches a session that measures a card again, and one over software that measures.
    #[test]
    fn a_card_is_measured_once() {
        let measured = Cell::new(0);
        let in_force = |threshold: PreMrThreshold, card| {
            threshold.in_force(card, || {
                measured.set(measured.get() + 1);
                measured.get() << 20
            })
        };
        assert_eq!((in_force(ByProvider, None), in_force(Bytes(7), Some("a"))), (4096, 7));
        assert_eq!(measured.get(), 0);
        let card = ["card of this test", "another card of this test"].map(Some);
        let found = [ByProvider, Auto, ByProvider].map(|threshold| in_force(threshold, card[0]));
        assert_eq!((found, in_force(Auto, card[1]), measured.get()), ([1 << 20; 3], 2 << 20, 2));
        // The software device is measured for each session that asks for it.
        assert_eq!((in_force(Auto, None), in_force(Auto, None)), (3 << 20, 4 << 20));
    }

    proptest! {
        #[test]
        fn formatting_and_parsing_round_trip(bytes: u64, shift in 0..64u32) {
            let threshold = Bytes(bytes >> shift << (shift / 2));
            prop_assert_eq!(threshold.to_string().parse(), Ok(threshold));
        }
    }
}
