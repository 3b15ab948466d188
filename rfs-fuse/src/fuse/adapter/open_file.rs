//! Open files: their handles, and side effects of opening and writing.
//!
//! # Concurrency
//! Session threads. Takes the locks of `Handles` and `Retries`, one at a time.

use fuser::{FileHandle, FopenFlags};
use rfs_proto::Attr;
use rustix::fs::OFlags;

use super::{Adapter, in_group, retries::Intent};
use crate::fuse::{
    kernel_cache::{
        handles::{Handle, HandleOptions},
        lifetimes::NameQuery,
    },
    session::Request,
};
use rfs_client::{ClientError, Creator, RecallGuard, RequestTime};

impl Adapter {
    /// Returns a handle for a file that was opened with `flags`, and the kernel's flags for it.
    pub(super) fn new_handle(
        &self,
        guard: &RecallGuard<'_>,
        since: RequestTime,
        attr: &Attr,
        flags: i32,
    ) -> (FileHandle, FopenFlags) {
        let ino = attr.ino;
        let flags = OFlags::from_bits_retain(flags as u32);
        let o_direct = flags.contains(OFlags::DIRECT);
        if self.settings.writeback {
            // The kernel knows the end of the file, and its pages are current.
            let handle = self.handles.open(ino, HandleOptions { o_direct, ..HandleOptions::default() });
            self.note_handle(ino, handle, 1);
            return (FileHandle(handle.0), self.settings.open_flags());
        }
        let appends = flags.contains(OFlags::APPEND);
        // Another mount may write to the file, and the server would not recall pages cached from
        // now on.
        let shared = self.maps_around && !guard.caches_nothing() && !guard.holds_pages(attr);
        let direct = appends || shared || self.settings.direct_io;
        let handle = self.handles.open(ino, HandleOptions { appends, without_pages: direct, o_direct });
        self.note_handle(ino, handle, 1);
        let how = match (appends || shared, direct) {
            // Through the page cache, the kernel would choose the offset of an append, and split it
            // at page boundaries.
            (true, _) => FopenFlags::FOPEN_DIRECT_IO,
            (false, true) => FopenFlags::empty(),
            (false, false) if guard.opens_pages(since, attr, handle.0) => FopenFlags::FOPEN_KEEP_CACHE,
            (false, false) => FopenFlags::empty(),
        };
        (FileHandle(handle.0), self.settings.open_flags() | how)
    }

    /// Notes in the kept state that a file was opened, or closed.
    pub(super) fn note_handle(&self, ino: u64, handle: Handle, amount: i64) {
        if !handle.is_without_pages() {
            self.client.note_handle(ino, handle.is_o_direct(), amount);
        }
    }

    /// Opens a file for the kernel.
    ///
    /// # Errors
    /// ESTALE sends the thread back if the kernel may have used a stale name.
    pub(super) fn open_file(&self, ino: u64, write: bool, thread: u32) -> Result<Attr, ClientError> {
        let known = self.client.files.is_open(ino);
        let attr = self.client.files.open(ino, write)?;
        if attr.nlink == 0 && !known && self.recalls.are_late() && self.retries.send_back(thread, None) {
            // An unlinked file: the kernel may have used a stale name.
            self.client.files.close(ino)?;
            return Err(ClientError::Errno(rfs_proto::Errno::ESTALE));
        }
        // With `writeback` only this mount changes the file, so the kernel's attributes are
        // current.
        if !self.settings.writeback {
            self.refresh(&attr);
        }
        Ok(attr)
    }

    /// Sends a thread back that is about to create or open a file whose name comes and goes. The
    /// thread's next lookup of the name [creates](Self::create_after_walk) the file if it is
    /// absent, unless the thread could not open such a file.
    pub(super) fn send_back_to_create(&self, query: &NameQuery<'_>, perm: u32, by: Creator) {
        let &NameQuery { parent, name, thread, .. } = query;
        let intent = Intent { parent, name: name.into(), perm, by };
        let opens = by.uid == 0 || perm & OWNER_READS_AND_WRITES == OWNER_READS_AND_WRITES;
        self.retries.finish_walk(thread);
        self.retries.send_back(thread, opens.then_some(intent));
    }

