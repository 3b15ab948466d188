//! Open files: the numbers that the kernel knows them by, and what opening and writing take along.

use fuser::{FileHandle, FopenFlags};
use rfs_proto::{Attr, Marks, SetAttr};
use rustix::fs::OFlags;

use super::{Adapter, in_group};
use crate::{
    client::{ClientError, Creator, Since, Telling},
    fuse::{handles::OpenedAs, lifetimes::Asked, retries::Intent, session::Request},
};

const SUID: u32 = 0o4000;
pub(super) const SGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o0010;

/// True if these permission bits lend a program rights: what a write, or a change of owner, takes away.
pub(super) fn lends_rights(perm: u32) -> bool {
    perm & SUID != 0 || perm & (SGID | GROUP_EXEC) == SGID | GROUP_EXEC
}

impl Adapter {
    /// A handle for a file that was opened with these flags, and what the kernel has to know of it.
    pub(super) fn new_handle(
        &self,
        telling: &Telling<'_>,
        since: Since,
        attr: &Attr,
        flags: i32,
    ) -> (FileHandle, FopenFlags) {
        let ino = attr.ino;
        let flags = OFlags::from_bits_retain(flags as u32);
        let o_direct = flags.contains(OFlags::DIRECT);
        if self.settings.writeback {
            // The kernel knows where the end is, and that its pages are good.
            let handle = self.handles.open(ino, OpenedAs { o_direct, ..OpenedAs::default() });
            return (FileHandle(handle.0), self.settings.open_flags());
        }
        let appends = flags.contains(OFlags::APPEND);
        // Another mount may write to it, and hears of no pages of it that are kept from now on.
        let shared = self.maps_around && !telling.keeps_nothing() && !telling.holds_pages(attr);
        let direct = appends || shared || self.settings.direct_io;
        let handle = self.handles.open(ino, OpenedAs { appends, without_pages: direct, o_direct });
        let how = match (appends || shared, direct) {
            // Through the page cache the kernel would decide where an append goes, and cut it at page boundaries.
            (true, _) => FopenFlags::FOPEN_DIRECT_IO,
            (false, true) => FopenFlags::empty(),
            (false, false) if telling.opens_pages(since, attr, handle.0) => FopenFlags::FOPEN_KEEP_CACHE,
            (false, false) => FopenFlags::empty(),
        };
        (FileHandle(handle.0), self.settings.open_flags() | how)
    }

    /// Opens for the kernel.
    pub(super) fn open_file(&self, ino: u64, write: bool, thread: u32) -> Result<Attr, ClientError> {
        let known = self.client.is_open(ino);
        let attr = self.client.open(ino, write)?;
        if attr.nlink == 0 && !known && self.recalls.are_late() && self.retries.send_back(thread, None) {
            // The kernel may have gone by a name that is out of date.
            self.client.close(ino)?;
            return Err(ClientError::Errno(rfs_proto::Errno::ESTALE));
        }
        // What only this mount changes, the kernel knows.
        if !self.settings.writeback {
            self.refresh(&attr);
        }
        Ok(attr)
    }

    /// Sends a thread back that would make or open a file, whose name comes and goes: the next
    /// lookup of it by this thread [makes](Self::make_at_last) the file if there is none. Not if
    /// the thread could not open such a file.
    pub(super) fn send_back_to_make(&self, asked: &Asked<'_>, perm: u32, by: Creator) {
        let &Asked { parent, name, thread, .. } = asked;
        let intent = Intent { parent, name: name.into(), perm, by };
        let opens = by.uid == 0 || perm & OWNER_READS_AND_WRITES == OWNER_READS_AND_WRITES;
        self.retries.arrived(thread);
        self.retries.send_back(thread, opens.then_some(intent));
    }

