//! Requests on files and names: each is a function of a `Call`, and runs one or more transactions.
//!
//! # Concurrency
//! Each request belongs to one thread.

mod checksums;
mod data;
mod extents;
mod listing;
mod locks;
mod names;
mod xattr;
