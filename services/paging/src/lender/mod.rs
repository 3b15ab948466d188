//! Lends the memory of this machine to pagers, in chunks.
//!
//! A [`Lender`] is an rdmabox host with a service. Pagers allocate and free chunks by calls, and
//! read and write them one-sidedly. A chunk belongs to the session that allocated it, and is free
//! again when that session ends.
//!
//! # Concurrency
//! See the modules.

mod allocator;
pub(crate) mod protocol;
mod service;

pub use protocol::{LenderStatus, PROTOCOL};
pub use service::{Lender, LenderError, LenderOptions};
