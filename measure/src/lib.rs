//! What the benchmark programs of this workspace share. It measures nothing itself.
//!
//! * [`process`]: children that cannot be left behind; [`interrupt`]: Ctrl-C;
//! * [`machine`]: what a result was measured on, and which commit;
//! * [`statistics`]: medians and spreads;
//! * [`progress`]: what the user sees meanwhile; [`error`]: what can go wrong, one line each.
#![forbid(unsafe_code)]

pub mod error;
pub mod interrupt;
pub mod machine;
pub mod process;
pub mod progress;
pub mod statistics;

pub use error::{Error, Result};
