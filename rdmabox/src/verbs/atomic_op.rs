//! Atomic operations of 8 bytes beyond compare-and-swap and fetch-and-add.
//!
//! # Concurrency
//! Plain values.

use bitflags::bitflags;

/// An atomic operation on an aligned 8-byte word, with its operand. The request returns the value
/// that the word had before.
///
/// The InfiniBand specification has compare-and-swap and fetch-and-add only, so a device may lack
/// these operations. [`DeviceAttr::atomic_ops`](super::DeviceAttr::atomic_ops) and
/// [`Session::supports`](crate::Session::supports) tell beforehand.
///
/// Each operation is the method of the same name of [`AtomicU64`](std::sync::atomic::AtomicU64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicOp {
    /// Stores the operand.
    Swap(u64),
    /// Stores the bitwise "and" of the word and the operand.
    And(u64),
    /// Stores the bitwise "or" of the word and the operand.
    Or(u64),
    /// Stores the bitwise "xor" of the word and the operand.
    Xor(u64),
    /// Stores the smaller of the word and the operand, both unsigned.
    Min(u64),
    /// Stores the larger of the word and the operand, both unsigned.
    Max(u64),
}

impl AtomicOp {
    /// Returns the value that the operation stores in a word that holds `old`. A program can apply
    /// an unsupported operation in a loop around a compare-and-swap.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::Swap(new) => new,
            AtomicOp::And(mask) => old & mask,
            AtomicOp::Or(mask) => old | mask,
            AtomicOp::Xor(mask) => old ^ mask,
            AtomicOp::Min(other) if other < old => other,
            AtomicOp::Max(other) if other > old => other,
            AtomicOp::Min(_) | AtomicOp::Max(_) => old,
        }
    }

    /// Returns the set that has this kind of operation only.
    #[must_use]
    pub const fn kind(self) -> AtomicOps {
        match self {
            AtomicOp::Swap(_) => AtomicOps::SWAP,
            AtomicOp::And(_) => AtomicOps::AND,
            AtomicOp::Or(_) => AtomicOps::OR,
            AtomicOp::Xor(_) => AtomicOps::XOR,
            AtomicOp::Min(_) => AtomicOps::MIN,
            AtomicOp::Max(_) => AtomicOps::MAX,
        }
    }

    /// Returns the name of the operation, for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            AtomicOp::Swap(_) => "swap",
            AtomicOp::And(_) => "and",
            AtomicOp::Or(_) => "or",
            AtomicOp::Xor(_) => "xor",
            AtomicOp::Min(_) => "min",
            AtomicOp::Max(_) => "max",
        }
    }
}

bitflags! {
    /// A set of kinds of [`AtomicOp`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AtomicOps: u8 {
        /// [`AtomicOp::Swap`].
        const SWAP = 1;
        /// [`AtomicOp::And`].
        const AND = 1 << 1;
        /// [`AtomicOp::Or`].
        const OR = 1 << 2;
        /// [`AtomicOp::Xor`].
        const XOR = 1 << 3;
        /// [`AtomicOp::Min`].
        const MIN = 1 << 4;
        /// [`AtomicOp::Max`].
        const MAX = 1 << 5;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use proptest::prelude::*;

    use super::*;

    fn all(operand: u64) -> [AtomicOp; 6] {
        use AtomicOp::*;
        [Swap(operand), And(operand), Or(operand), Xor(operand), Min(operand), Max(operand)]
    }

    /// Returns words near the edges of the range, where a signed comparison differs, and any
    /// others.
    fn words() -> impl Strategy<Value = u64> {
        let edges = [0, 1, i64::MAX as u64, i64::MIN as u64, u64::MAX];
        prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>()]
    }

    proptest! {
        #[test]
        fn each_operation_stores_the_value_of_the_method_of_its_name(old in words(), operand in words()) {
            type Method = fn(&AtomicU64, u64) -> u64;
            let methods: [Method; 6] = [
                |word, operand| word.swap(operand, SeqCst),
                |word, operand| word.fetch_and(operand, SeqCst),
                |word, operand| word.fetch_or(operand, SeqCst),
                |word, operand| word.fetch_xor(operand, SeqCst),
                |word, operand| word.fetch_min(operand, SeqCst),
                |word, operand| word.fetch_max(operand, SeqCst),
            ];
            for (op, method) in all(operand).into_iter().zip(methods) {
                let word = AtomicU64::new(old);
                prop_assert_eq!(method(&word, operand), old);
                prop_assert_eq!(op.apply(old), word.into_inner(), "{:?} of {}", op, old);
            }
        }
    }

    #[test]
    fn the_kinds_are_distinct_and_make_up_the_whole_set() {
        let kinds = all(0).map(AtomicOp::kind);
        assert!(kinds.iter().all(|kind| kind.bits().count_ones() == 1));
        assert_eq!(kinds.into_iter().collect::<AtomicOps>(), AtomicOps::all());
        let names = all(0).map(AtomicOp::name);
        assert_eq!(names, ["swap", "and", "or", "xor", "min", "max"]);
    }
}
