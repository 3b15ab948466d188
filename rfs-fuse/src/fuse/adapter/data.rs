//! Reads, writes, allocation and copies.
//!
//! This crate has `unsafe` code here, in `descriptors`, in `session::device`
//! and in `session::ring`.
//!
//! # Concurrency
//! Session threads, and threads that complete asynchronous reads and writes. Takes the lock of
//! `Handles`.

use std::{cell::RefCell, sync::Arc};

use fuser::{Errno, FileHandle, INodeNo, OpenFlags, WriteFlags};
use rfs_proto::FallocateFlags;
use rustix::fs::OFlags;

use super::{
    Adapter, is_privileged,
    write_completion::{WritePath, WriteRequest},
};
use crate::fuse::{
    convert,
    kernel_cache::{handles::Handle, pages::PageDrop},
    session::{ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite, Request},
};
use rfs_client::{ClientError, ReadData, Seek};

/// Directions of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// Buffer for reads that cannot be answered in place.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns true if the request's open file has O_DIRECT set.
fn is_o_direct(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::DIRECT)
}

/// Answers a read. A reply by a system call sends bytes of mapped server memory without a copy.
#[inline]
fn send(reply: ReplyData, data: ReadData<'_>) {
    match data {
        ReadData::Bytes(bytes) => reply.data(bytes),
        ReadData::Mapped { memory, offset, len } => {
            // SAFETY: the slice goes only into the writev that sends the reply. The channel builds
            // an IoSlice of it, reads single bytes as volatile, and keeps no reference.
            let lend = || unsafe { memory.as_syscall_slice(offset, len) };
            reply.shared_data(len, lend, |into| memory.read(offset, into));
        }
    }
}

