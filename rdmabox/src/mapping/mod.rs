//! Mapped memory: private, shareable, or a peer's.
//!
//! [`Memory`] owns a mapping. A peer can write to shared memory at any time, so such memory is
//! never borrowed as a Rust reference: [`Memory`] copies bytes and runs atomics through raw
//! pointers. [`Hidden`] holds secrets outside of core dumps.
//!
//! # Concurrency
//! Any thread may use a mapping. Each submodule documents its own locks.

mod error;
mod first_writes;
mod hidden;
mod io_vec;
mod landlock;
mod memory;
mod memory_bound;
mod page;
mod reserve;
mod sigbus;

pub use self::error::MemoryError;
pub(crate) use self::hidden::Hidden;
pub(crate) use self::io_vec::IoVec;
pub use self::memory::Memory;
pub(crate) use self::memory::copy;
#[cfg(feature = "ibverbs")]
pub(crate) use self::memory::pages::Pin;
pub use self::memory_bound::{MemoryBound, available_memory};
pub use self::sigbus::{is_lost, survive};
