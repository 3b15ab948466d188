//! Processor time for moving bytes between a caller's buffer and the card.
//!
//! No I/O, no locks, no clock.

use crate::provider::model::parameters::Values;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Returns the ns that a copy of `bytes` to or from registered memory takes.
pub(crate) fn copy_ns(values: &Values, bytes: u64) -> u64 {
    values.copy.request_ns + values.copy.page_ns * bytes / PAGE
}

/// Returns the ns that registering and deregistering `bytes` takes.
pub(crate) fn registration_ns(values: &Values, bytes: u64) -> u64 {
    values.registration.request_ns + values.registration.page_ns * bytes.div_ceil(PAGE)
}

/// Most pages for which a threshold is sought: 256 MiB.
const MAX_PAGES: u64 = 65_536;

/// Returns the largest size in whole pages for which a copy is cheaper than a registration: 0 if
/// none is, and `u64::MAX` if all are.
pub(crate) fn threshold(values: &Values) -> u64 {
    let copies = |pages: &u64| copy_ns(values, pages * PAGE) < registration_ns(values, pages * PAGE);
    match (1..=MAX_PAGES).rev().find(copies) {
        Some(MAX_PAGES) => u64::MAX,
        pages => pages.unwrap_or(0) * PAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::model::CardParameters;

    /// RDMAbox, Fig. 5(b).
    #[test]
    fn registering_is_cheaper_than_copying_from_928_kib_on() {
        let values = CardParameters::cx3().values;
        let registers = |kib: u64| registration_ns(&values, kib << 10) <= copy_ns(&values, kib << 10);
        let first = (4..=1024).step_by(4).find(|kib| registers(*kib));
        assert_eq!(first, Some(928));
        assert!((928..=4096).step_by(4).all(registers));
        assert_eq!(threshold(&values), 924 << 10);
    }
}