    /// Handles a lookup of an absent name. Creates the file if
    /// [`send_back_to_create`](Self::send_back_to_create) has sent the thread back. The kernel
    /// would not walk the path a third time if the name existed again.
    pub(super) fn create_after_walk(&self, query: &NameQuery<'_>) -> Result<Attr, ClientError> {
        let absent = || Err(ClientError::Errno(rfs_proto::Errno::ENOENT));
        let Some(Intent { parent, name, perm, by }) =
            self.retries.intent(query.thread, query.parent, query.name)
        else {
            return absent();
        };
        for _ in 0..MAX_CREATES_AFTER_WALK {
            match self.client.names.mknod(parent, &name, REGULAR | perm, 0, by) {
                Err(ClientError::Errno(rfs_proto::Errno::EEXIST)) => {}
                made => {
                    self.refresh_after_change(parent, query.thread);
                    return made;
                }
            }
            match self.client.lookups.lookup(parent, &name) {
                Err(ClientError::Errno(rfs_proto::Errno::ENOENT)) => {}
                found => return found,
            }
        }
        absent()
    }

    /// Records that a file was opened. A read through it may update the access time.
    pub(super) fn record_access(&self, attr: &Attr, flags: i32, how: FopenFlags) {
        let flags = OFlags::from_bits_retain(flags as u32);
        let reads = flags & OFlags::ACCMODE != OFlags::WRONLY && !flags.contains(OFlags::NOATIME);
        let unseen = how.contains(FopenFlags::FOPEN_KEEP_CACHE) && !flags.contains(OFlags::DIRECT);
        let unwritten = self.settings.writeback;
        if reads && self.client.access_times.will_read(attr, unseen, unwritten) {
            self.drop_attributes(attr.ino);
        }
    }

    /// Returns true if a file may have a capability that a write has to clear. Kernels ask this
    /// before a write, too.
    pub(super) fn may_have_capability(&self, ino: u64) -> bool {
        self.client.privileges.of(ino).map_or(true, |rights| rights.has_capability)
    }

    /// Clears rights of a written file. Clears suid and sgid if the writer `by` has no right to
    /// leave them, and capabilities if the write bypassed the page cache. For cached writes, the
    /// kernel clears capabilities.
    pub(super) fn drop_privileges(&self, ino: u64, by: Option<&Request>) -> Result<(), ClientError> {
        let privileges = &self.client.privileges;
        let loss = privileges.of(ino)?.loss(by.is_none());
        if loss.is_nothing() {
            return Ok(());
        }
        let is_member = |group| by.is_none_or(|by| in_group(by, group));
        if let Some(attr) = privileges.end(ino, loss, is_member)? {
            self.refresh(&attr);
            self.client.attributes.told(&attr, 0);
        }
        Ok(())
    }
}

/// Returns true if a file that is opened with these flags can be written.
pub(super) fn is_to_write(flags: i32) -> bool {
    OFlags::from_bits_retain(flags as u32) & OFlags::ACCMODE != OFlags::RDONLY
}

/// Maximum number of attempts to create and look up a file, for a thread that cannot be sent back
/// again.
pub(super) const MAX_CREATES_AFTER_WALK: u32 = 1000;
/// File type of a regular file in a mode.
const REGULAR: u32 = 0o100_000;
const OWNER_READS_AND_WRITES: u32 = 0o600;

/// Maximum number of attempts to create a file, before the thread is sent back to look the name
/// up.
pub(super) const MAX_CREATES: u32 = 5;

/// Creates a file. Returns `None` if the name existed at each attempt.
pub(super) fn create_new(
    tries: u32,
    make: impl Fn() -> Result<Attr, ClientError>,
) -> Result<Option<Attr>, ClientError> {
    for _ in 0..tries {
        match make() {
            Err(ClientError::Errno(rfs_proto::Errno::EEXIST)) => {}
            made => return made.map(Some),
        }
    }
    Ok(None)
}
