//! librfs: the calls of `rfs-native` for programs in C.
//!
//! `include/rfs.h` is made of this crate by cbindgen. Each call returns 0 or a count, or a negative
//! error number. A panic inside a call becomes -ENOTRECOVERABLE.
//!
//! # Concurrency
//! Any number of threads make calls, also on one handle. The call that frees a handle is its last.

pub mod directory;
pub mod file;
pub mod mount;
pub mod names;
pub mod open;
pub mod options;
pub mod queue;
pub mod stat;
pub mod status;
pub mod view;
pub mod xattrs;
