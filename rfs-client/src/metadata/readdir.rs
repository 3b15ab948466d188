//! Reading directories, and learning their names.
//!
//! # Concurrency
//! Session threads. Takes the locks of the cache, each briefly, and none over a call.

use std::sync::Arc;

use rfs_proto::{DirPage, Reply, Request};

use crate::{
    cache::dir_names::ListingId,
    error::ClientError,
    inode::table::InodeTable,
    requests::{
        cache_rules::CacheRules,
        calls::{Calls, wrong_kind},
    },
};

/// Entries of one page of a directory that is listed to learn its names. They fill about one
/// message.
const PAGE: u32 = 700;

/// Reads directories, and learns their names.
#[derive(Debug)]
pub struct Directories {
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
}

impl Directories {
    pub(crate) fn new(calls: &Arc<Calls>) -> Directories {
        let (caching, inodes) = (Arc::clone(&calls.caching), Arc::clone(&calls.caching.inodes));
        Directories { calls: Arc::clone(calls), caching, inodes }
    }

    /// Returns up to `max_entries` entries of a directory after `cookie`. Takes no references.
    pub fn readdir(&self, ino: u64, cookie: u64, max_entries: u32) -> Result<DirPage, ClientError> {
        let listing = self.lists(ino, cookie);
        let mut page = match self.calls.call(&Request::ReadDir { ino, cookie, max_entries })? {
            Reply::Dir(page) => page,
            _ => return wrong_kind(),
        };
        self.listed(listing, ino, cookie, &page);
        for entry in &mut page.entries {
            if let Some(inode) = self.inodes.get(entry.attr.ino) {
                entry.attr = inode.with_pending(entry.attr);
            }
        }
        Ok(page)
    }

    /// Fetches a page of a directory to learn its names.
    pub(crate) fn list(&self, dir: u64) -> Result<(), ClientError> {
        let listing = self.caching.cache.dir_names.lock().lists(dir, 0);
        let Some((id, from)) = listing else { return Ok(()) };
        match self.calls.call(&Request::ReadDir { ino: dir, cookie: from, max_entries: PAGE })? {
            Reply::Dir(page) => {
                self.listed(Some(id), dir, from, &page);
                Ok(())
            }
            _ => wrong_kind(),
        }
    }

    /// Returns the listing that a page behind `cookie` will belong to, if it helps to learn the
    /// directory's names.
    pub(crate) fn lists(&self, dir: u64, cookie: u64) -> Option<ListingId> {
        if !self.caching.is_on() {
            return None;
        }
        Some(self.caching.cache.dir_names.lock().lists(dir, cookie)?.0)
    }

    /// Adds a page to its listing.
    pub(crate) fn listed(&self, listing: Option<ListingId>, dir: u64, cookie: u64, page: &DirPage) {
        let Some(id) = listing else { return };
        let to = page.entries.last().map_or(cookie, |entry| entry.cookie);
        let names = page.entries.iter().map(|entry| &entry.name[..]);
        self.caching.cache.dir_names.lock().listed((dir, id), (cookie, to), names, page.end);
    }

    /// Notes that the directory is read through `handle`.
    pub fn lists_through(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.caller.lock().listing.used(handle);
        }
    }

    /// Notes that the directory's `handle` is closed for good.
    pub fn closed_listing(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.caller.lock().listing.closed(handle);
        }
    }
}