impl Adapter {
    /// Reads a file.
    #[inline]
    pub(super) fn read_file(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, FileHandle),
        (offset, size): (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    ) {
        if !is_o_direct(flags) {
            self.handles.record_page_fill(ino.0, (offset, size.into()));
            if self.client.pages.is_contested(ino.0) {
                self.handles.record_read(ino.0, request.unique(), (offset, size.into()));
            }
        }
        if let Err(e) = self.client.locks.check_locks(ino.0, handle.0).and_then(|()| self.hold_pages(ino.0)) {
            return reply.error(self.errno("read", &e));
        }
        let failures = Arc::clone(&self.failures);
        let others = reply.other_requests();
        let answer = move |data: Result<ReadData<'_>, ClientError>| match data {
            Ok(data) => send(reply, data),
            Err(e) => reply.error(failures.errno("read", &e)),
        };
        let next = || self.kernel.next(others);
        let Err(answer) = self.client.async_io.start_read(ino.0, offset, size as usize, next, answer) else {
            return;
        };
        let mut answer = Some(answer);
        let read = BUFFER.with_borrow_mut(|buffer| {
            self.client.reads.read(ino.0, offset, size as usize, buffer, |data| {
                if let Some(answer) = answer.take() {
                    answer(Ok(data));
                }
            })
        });
        if let (Err(e), Some(answer)) = (read, answer) {
            answer(Err(e));
        }
    }

    /// Writes a file.
    #[inline]
    pub(super) fn write_file(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, FileHandle),
        offset: u64,
        data: &[u8],
        (write_flags, flags): (WriteFlags, OpenFlags),
        reply: ReplyWrite,
    ) {
        let handle = Handle(handle.0);
        // A write from the page cache carries changes of mapped memory. Its offset is final, even
        // with O_APPEND.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // With `direct_io` no handle has pages.
        let path = match handle.is_without_pages() {
            _ if from_cache => WritePath::WriteBack,
            true => WritePath::AroundPages,
            false => WritePath::ThroughPages,
        };
        if path == WritePath::ThroughPages
            && let Err(e) = self.hold_pages(ino.0)
        {
            return reply.error(self.errno("write", &e));
        }
        // Changes of mapped memory need not be visible to other mounts.
        let shared = !from_cache && self.client.pages.is_shared(ino.0);
        let appends = !from_cache
            && handle.is_for_append()
            && OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::APPEND);
        let (unique, o_direct) = (request.unique(), is_o_direct(flags));
        // The kernel sends at most max_write bytes.
        let len = data.len() as u32;
        let write = WriteRequest { ino: ino.0, handle, unique, offset, len, path, o_direct, shared };
        let unprivileged = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let only_stores = self.only_stores(&write, unprivileged);
        // After all that may wait for the server: a lock that is lost meanwhile does not guard the
        // write any more.
        if let Err(e) = self.client.locks.check_locks(ino.0, handle.0) {
            return reply.error(self.errno("write", &e));
        }
        if only_stores
            && let Some(started) = self
                .client
                .async_io
                .prepare_write(ino.0, offset, data, || self.kernel.next(reply.other_requests()))
        {
            return started.start(self.write_completion(write, reply));
        }
        let mut written = self.store(&write, data, appends);
        if unprivileged || path == WritePath::AroundPages {
            let by = unprivileged.then_some(request);
            written = written.and_then(|range| self.drop_privileges(ino.0, by).map(|()| range));
        }
        self.finish_write(write, written, reply);
    }

    /// Returns true if the write may be answered by the thread that finds its completion. It is
    /// small, there are no pages to drop and no rights to clear, and the caller hears of an error.
    #[inline]
    fn only_stores(&self, write: &WriteRequest, unprivileged: bool) -> bool {
        let &WriteRequest { ino, handle, len, path, .. } = write;
        let contested = path == WritePath::ThroughPages && self.client.pages.is_contested(ino);
        // With `direct_io` no file has pages.
        let drops_pages = handle.is_for_append() || (handle.is_without_pages() && !self.settings.direct_io);
        let only_places =
            !(path == WritePath::WriteBack || unprivileged || drops_pages || self.settings.writeback);
        only_places
            && !contested
            && self.client.async_io.can_be_async(len as usize)
            && !(path == WritePath::AroundPages && self.may_have_capability(ino))
    }

    /// Writes bytes, at the end of the file if the write `appends`. Returns the written range.
    #[inline]
    fn store(&self, write: &WriteRequest, data: &[u8], appends: bool) -> Result<(u64, u32), ClientError> {
        let &WriteRequest { ino, offset, len, path, o_direct, .. } = write;
        if appends {
            self.client.appends.append(ino, data).map(|at| (at, len))
        } else if self.settings.writeback {
            self.client.write_back.write(ino, offset, data).map(|()| (offset, len))
        } else if path == WritePath::WriteBack || o_direct {
            // The kernel does not write the rest of a short write here. It fails a split write with
            // EIO if one part is short.
            self.client.writes.write(ino, offset, data).map(|()| (offset, len))
        } else {
            self.client.writes.write_some(ino, offset, data).map(|written| (offset, written.len as u32))
        }
    }

    /// Allocates space, or punches a hole.
    pub(super) fn allocate(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, FileHandle),
        (offset, length): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(flags) = FallocateFlags::from_bits(mode as u32) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let checked = self.client.locks.check_locks(ino.0, handle.0);
        let done = checked.and_then(|()| self.client.space.fallocate(ino.0, offset, length, flags));
        let by = (!is_privileged(request)).then_some(request);
        let done = done.and_then(|_| self.drop_privileges(ino.0, by));
        self.answer_result("fallocate", done, reply);
    }

    /// Returns the next data or hole.
    pub(super) fn seek(&self, ino: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        // The kernel sends no other direction, and no negative offset.
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        if self.settings.writeback && self.client.files.is_open_to_write(ino.0) {
            // Dirty pages of the kernel are data, too.
            let client = Arc::clone(&self.client);
            let seek = move || match client.space.seek(ino.0, offset, what) {
                Ok(found) => reply.offset(found as i64),
                Err(e) => reply.error(convert::errno(e.errno())),
            };
            return self.pages.drop_then(PageDrop::tail(ino.0, offset), seek);
        }
        match self.client.space.seek(ino.0, offset, what) {
            // Offsets in a file fit into i64.
            Ok(found) => reply.offset(found as i64),
            Err(e) => reply.error(self.errno("lseek", &e)),
        }
    }

    /// Copies within the server.
    pub(super) fn copy(
        &self,
        request: &Request,
        (from, handle, from_offset): (INodeNo, FileHandle, u64),
        (to, to_handle, to_offset): (INodeNo, FileHandle, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let checked = self.client.locks.check_locks(from.0, handle.0);
        let checked = checked.and_then(|()| self.client.locks.check_locks(to.0, to_handle.0));
        let copied =
            checked.and_then(|()| self.client.space.copy((from.0, from_offset), (to.0, to_offset), len));
        let copied = copied.and_then(|bytes| {
            self.drop_privileges(to.0, (!is_privileged(request)).then_some(request))?;
            Ok(bytes)
        });
        match copied {
            // The server copies far less than 4 GiB per call.
            Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
            Err(e) => reply.error(self.errno("copy_file_range", &e)),
        }
    }
}
