//! Lookups of names: from the cache if its answer is certain, else at the server.
//!
//! Directories become known by listing them after some failed lookups
//! (`cache::DirNames`). Names that are looked up in order are prefetched.
//!
//! # Concurrency
//! Session threads. Takes the locks of the cache, each briefly, and none over a call.

use std::sync::Arc;

use rfs_proto::{Attr, Errno, ROOT_INO, Reply, Request};

use crate::{
    cache::{dir_names::Mark, recall_log::RequestTime, uses::CacheKind},
    error::ClientError,
    inode::table::InodeTable,
    metadata::{names::check_name, readdir::Directories},
    requests::{
        cache_rules::CacheRules,
        calls::{Calls, wrong_kind},
    },
};

/// Looks names up, and keeps the references that lookups take.
#[derive(Debug)]
pub struct Lookups {
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    directories: Arc<Directories>,
}

impl Lookups {
    pub(crate) fn new(calls: &Arc<Calls>, directories: &Arc<Directories>) -> Lookups {
        let (caching, inodes) = (Arc::clone(&calls.caching), Arc::clone(&calls.caching.inodes));
        Lookups { calls: Arc::clone(calls), caching, inodes, directories: Arc::clone(directories) }
    }

    /// Looks a name up and takes a reference. Makes no call if the name is known to be absent, or
    /// its attributes were prefetched.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attr, ClientError> {
        check_name(name)?;
        let _arrival = self.inodes.arrival();
        let since = self.caching.since();
        if !self.caching.is_on() {
            return self.ask(parent, name, since);
        }
        if self.inodes.get(parent).is_some_and(|directory| directory.is_unlinked()) {
            // A removed directory is known to be empty. ESTALE keeps the caller from caching the
            // absence of names in it.
            return Err(Errno::ESTALE.into());
        }
        let known = self.remembered(parent, name);
        self.caching.cache.uses.count(CacheKind::Names, known.is_some());
        if let Some(known) = known {
            return known;
        }
        if self.caching.cache.dir_names.lock().is_new(parent) {
            self.directories.list(parent)?;
            if let Some(known) = self.remembered(parent, name) {
                return known;
            }
        }
        let mark = self.caching.cache.dir_names.lock().mark();
        let since = self.caching.since();
        let prefetch = self.caching.cache.prefetch.lock().entries_to_fetch(parent);
        let asked = match prefetch {
            0 => self.ask(parent, name, since),
            more => self.ask_with_prefetch((parent, name), more, (since, mark)),
        };
        match asked {
            Err(ClientError::Errno(Errno::ENOENT)) => {
                let due = {
                    let guard = self.caching.hold_recalls();
                    let recalled = guard.lost(since, parent, Some(name));
                    self.caching.cache.dir_names.lock().missed(parent, name, mark, recalled)
                };
                if due {
                    // The name is absent, whether or not the listing succeeds.
                    self.directories.list(parent).ok();
                }
                Err(Errno::ENOENT.into())
            }
            found => found,
        }
    }

    /// Returns the attributes of an inode by its number, and takes a reference. ENOENT if it has no
    /// name any more.
    pub fn lookup_number(&self, ino: u64) -> Result<Attr, ClientError> {
        let _arrival = self.inodes.arrival();
        let since = self.caching.since();
        let attr = self.calls.call_attr(&Request::GetAttr { ino })?;
        if attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(self.caching.referenced(since, attr))
    }

    /// Returns the attributes of the parent of a directory, by the directory's number. Takes a
    /// reference.
    pub fn lookup_parent(&self, dir: u64) -> Result<Attr, ClientError> {
        match self.calls.call(&Request::ReadDir { ino: dir, cookie: 0, max_entries: 1 })? {
            Reply::Dir(page) => self.lookup_number(page.parent),
            _ => wrong_kind(),
        }
    }

    /// Returns `count` references.
    pub fn forget(&self, ino: u64, count: u64) {
        if ino == ROOT_INO {
            // The caller never looked the root up.
            return;
        }
        self.inodes.release(ino, count);
    }

    /// Returns true if this process has named an inode to the caller, and false if only a previous
    /// process has. `None`: the caller has no reference to it.
    pub fn has_named(&self, ino: u64) -> Option<bool> {
        self.inodes.get(ino).map(|inode| !inode.is_inherited())
    }

    /// Returns the inodes that only a previous process has named to the caller.
    pub fn inherited(&self) -> Vec<u64> {
        self.inodes.inherited()
    }

    /// Returns all references to an inode that only a previous process has named, and that is not
    /// open. For an inode that the caller has forgotten, although no process knows: the previous
    /// one may have been killed before it noted that. Returns true if it was such an inode.
    pub fn forget_inherited(&self, ino: u64) -> bool {
        self.inodes.release_inherited(ino)
    }

    /// Looks a name up in the cache.
    fn remembered(&self, parent: u64, name: &[u8]) -> Option<Result<Attr, ClientError>> {
        if self.caching.cache.dir_names.lock().is_absent(parent, name) {
            return Some(Err(Errno::ENOENT.into()));
        }
        // Held until the inode is referenced here. From then on recalls of it are obeyed.
        let guard = self.caching.hold_recalls();
        let attr = self.caching.cache.prefetch.lock().take(parent, name)?;
        guard.reference(guard.now(), &attr);
        Some(Ok(attr))
    }

    /// Looks a name up at the server.
    fn ask(&self, parent: u64, name: &[u8], since: RequestTime) -> Result<Attr, ClientError> {
        Ok(self.caching.referenced(since, self.calls.call_attr(&Request::Lookup { parent, name })?))
    }

    /// Looks a name up at the server, and prefetches some of those that follow it.
    fn ask_with_prefetch(
        &self,
        (parent, name): (u64, &[u8]),
        max_entries: u32,
        (since, mark): (RequestTime, Mark),
    ) -> Result<Attr, ClientError> {
        let forgotten = self.inodes.forgotten();
        let page = match self.calls.call(&Request::LookupAhead { parent, name, max_entries })? {
            Reply::Dir(page) => page,
            _ => return wrong_kind(),
        };
        let mut entries = page.entries.into_iter();
        let attr = match entries.next() {
            Some(first) if *first.name == *name => first.attr,
            _ => return Err(ClientError::Protocol("a page that does not begin with the name asked for")),
        };
        let guard = self.caching.hold_recalls();
        // This client may have changed an inode that was referenced and forgotten meanwhile, or a
        // name.
        let calm =
            self.inodes.forgotten() == forgotten && self.caching.cache.dir_names.lock().is_calm(parent, mark);
        let fresh: Vec<_> = entries
            .filter(|entry| calm && guard.is_fresh(since, parent, &entry.name, &entry.attr))
            .map(|entry| (entry.name.into(), entry.attr))
            .collect();
        self.caching.cache.prefetch.lock().came(parent, fresh.into_iter());
        drop(guard);
        Ok(self.caching.referenced(since, attr))
    }
}
