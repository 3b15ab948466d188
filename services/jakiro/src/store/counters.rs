//! Counters of a partition, and of a whole store.
//!
//! # Concurrency
//! Plain values.

/// Defines [`Counters`] with the names of its fields, and their sum.
macro_rules! counters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// The contents of a store in numbers, and its operations since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counters {
            /// Names of the counters, in the order of [`values`](Self::values).
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Returns the values.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name),*]
            }

            /// Returns the counters with these values.
            pub fn from_values(values: [u64; Self::NAMES.len()]) -> Counters {
                let [$($name),*] = values;
                Counters { $($name),* }
            }
        }
    };
}

counters! {
    /// Items that the index has, with items that have expired and were not accessed since.
    items,
    /// Bytes of their keys and values.
    bytes,
    /// Bytes of the blocks of all items, with their heads.
    used_bytes,
    /// Bytes of all blocks.
    total_bytes,
    /// Items that were stored.
    total_items,
    /// Gets that found an item.
    get_hits,
    /// Gets that found none.
    get_misses,
    /// Gets that found an expired item. They are misses, too.
    get_expired,
    /// Gets that found an item from before a flush. They are misses, too.
    get_flushed,
    /// Changes of values: set, add, replace, append, prepend and compare-and-swap.
    stores,
    /// Deletes that found an item.
    delete_hits,
    /// Deletes that found none.
    delete_misses,
    /// Changes of the time to live that found an item.
    touch_hits,
    /// Changes of the time to live that found none.
    touch_misses,
    /// Increments that found an item.
    incr_hits,
    /// Increments that found none.
    incr_misses,
    /// Decrements that found an item.
    decr_hits,
    /// Decrements that found none.
    decr_misses,
    /// Compare-and-swaps that stored.
    cas_hits,
    /// Compare-and-swaps that found no item.
    cas_misses,
    /// Compare-and-swaps that found another version.
    cas_mismatches,
    /// Items that made room for others before they expired.
    evictions,
    /// Items that expired, and whose memory is free again.
    expirations,
    /// Flushes.
    flushes,
}

impl Counters {
    /// Returns the number of gets.
    pub fn gets(&self) -> u64 {
        self.get_hits + self.get_misses
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let mut values = self.values();
        values.iter_mut().zip(other.values()).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
        *self = Counters::from_values(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_by_name() {
        let mut sum = Counters { items: 1, flushes: 2, ..Counters::default() };
        sum += Counters { items: 10, evictions: 5, ..Counters::default() };
        assert_eq!(sum, Counters { items: 11, evictions: 5, flushes: 2, ..Counters::default() });
        assert_eq!(Counters::from_values(sum.values()), sum);
        assert_eq!(Counters::NAMES[0], "items");
    }
}