    /// There is no such name. If the thread has been sent back by
    /// [`send_back_to_make`](Self::send_back_to_make), makes the file now: the kernel would not
    /// send the thread back a second time if the name was there again.
    pub(super) fn make_at_last(&self, asked: &Asked<'_>) -> Result<Attr, ClientError> {
        let absent = || Err(ClientError::Errno(rfs_proto::Errno::ENOENT));
        let Some(Intent { parent, name, perm, by }) =
            self.retries.intent(asked.thread, asked.parent, asked.name)
        else {
            return absent();
        };
        for _ in 0..CREATES_AT_LAST {
            match self.client.mknod(parent, &name, REGULAR | perm, 0, by) {
                Err(ClientError::Errno(rfs_proto::Errno::EEXIST)) => {}
                made => {
                    self.changed(parent, asked.thread);
                    return made;
                }
            }
            match self.client.lookup(parent, &name) {
                Err(ClientError::Errno(rfs_proto::Errno::ENOENT)) => {}
                found => return found,
            }
        }
        absent()
    }

    /// A file with these attributes is open now: reading it may count as an access.
    pub(super) fn note_access(&self, attr: &Attr, flags: i32, how: FopenFlags) {
        let flags = OFlags::from_bits_retain(flags as u32);
        let reads = flags & OFlags::ACCMODE != OFlags::WRONLY && !flags.contains(OFlags::NOATIME);
        let unseen = how.contains(FopenFlags::FOPEN_KEEP_CACHE) && !flags.contains(OFlags::DIRECT);
        if reads && self.client.will_read(attr, unseen) {
            self.drop_attributes(attr.ino);
        }
    }

    /// Whether a file may have a capability to lose; asked before a write as it is asked elsewhere in a kernel.
    pub(super) fn may_have_capability(&self, ino: u64) -> bool {
        self.client.privileges(ino).map_or(true, |(_, marks)| marks.contains(Marks::CAPABILITY))
    }

    /// Takes from a file that was written what it must not keep: suid and sgid if somebody without the right to leave them did,
    /// capabilities if it was written around the page cache (for cached writes the kernel removes them).
    pub(super) fn drop_privileges(&self, ino: u64, by: Option<&Request>) -> Result<(), ClientError> {
        let (perm, marks) = self.client.privileges(ino)?;
        let by = by.filter(|_| perm & (SUID | SGID) != 0);
        let mut changed = None;
        if by.is_some() && lends_rights(perm) {
            let changes = SetAttr { drop_privileges: true, ..SetAttr::default() };
            changed = Some(self.client.setattr(ino, &changes)?);
        } else if marks.contains(Marks::CAPABILITY) {
            self.client.drop_capability(ino)?;
        }
        if let Some(by) = by {
            let attr = changed.map_or_else(|| self.client.getattr(ino), Ok)?;
            changed = self.drop_strangers_sgid(&attr, by)?.or(changed);
        }
        if let Some(attr) = changed {
            self.refresh(&attr);
            self.client.told(&attr, 0);
        }
        Ok(())
    }

    /// Where the group may not execute, sgid stays if one of the group has written. Takes it from a file that somebody else has; its
    /// attributes then.
    pub(super) fn drop_strangers_sgid(&self, attr: &Attr, by: &Request) -> Result<Option<Attr>, ClientError> {
        if attr.perm & (SGID | GROUP_EXEC) != SGID || in_group(by, attr.gid) {
            return Ok(None);
        }
        let changes = SetAttr { perm: Some(attr.perm & !SGID), ..SetAttr::default() };
        self.client.setattr(attr.ino, &changes).map(Some)
    }
}

/// True if a file that is opened with these flags can be written.
pub(super) fn is_to_write(flags: i32) -> bool {
    OFlags::from_bits_retain(flags as u32) & OFlags::ACCMODE != OFlags::RDONLY
}

/// So often a file is made, and looked up, by a thread that cannot be sent back any more.
pub(super) const CREATES_AT_LAST: u32 = 1000;
/// The kind of a file, in a mode.
const REGULAR: u32 = 0o100_000;
const OWNER_READS_AND_WRITES: u32 = 0o600;

/// So often a file is made at the most, before who would open another one as well is sent to look for it.
pub(super) const CREATES: u32 = 5;

/// Makes a file; `None` if there is one, however often it is tried.
pub(super) fn make_new(
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
