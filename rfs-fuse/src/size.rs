//! Sizes on the command line. Pure.

/// Reads a number of bytes: `4096`, `128K`, `1M`, `2G`, with or without `iB`. Units are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: write a number of bytes, or for example 128K, 1M, 2G");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("128K", 131072), ("1M", 1 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "-1", "1T", "1.5M", "99999999999999999999", "18446744073709551615K", "1 M"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
