//! Limits of the device and of a queue pair, checked before a post.
//!
//! # Concurrency
//! Pure functions.

use crate::verbs::{DeviceAttr, PostErrorReason, QpCaps, RecvWr, SendOp, SendWr, VerbsError};

fn limit(what: &'static str, asked: u32, limit: u32) -> Result<(), VerbsError> {
    if asked <= limit {
        return Ok(());
    }
    Err(VerbsError::Limit { what, asked: asked.into(), limit: limit.into() })
}

/// Checks the sizes of the queues against the limits of the device.
pub(super) fn check_caps(caps: QpCaps, attr: &DeviceAttr) -> Result<(), VerbsError> {
    limit("send queue depth", caps.max_send_wr, attr.max_qp_wr)?;
    limit("receive queue depth", caps.max_recv_wr, attr.max_qp_wr)?;
    limit("send scatter/gather elements", caps.max_send_sge, attr.max_sge)?;
    limit("receive scatter/gather elements", caps.max_recv_sge, attr.max_sge)?;
    limit("inline data", caps.max_inline_data, attr.max_inline_data)
}

/// Returns the reason to refuse a send, if `room` slots of the queue are free.
pub(super) fn refuse_send(
    caps: &QpCaps,
    max_msg_sz: u64,
    room: u32,
    wr: &SendWr<'_>,
) -> Option<PostErrorReason> {
    caps.refuse_send(room > 0, max_msg_sz, wr).or_else(|| match wr.op {
        // The specification has no such operation.
        SendOp::FetchOp { op, .. } => Some(PostErrorReason::Unsupported(op)),
        _ => (wr.op.is_atomic() && (wr.sges.len() != 1 || wr.byte_len() != 8))
            .then_some(PostErrorReason::AtomicShape),
    })
}

/// Returns the reason to refuse a receive, if `room` slots of the queue are free.
pub(super) fn refuse_recv(caps: &QpCaps, room: u32, wr: &RecvWr<'_>) -> Option<PostErrorReason> {
    if room == 0 {
        return Some(PostErrorReason::QueueFull { depth: caps.max_recv_wr });
    }
    let (asked, limit) = (wr.sges.len(), caps.max_recv_sge);
    (asked > limit as usize).then_some(PostErrorReason::TooManySges { asked, limit })
}
