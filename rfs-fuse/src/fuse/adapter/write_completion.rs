//! Completes writes: drops pages that would be stale, and answers.
//!
//! # Concurrency
//! Session threads, and threads that complete asynchronous writes. Takes the lock of `Handles`.

use std::sync::Arc;

use super::Adapter;
use crate::fuse::{
    kernel_cache::{handles::Handle, pages::PageDrop},
    session::ReplyWrite,
};
use rfs_client::ClientError;

/// How the bytes of a write relate to the kernel's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePath {
    /// The kernel writes back pages that were changed through a mapping.
    WriteBack,
    /// The kernel has put the bytes into its pages.
    ThroughPages,
    /// The kernel has no pages of the file for this handle.
    AroundPages,
}

/// A write of the kernel, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteRequest {
    pub(super) ino: u64,
    pub(super) handle: Handle,
    /// The kernel's number of the request.
    pub(super) unique: u64,
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) len: u32,
    pub(super) path: WritePath,
    /// True if the open file has O_DIRECT set.
    pub(super) o_direct: bool,
    /// True if other mounts may have pages of the file.
    pub(super) shared: bool,
}

impl Adapter {
    /// Returns the function that answers an asynchronous write.
    pub(super) fn write_completion(
        &self,
        write: WriteRequest,
        reply: ReplyWrite,
    ) -> impl FnOnce(Result<(), ClientError>) + Send + use<> {
        let WriteRequest { ino, handle, offset, len, o_direct, shared, .. } = write;
        let failures = Arc::clone(&self.failures);
        let around = o_direct.then(|| (Arc::clone(&self.handles), Arc::clone(&self.pages)));
        let answer = self.write_answer(ino, shared);
        move |written| match (written, around) {
            (Ok(()), Some((handles, pages)))
                if handles.record_direct_write(ino, handle, (offset, len.into())) =>
            {
                let range = PageDrop::range(ino, (offset, len.into()));
                pages.drop_and_answer(range, move || answer(reply, len));
            }
            (Ok(()), _) => answer(reply, len),
            (Err(e), _) => reply.error(failures.errno("write", &e)),
        }
    }

    /// Answers a write. `written` is the offset and the number of the bytes that are in place.
    pub(super) fn finish_write(
        &self,
        write: WriteRequest,
        written: Result<(u64, u32), ClientError>,
        reply: ReplyWrite,
    ) {
        let WriteRequest { ino, handle, unique, offset, path, o_direct, shared, .. } = write;
        let (at, len) = match written {
            Ok(written) => written,
            Err(e) => {
                if path == WritePath::WriteBack {
                    self.losses.add((ino, offset, write.len), &e);
                }
                return reply.error(self.errno("write", &e));
            }
        };
        let answer = self.write_answer(ino, shared);
        let range = (offset, len.into());
        if path == WritePath::AroundPages && self.handles.are_cached(ino) {
            // A page that was read meanwhile may lack these bytes.
            self.pages.drop_then(PageDrop::tail(ino, at.min(offset)), move || answer(reply, len));
        } else if path != WritePath::WriteBack
            && o_direct
            && self.handles.record_direct_write(ino, handle, range)
        {
            self.pages.drop_and_answer(PageDrop::range(ino, range), move || answer(reply, len));
        } else if path == WritePath::ThroughPages
            && self.client.pages.is_contested(ino)
            && let Some(range) = self.handles.overtaking_reads(ino, unique, range)
        {
            // A write of another mount may have dropped pages that this write has changed. If they
            // were read again before the bytes were in place, they lack the bytes.
            self.pages.drop_then(PageDrop::range(ino, range), move || answer(reply, len));
        } else {
            answer(reply, len);
        }
    }
}
