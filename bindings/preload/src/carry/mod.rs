//! Calls on descriptors of mounts: by the native API, or by the kernel.
//!
//! Each call has a closure that asks the kernel. A call that the native API fails is done by the
//! kernel at the same offset, so error numbers and rare cases are the kernel's. An append is the
//! exception: it is never done twice.
//!
//! # Concurrency
//! Any thread. A read or write at the offset holds the lock of the position, as in the kernel.

pub(crate) mod buffers;
pub(crate) mod file;
pub(crate) mod positional_io;
pub(crate) mod sequential;
