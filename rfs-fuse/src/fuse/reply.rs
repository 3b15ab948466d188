//! Read replies.
//!
//! Here, in `placement::policy`, `session::descriptors` and `session::ring` is the `unsafe` of this crate: bytes in mapped server memory go to the kernel without
//! a copy in between where they leave by a system call.

use super::session::ReplyData;
use crate::client::ReadData;

/// Answers a read.
pub(crate) fn send(reply: ReplyData, data: ReadData<'_>) {
    match data {
        ReadData::Bytes(bytes) => reply.data(bytes),
        ReadData::Mapped { memory, offset, len } => {
            // SAFETY: the slice goes into the writev that is the reply and nowhere else: fuser builds an IoSlice of it
            // without looking at the bytes and keeps nothing after the call.
            let lend = || unsafe { memory.as_syscall_slice(offset, len) };
            reply.shared_data(len, lend, |into| memory.read(offset, into));
        }
    }
}
