//! Requests and answers in the kernel's layout, whichever way they come: over `/dev/fuse` or over
//! io_uring.
//!
//! [`abi`] has the structures of requests and answers, [`opcode`] the numbers of operations.
//! [`decode`] turns a request into a call of the file system. `slot` has the way of its answer.
//!
//! # Concurrency
//! Any thread. No locks.

pub(super) mod abi;
pub(super) mod decode;
pub(super) mod opcode;
