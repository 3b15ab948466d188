//! Sizes and numbers that both sides of a call agree on.

/// Length limit of a request and of a reply, in bytes.
pub const MAX_CALL: usize = 64 * 1024;
/// Length limit of the reason of a refusal, in bytes. Longer reasons are cut.
pub(crate) const MAX_REASON: usize = 1024;
/// Concurrent calls of a session. Further calls wait for a slot.
pub(crate) const CALL_SLOTS: usize = 16;
/// Distance between two signaled sends.
pub(crate) const SIGNAL_EVERY: u32 = 8;
/// Queue depths: one receive per slot, and as many sends plus the unreported ones.
pub(crate) const QUEUE_DEPTH: u32 = (CALL_SLOTS * 2) as u32;
const _: () = assert!(CALL_SLOTS + (SIGNAL_EVERY as usize) < QUEUE_DEPTH as usize);
/// Deferred replies in flight to a client.
pub(crate) const DEFERRED_SLOTS: usize = 4;
/// Depth of the queue pair for deferred replies, and of its completion queue.
pub(crate) const DEFERRED_DEPTH: u32 = 16;
const _: () = assert!(DEFERRED_SLOTS + (SIGNAL_EVERY as usize) < DEFERRED_DEPTH as usize);
/// Calls of a session that may wait for a deferred reply.
pub(crate) const MAX_WAITING: usize = 4096;

/// `wr_id` of sends. The `wr_id` of a receive is its buffer index.
pub(crate) const SEND_ID: u64 = u64::MAX;
