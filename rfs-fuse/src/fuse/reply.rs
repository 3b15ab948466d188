//! Replies to reads, without a copy where that is possible.
//!
//! A reply by a system call sends bytes of mapped server memory directly. This crate has `unsafe`
//! code here, in `affinity::sched`, in `session::descriptors` and in `session::ring`.
//!
//! # Concurrency
//! Any thread. Takes no locks.

use super::session::ReplyData;
use rfs_client::ReadData;

/// Answers a read.
pub(crate) fn send(reply: ReplyData, data: ReadData<'_>) {
    match data {
        ReadData::Bytes(bytes) => reply.data(bytes),
        ReadData::Mapped { memory, offset, len } => {
            // SAFETY: the slice goes only into the writev that sends the reply. fuser builds an
            // IoSlice of it without reading the bytes, and keeps no reference after the call.
            let lend = || unsafe { memory.as_syscall_slice(offset, len) };
            reply.shared_data(len, lend, |into| memory.read(offset, into));
        }
    }
}
