//! Deliberate mistakes, to check that the tests detect them.
//!
//! [`seeded!`] marks the place of a mistake. `testing/seeded-faults` of the repository lists the
//! mistakes and runs the tests against them. Without the feature `seeded-faults`, [`is_on`] is a
//! constant `false` and the compiler removes the wrong code.
//!
//! # Concurrency
//! The first call reads the environment variable. Any thread may call [`is_on`]. No locks.

#[cfg(all(feature = "seeded-faults", not(debug_assertions)))]
compile_error!("seeded faults are for tests: there is no release build with them");

/// Marks the place of a mistake, in one line.
///
/// `seeded!("name")` is true if the mistake is on. `seeded!("name", wrong, right)` is the value
/// `wrong` if it is on, and `right` otherwise. A test of `testing/seeded-faults` checks that the
/// list has each name, and that each name of the list has a place.
macro_rules! seeded {
    ($fault:literal) => {
        $crate::failure::seeded::is_on($fault)
    };
    ($fault:literal, $wrong:expr, $right:expr) => {
        if $crate::failure::seeded::is_on($fault) { $wrong } else { $right }
    };
}

pub(crate) use seeded;

/// Returns true if the environment variable `RFS_SEEDED_FAULT` has the name of the mistake.
#[cfg(feature = "seeded-faults")]
#[inline]
pub(crate) fn is_on(fault: &str) -> bool {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<String> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("RFS_SEEDED_FAULT").unwrap_or_default()) == fault
}

/// Returns false: a build without the feature has no mistakes.
#[cfg(not(feature = "seeded-faults"))]
#[inline(always)]
pub(crate) const fn is_on(_: &str) -> bool {
    false
}
