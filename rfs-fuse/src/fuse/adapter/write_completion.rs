//! Completes writes: drops pages that would be stale, and answers.
//!
//! # Concurrency
//! Session threads, and threads that complete asynchronous writes. Takes the lock of `Handles`.

use std::sync::Arc;

use super::Adapter;
use crate::fuse::{
    kernel_cache::{
        handles::{Handle, Handles},
        pages::{PageDrop, Pages},
    },
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

/// Pages that the kernel drops because they may lack the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldPages {
    None,
    /// The write is answered after the drop.
    First(PageDrop),
    /// As [`First`](Self::First), unless too many writes wait for drops.
    FirstOfFew(PageDrop),
}

impl WriteRequest {
    /// Returns the old pages of a write whose `len` bytes are in place at `at`. `is_contested`: the
    /// kernel was told to drop pages of the file since it was opened. The caller looks after the
    /// bytes are in place, because another mount may open the file during the write.
    fn old_pages(&self, (at, len): (u64, u32), is_contested: bool, handles: &Handles) -> OldPages {
        let &WriteRequest { ino, handle, unique, offset, path, o_direct, .. } = self;
        let range = (offset, len.into());
        if path == WritePath::AroundPages && handles.are_cached(ino) {
            // A page that was read meanwhile may lack these bytes.
            return OldPages::First(PageDrop::tail(ino, at.min(offset)));
        }
        if path != WritePath::WriteBack && o_direct && handles.record_direct_write(ino, handle, range) {
            return OldPages::FirstOfFew(PageDrop::range(ino, range));
        }
        if path != WritePath::ThroughPages || !is_contested {
            return OldPages::None;
        }
        // A write of another mount may have dropped pages that this write has changed. If they
        // were read again before the bytes were in place, they lack the bytes.
        let read_meanwhile = handles.overtaking_reads(ino, unique, range);
        read_meanwhile.map_or(OldPages::None, |range| OldPages::First(PageDrop::range(ino, range)))
    }
}

impl OldPages {
    /// Has the kernel drop the pages, and answers.
    fn drop_and(self, pages: &Pages, answer: impl FnOnce() + Send + 'static) {
        match self {
            OldPages::None => answer(),
            OldPages::First(old) => pages.drop_then(old, answer),
            OldPages::FirstOfFew(old) => pages.drop_and_answer(old, answer),
        }
    }
}

impl Adapter {
    /// Returns the function that answers an asynchronous write.
    pub(super) fn write_completion(
        &self,
        write: WriteRequest,
        reply: ReplyWrite,
    ) -> impl FnOnce(Result<(), ClientError>) + Send + use<> {
        let WriteRequest { ino, offset, len, shared, .. } = write;
        let failures = Arc::clone(&self.failures);
        let kept = (Arc::clone(&self.client), Arc::clone(&self.handles), Arc::clone(&self.pages));
        let answer = self.write_answer(ino, shared);
        move |written| {
            let (client, handles, pages) = kept;
            match written {
                Ok(()) => write
                    .old_pages((offset, len), client.pages.is_contested(ino), &handles)
                    .drop_and(&pages, move || answer(reply, len)),
                Err(e) => reply.error(failures.errno("write", &e)),
            }
        }
    }

    /// Answers a write. `written` is the offset and the number of the bytes that are in place.
    pub(super) fn finish_write(
        &self,
        write: WriteRequest,
        written: Result<(u64, u32), ClientError>,
        reply: ReplyWrite,
    ) {
        let WriteRequest { ino, offset, path, shared, .. } = write;
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
        write
            .old_pages((at, len), self.client.pages.is_contested(ino), &self.handles)
            .drop_and(&self.pages, move || answer(reply, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::kernel_cache::handles::HandleOptions;

    const INO: u64 = 5;
    const PAGE: u64 = 4096;

    fn write_to(handle: Handle, path: WritePath, o_direct: bool) -> WriteRequest {
        let (unique, offset, len) = (10, PAGE, PAGE as u32);
        WriteRequest { ino: INO, handle, unique, offset, len, path, o_direct, shared: false }
    }

    /// Catches a write that leaves a page without its bytes, although another mount has opened the
    /// file during the write.
    #[test]
    fn pages_of_a_contested_file_that_were_read_during_a_write_are_old() {
        let handles = Handles::default();
        let handle = handles.open(INO, HandleOptions::default());
        let write = write_to(handle, WritePath::ThroughPages, false);
        let (len, old) = (write.len, |contested| write.old_pages((PAGE, write.len), contested, &handles));
        assert_eq!(old(true), OldPages::None, "no page was read again");
        handles.record_read(INO, 12, (0, 8 * PAGE));
        assert_eq!(old(true), OldPages::First(PageDrop::range(INO, (PAGE, len.into()))));
        assert_eq!(old(false), OldPages::None, "the kernel has dropped no page");
        let written_back = write_to(handle, WritePath::WriteBack, false);
        assert_eq!(written_back.old_pages((PAGE, len), true, &handles), OldPages::None);
    }

    #[test]
    fn pages_are_old_after_writes_around_them() {
        let handles = Handles::default();
        let handle = handles.open(INO, HandleOptions::default());
        let appended = write_to(handle, WritePath::AroundPages, false);
        let tail = OldPages::First(PageDrop::tail(INO, PAGE));
        assert_eq!(appended.old_pages((4 * PAGE, 9), false, &handles), tail);
        let direct = write_to(handle, WritePath::ThroughPages, true);
        let range = OldPages::FirstOfFew(PageDrop::range(INO, (PAGE, PAGE)));
        assert_eq!(direct.old_pages((PAGE, direct.len), false, &handles), range);
    }
}
