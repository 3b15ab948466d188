//! The time that bytes occupy the link.
//!
//! No I/O, no locks, no clock.

use crate::provider::model::parameters::wire;

/// Returns the ns that a message of `bytes` takes on the link, with the headers of its packets.
pub(super) fn occupancy(link: &wire, bytes: u64) -> u64 {
    let packets = bytes.div_ceil(link.packet_bytes).max(1);
    let bits = (bytes + packets * link.header_bytes) * 8;
    // Megabits per second are bits per microsecond.
    bits * 1000 / link.megabits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::model::CardParameters;

    #[test]
    fn a_long_message_takes_the_whole_bandwidth() {
        let link = CardParameters::cx3().values.wire;
        let bytes = 1 << 30;
        let gigabits = (bytes * 8) as f64 / occupancy(&link, bytes) as f64;
        // Headers take 30 bytes of 2078.
        assert!((53.7..53.8).contains(&gigabits), "{gigabits}");
        assert_eq!(occupancy(&link, 0), 4);
    }
}
