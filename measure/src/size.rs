//! Byte sizes on the command line and in tables. Pure.

/// One KiB.
pub const KIB: u64 = 1 << 10;
/// One MiB.
pub const MIB: u64 = 1 << 20;
/// One GiB.
pub const GIB: u64 = 1 << 30;

/// Parses `4096`, `4k`, `64K`, `1m`, `1MiB`, `2g`. Units are powers of 1024.
pub fn parse(text: &str) -> std::result::Result<u64, String> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a size such as 64k, 1m or 1g"))?;
    let unit = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 1,
        "k" => KIB,
        "m" => MIB,
        "g" => GIB,
        "t" => GIB * KIB,
        _ => return Err(format!("{text:?}: unknown unit {unit:?}, use k, m or g")),
    };
    match number.checked_mul(unit) {
        Some(0) => Err("a size of zero".into()),
        Some(size) => Ok(size),
        None => Err(format!("{text:?} is too large")),
    }
}

/// `4096` as `4 KiB`, `1 << 30` as `1 GiB`, anything uneven with one decimal.
pub fn show(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit {
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}", bytes / unit)
            } else {
                format!("{:.1} {name}", bytes as f64 / unit as f64)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let cases =
            [("4096", 4096), ("4k", 4096), ("64K", 65536), ("1m", MIB), ("2 MiB", 2 * MIB), ("3gb", 3 * GIB)];
        for (text, size) in cases {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "k", "-1", "1x", "0", "0k", "99999999999999g", "1.5m"] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(512), "512 B");
        assert_eq!(show(4096), "4 KiB");
        assert_eq!(show(MIB), "1 MiB");
        assert_eq!(show(3 * GIB / 2), "1.5 GiB");
    }
}
