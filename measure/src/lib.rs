//! What the benchmark programs of this workspace share. It measures nothing itself.
//!
//! * [`process`]: children that cannot be left behind; [`interrupt`]: Ctrl-C;
//! * [`machine`]: what a result was measured on, and which commit;
//! * [`statistics`]: medians and spreads; [`colors`]: those of charts;
//! * [`progress`]: what the user sees meanwhile; [`error`]: what can go wrong, one line each;
//! * [`testing`]: what the tests of these programs share.
#![forbid(unsafe_code)]

pub mod colors;
pub mod error;
pub mod interrupt;
pub mod machine;
pub mod process;
pub mod progress;
pub mod statistics;
pub mod testing;

pub use error::{Error, Result};
