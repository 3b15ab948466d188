//! A time, on the clock of the protocol and on that of the store.
//!
//! # Concurrency
//! Plain values.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::{NEVER, Store};

/// Longest time of expiry, in seconds, that counts from now. Longer times count from 1970.
const MAX_RELATIVE: i64 = 60 * 60 * 24 * 30;

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    /// Milliseconds after 1970.
    pub(super) unix: u64,
    /// The time of the store's clock, in milliseconds.
    pub(super) store: u64,
}

impl Moment {
    /// Returns the present time.
    pub(super) fn now(store: &Store) -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { unix: unix.as_millis().try_into().unwrap_or(u64::MAX), store: store.now() }
    }

    /// Returns the time of the store's clock that a client means by a number of seconds.
    ///
    /// 0 means never, up to 30 days count from now, more count from 1970, and a negative number
    /// means at once.
    pub(super) fn expires(self, exptime: i64) -> u64 {
        let millis = u64::try_from(exptime).unwrap_or(0).saturating_mul(1000);
        match exptime {
            0 => NEVER,
            1..=MAX_RELATIVE => self.store.saturating_add(millis),
            _ => self.store.saturating_add(millis).saturating_sub(self.unix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_expiry_follow_the_protocol() {
        let now = Moment { unix: 1_800_000_000_000, store: 5000 };
        assert_eq!(now.expires(0), NEVER);
        assert_eq!(now.expires(1), 6000);
        assert_eq!(now.expires(2_592_000), 2_592_005_000);
        assert_eq!(now.expires(1_800_000_007), 12_000);
        assert!(now.expires(i64::MAX) > 1 << 60);
        for exptime in [-1, i64::MIN, 2_592_001, 1_799_999_999, 1_800_000_000] {
            assert!(now.expires(exptime) <= now.store, "{exptime}");
        }
    }
}
