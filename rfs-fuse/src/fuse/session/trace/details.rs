//! The operation that the kernel asks for, for a trace.
//!
//! # Concurrency
//! Plain values.

/// The operation that the kernel asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The caller's thread.
    pub caller: u32,
    /// Number of data bytes in the request or the reply.
    pub bytes: u64,
    /// Inode and offset of a read or a write.
    pub place: Option<(u64, u64)>,
}
