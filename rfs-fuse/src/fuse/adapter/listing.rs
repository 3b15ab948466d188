//! Lists directories, with and without attributes.
//!
//! The kernel caches a listing, and answers from it without a request, until the server recalls
//! names in it or this mount changes it.
//!
//! # Concurrency
//! Session threads. Recalls wait while a `RecallGuard` exists.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Duration};

use fuser::{FileHandle, FileType, FopenFlags, INodeNo};
use rfs_proto::Attr;
use rustix::fs::OFlags;

use super::Adapter;
use crate::fuse::{
    convert,
    kernel_cache::{
        lifetimes::{GENERATION, NameQuery},
        pages::PageDrop,
    },
    session::{ReplyDirectory, ReplyDirectoryPlus, ReplyOpen, Request},
};
use rfs_client::{ListingUse, RecallGuard};

/// Number of entries per call to the server: about as many as fit into a reply to the kernel.
const PLUS_ENTRIES: u32 = 180;
const PLAIN_ENTRIES: u32 = 400;

/// Number of cookies for `.` and `..`. The server's cookies follow.
const DOTS: u64 = 2;

impl Adapter {
    pub(super) fn open_directory(&self, ino: INodeNo, flags: i32, reply: ReplyOpen) {
        let handle = self.handles.open_directory().0;
        let how = match self.settings.keeps_listings() {
            true => self.client.caching.hold_recalls().opens_listing(ino.0, handle),
            false => ListingUse::Bypass,
        };
        let unseen =
            how == ListingUse::Keep && !OFlags::from_bits_retain(flags as u32).contains(OFlags::NOATIME);
        let read = if unseen { self.client.access_times.will_list(ino.0) } else { Ok(false) };
        match read {
            Ok(true) => self.drop_attributes(ino.0),
            Ok(false) => {}
            Err(e) => {
                self.client.directories.closed_listing(ino.0, handle);
                return reply.error(self.inode_errno("opendir", &e));
            }
        }
        let flags = match how {
            ListingUse::Keep => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            ListingUse::Collect => FopenFlags::FOPEN_CACHE_DIR,
            ListingUse::Bypass => FopenFlags::FOPEN_KEEP_CACHE,
        };
        reply.opened(FileHandle(handle), flags);
    }

    /// Ends a listing by an empty reply. The kernel then takes the collected entries for the whole
    /// directory, so stale entries are dropped first.
    fn end(
        &self,
        guard: RecallGuard<'_>,
        (ino, handle): (INodeNo, FileHandle),
        answer: impl FnOnce() + Send + 'static,
    ) {
        if guard.completes_listing(ino.0, handle.0) {
            return answer();
        }
        drop(guard);
        self.pages.drop_then(PageDrop::tail(ino.0, 0), answer);
    }

    pub(super) fn list(&self, (ino, handle): (INodeNo, FileHandle), offset: u64, mut reply: ReplyDirectory) {
        self.client.directories.lists_through(ino.0, handle.0);
        let page = match self.client.directories.readdir(ino.0, offset.saturating_sub(DOTS), PLAIN_ENTRIES) {
            Ok(page) => page,
            Err(e) => return reply.error(self.errno("readdir", &e)),
        };
        if offset >= DOTS && page.entries.is_empty() {
            return self.end(self.client.caching.hold_recalls(), (ino, handle), move || reply.ok());
        }
        for (at, dot, name) in [(1, ino, "."), (DOTS, INodeNo(page.parent), "..")] {
            if offset < at && reply.add(dot, at, FileType::Directory, OsStr::new(name)) {
                return reply.ok();
            }
        }
        for entry in &page.entries {
            let next = entry.cookie.saturating_add(DOTS);
            let kind = convert::file_type(entry.attr.kind);
            if reply.add(INodeNo(entry.attr.ino), next, kind, OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn list_plus(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, FileHandle),
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.client.directories.lists_through(ino.0, handle.0);
        let _arrival = self.client.caching.arrival();
        let since = self.client.caching.since();
        let listed = self.client.directories.readdir(ino.0, offset.saturating_sub(DOTS), PLUS_ENTRIES);
        let (page, own) = match listed.and_then(|page| Ok((page, self.client.attributes.getattr(ino.0)?))) {
            Ok(found) => found,
            Err(e) => return reply.error(self.errno("readdirplus", &e)),
        };
        if offset == 0
            && let Err(e) = self.client.access_times.reads_directory(&own)
        {
            return reply.error(self.errno("readdirplus", &e));
        }
        let guard = self.client.caching.hold_recalls();
        if offset >= DOTS && page.entries.is_empty() {
            return self.end(guard, (ino, handle), move || reply.ok());
        }
        let ttl = Duration::ZERO;
        for (at, dot, name) in [(1, ino.0, "."), (DOTS, page.parent, "..")] {
            // The kernel takes neither attributes nor a reference from `.` and `..`.
            let attr = convert::attr(&Attr { ino: dot, ..own });
            if offset < at && reply.add(INodeNo(dot), at, OsStr::new(name), &ttl, &attr, GENERATION) {
                return reply.ok();
            }
        }
        for entry in &page.entries {
            let next = entry.cookie.saturating_add(DOTS);
            let name = OsStr::from_bytes(&entry.name);
            let visible = guard.visible_with_name(since, &entry.attr);
            guard.reference(since, &entry.attr);
            let query = NameQuery { since, parent: ino.0, name: &entry.name, thread: request.pid() };
            let ttl = self.lifetimes.of_both(&guard, &query, &visible);
            let attr = convert::attr(&visible);
            if reply.add(INodeNo(entry.attr.ino), next, name, &ttl, &attr, GENERATION) {
                self.client.lookups.forget(entry.attr.ino, 1);
                break;
            }
            guard.told(since, &visible, request.pid());
        }
        reply.ok();
    }
}
