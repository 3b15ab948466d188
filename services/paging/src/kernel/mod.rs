//! Requests of the pager to the kernel: userfaultfd, anonymous memory, and cores.
//!
//! # Concurrency
//! See the modules.

pub(crate) mod cores;
pub(crate) mod memory;
pub(crate) mod signals;
pub(crate) mod uffd;

#[cfg(test)]
mod tests;
