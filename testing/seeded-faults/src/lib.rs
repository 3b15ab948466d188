//! Faults that are put into a server on purpose, to check that the tests find them.
//!
//! [`seeded!`] marks the place of a fault. Without the feature `seeded`, [`is_on`] is a constant
//! `false` and the compiler removes the faulty code. With the feature, the environment variable
//! [`VARIABLE`] selects one fault per process.
//!
//! Each fault is a mistake of one line: a missing check, a bound off by one, a skipped step. The
//! program of this crate runs the tests of the tree against each fault.
//!
//! # Concurrency
//! The first call reads the environment variable. Any thread may call [`is_on`]. No locks.
#![forbid(unsafe_code)]

#[cfg(all(feature = "seeded", not(debug_assertions)))]
compile_error!("seeded faults are for tests: there is no release build with them");

mod list;

pub use list::{Fault, Home};

/// Environment variable that selects the fault of a process. Unset or empty selects none.
pub const VARIABLE: &str = "RFS_SEEDED_FAULT";

/// Marks the place of a fault in the code, in one line. A build without the feature has none of it.
///
/// `seeded!(Fault)` is true if the fault is on. `seeded!(Fault, wrong, right)` is the value `wrong`
/// if the fault is on, and `right` otherwise. `seeded!(Fault => statement)` runs the statement if
/// the fault is on.
#[macro_export]
macro_rules! seeded {
    ($fault:ident) => {
        $crate::is_on($crate::Fault::$fault)
    };
    ($fault:ident, $wrong:expr, $right:expr) => {
        if $crate::is_on($crate::Fault::$fault) { $wrong } else { $right }
    };
    ($fault:ident => $wrong:expr) => {
        if $crate::is_on($crate::Fault::$fault) {
            $wrong;
        }
    };
}

/// Returns true if `fault` is the fault of this process.
///
/// # Panics
/// If [`VARIABLE`] names an unknown fault. Otherwise a test with a mistyped name would test a
/// correct server.
#[cfg(feature = "seeded")]
#[inline]
pub fn is_on(fault: Fault) -> bool {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<Fault>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var(VARIABLE).unwrap_or_default();
        let named =
            || Fault::named(&name).unwrap_or_else(|| panic!("{VARIABLE}: no fault is called {name:?}"));
        (!name.is_empty()).then(named)
    });
    *chosen == Some(fault)
}

/// Returns false: a build without the feature has no faults.
#[cfg(not(feature = "seeded"))]
#[inline(always)]
pub const fn is_on(_: Fault) -> bool {
    false
}
