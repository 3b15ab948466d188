//! Faults that are put into a server on purpose, to see whether the tests find them.
//!
//! A build without the feature `seeded` has none: [`seeded`] is a constant `false` there, and whatever hangs on it is
//! not compiled in. With it, the environment variable [`VARIABLE`] names the one fault that a process has.
//!
//! Each is a mistake of one line, as somebody might make it: a check left out, a bound off by one, a step skipped. The
//! program of this crate runs the tests of the tree against each of them.
#![forbid(unsafe_code)]

#[cfg(all(feature = "seeded", not(debug_assertions)))]
compile_error!("seeded faults are for tests: there is no release build with them");

mod list;

pub use list::{Fault, Home};

/// Names the fault that a process has; none if it is not set or empty.
pub const VARIABLE: &str = "RFS_SEEDED_FAULT";

/// Whether this process has a fault.
///
/// # Panics
/// If [`VARIABLE`] names none that there is: a test of nothing would pass.
#[cfg(feature = "seeded")]
#[inline]
pub fn seeded(fault: Fault) -> bool {
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

/// Whether this process has a fault: it has none.
#[cfg(not(feature = "seeded"))]
#[inline(always)]
pub const fn seeded(_: Fault) -> bool {
    false
}
