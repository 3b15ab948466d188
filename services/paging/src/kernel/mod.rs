//! What the pager asks of the kernel: userfaultfd, and anonymous memory.
//!
//! # Concurrency
//! See the modules.

pub(crate) mod memory;
pub(crate) mod signals;
pub(crate) mod uffd;

#[cfg(test)]
mod tests;
