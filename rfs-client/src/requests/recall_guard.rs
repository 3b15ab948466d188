//! The guard under which the caller is told something that it may cache.
//!
//! # Concurrency
//! Session threads. Holds the recall log shared. Under it takes, each briefly, an inode's
//! `caller`, then `changed`; or one other lock of the cache or of an inode.

use std::time::Instant;

use parking_lot::RwLockReadGuard;
use rfs_proto::{Attr, Marks};

use crate::{
    cache::{
        listing::ListingUse,
        recall_log::{RecallLog, RequestTime},
        uses::CacheKind,
    },
    inode::Inode,
    requests::cache_rules::CacheRules,
};

/// A guard that holds recalls off. No recall is noted while it exists.
#[derive(Debug)]
pub struct RecallGuard<'c> {
    rules: &'c CacheRules,
    recall_log: RwLockReadGuard<'c, RecallLog>,
}

impl<'c> RecallGuard<'c> {
    pub(crate) fn new(rules: &'c CacheRules) -> RecallGuard<'c> {
        RecallGuard { rules, recall_log: rules.cache.recall_log.read() }
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> RequestTime {
        self.rules.cache.time(self.recall_log.now())
    }

    /// Returns attributes as the caller may be told them. They may not be cached beside a removal
    /// of a name by the caller, and for some time after it. The caller subtracts a link when it
    /// hears of the removal, perhaps late.
    pub fn visible(&self, attr: &Attr) -> Attr {
        match self.rules.cache.name_removals.any_recent(attr.ino, Instant::now) {
            true => Attr { marks: attr.marks - Marks::KEEP, ..*attr },
            false => *attr,
        }
    }

    /// Returns attributes, requested at `since`, as the caller may be told them with a name. If it
    /// may still subtract a link that they do not count, they have one more. It requests the
    /// attributes again before it shows them, because it may not cache these.
    pub fn visible_with_name(&self, since: RequestTime, attr: &Attr) -> Attr {
        let removals = &self.rules.cache.name_removals;
        let more = attr.nlink > 0 && removals.any_uncounted(since.answered, attr.ino, Instant::now);
        Attr { nlink: attr.nlink.saturating_add(more.into()), ..self.visible(attr) }
    }

    fn any_unheard_removal(&self, since: RequestTime, ino: u64) -> bool {
        self.rules.cache.name_removals.any_unheard(since.answered, ino, Instant::now)
    }

    /// Notes that the caller is told attributes, which its thread `thread` requested at `since`.
    pub fn told(&self, since: RequestTime, attr: &Attr, thread: u32) {
        let Some(inode) = self.rules.inodes.get(attr.ino) else { return };
        let cache = &self.rules.cache;
        let current = !cache.changed.lock().attr(since.changed, attr.ino)
            && !self.recall_log.attr(since.recalled, attr.ino)
            && !self.any_unheard_removal(since, attr.ino);
        inode.told(attr, thread, current);
    }

    /// Returns true if the caller may cache a reply about a name, requested at `since`, even its
    /// absence.
    pub fn may_cache_name(&self, since: RequestTime, parent: u64, name: &[u8]) -> bool {
        self.rules.cache.is_on() && !self.recall_log.name(since.recalled, parent, name)
    }

    /// Returns true if the caller may cache the absence of a name, requested at `since`. Records
    /// the name then.
    pub fn may_cache_absence(&self, since: RequestTime, parent: u64, name: &[u8]) -> bool {
        self.may_cache_name(since, parent, name) && self.rules.inodes.absent(parent, name)
    }

    /// Returns true if the caller may also cache the inode that a name stands for.
    ///
    /// No recall concerned the inode since, so the caller has its current owner. Records the name
    /// in any case, because the caller is told of it and may remember it.
    pub fn may_cache_named_inode(&self, since: RequestTime, parent: u64, name: &[u8], attr: &Attr) -> bool {
        // "." and ".." are looked up for file handles. No path walk uses them.
        if !matches!(name, b"." | b"..") {
            self.rules.inodes.named(attr.ino, parent, name);
        }
        self.may_cache_name(since, parent, name) && !self.recall_log.attr(since.recalled, attr.ino)
    }

    /// Returns true if cacheable attributes, requested at `since`, may be cached. A change by this
    /// client counts like a recall: the kernel may hear of the change before it hears of the
    /// attributes.
    pub(crate) fn may_cache_attr_of(&self, since: RequestTime, ino: u64) -> bool {
        self.rules.cache.is_on()
            && !self.rules.cache.changed.lock().attr(since.changed, ino)
            && !self.recall_log.attr(since.recalled, ino)
            && self.rules.inodes.get(ino).is_some_and(|inode| inode.is_cacheable())
    }

    /// Returns true if these attributes, requested at `since`, may be cached. They need their own
    /// mark: attributes that were read before the inode became cacheable must not be cached.
    pub fn may_cache(&self, since: RequestTime, attr: &Attr) -> bool {
        attr.marks.contains(Marks::KEEP) && self.may_cache_attr_of(since, attr.ino)
    }

    /// Takes a reference to an inode whose attributes were requested at `since`.
    pub fn reference(&self, since: RequestTime, attr: &Attr) {
        self.answered(since, &self.rules.acquire(attr), attr);
    }

    /// Notes whether attributes from the server may be cached.
    pub(crate) fn answered(&self, since: RequestTime, inode: &Inode, attr: &Attr) {
        if self.rules.cache.is_on() {
            let kept = attr.marks.contains(Marks::KEEP) && !self.recall_log.attr(since.recalled, inode.ino);
            inode.caller.lock().attr_caching.answered(kept, Instant::now());
            if !kept {
                inode.pages.recalled();
            }
            self.learn(since, inode, attr);
        }
    }

    /// Learns permission bits and marks of attributes that were requested at `since`.
    pub(crate) fn learn(&self, since: RequestTime, inode: &Inode, attr: &Attr) {
        // Held, so that a change that ends meanwhile voids them.
        let mut caller = inode.caller.lock();
        if !self.rules.cache.changed.lock().attr(since.changed, inode.ino)
            && !self.recall_log.attr(since.recalled, inode.ino)
        {
            caller.attr_caching.learn(attr);
        }
    }

    /// Returns true if pages of an open file with these attributes may be cached. Other clients may
    /// write to the file later, and the server then recalls the pages.
    pub fn holds_pages(&self, attr: &Attr) -> bool {
        let Some(inode) = self.rules.inodes.get(attr.ino) else { return false };
        self.rules.cache.is_on() && (attr.marks.contains(Marks::KEEP) || inode.is_cacheable())
    }

    /// Returns true if this client may cache nothing.
    pub fn caches_nothing(&self) -> bool {
        !self.rules.cache.is_on()
    }

    /// Returns true if pages of an inode may have been recalled since.
    pub(crate) fn loses_pages(&self, since: RequestTime, ino: u64) -> bool {
        self.recall_log.pages(since.recalled, ino)
    }

    /// Notes that a file, requested at `since`, is opened as `handle` through the caller's page
    /// cache. Returns true if the cached pages are current. Otherwise the caller drops them.
    pub fn opens_pages(&self, since: RequestTime, attr: &Attr, handle: u64) -> bool {
        let ino = attr.ino;
        let Some(inode) = self.rules.inodes.get(ino) else { return false };
        let kept =
            self.rules.cache.is_on() && !self.recall_log.attr(since.recalled, ino) && inode.is_cacheable();
        if kept {
            inode.hold.hold(self.rules.inodes.sharing());
        } else if self.holds_pages(attr) {
            inode.hold.hold_later(self.rules.inodes.sharing());
        }
        let keeps = inode.pages.opened(handle, kept);
        if self.rules.cache.is_on() {
            self.rules.cache.uses.count(CacheKind::Pages, keeps);
        }
        keeps
    }

    /// Notes that a directory is opened as `handle`. Returns how the caller may use its cached
    /// listing.
    pub fn opens_listing(&self, ino: u64, handle: u64) -> ListingUse {
        let kept = self.rules.cache.is_on();
        let Some(inode) = self.rules.inodes.get(ino) else { return ListingUse::Bypass };
        inode.interest.used();
        let how = inode.caller.lock().listing.opened(handle, kept);
        if how != ListingUse::Bypass {
            self.rules.cache.uses.count(CacheKind::Listings, how == ListingUse::Keep);
        }
        how
    }

    /// Returns false if the caller must drop the directory's cached listing before it is told that
    /// `handle` has reached the end.
    pub fn completes_listing(&self, ino: u64, handle: u64) -> bool {
        self.rules.inodes.get(ino).is_some_and(|inode| !inode.caller.lock().listing.is_spoiled(handle))
    }

    /// Returns true if a name, or all names of a directory, were recalled since.
    pub(crate) fn lost(&self, since: RequestTime, parent: u64, name: Option<&[u8]>) -> bool {
        !self.rules.cache.is_on()
            || match name {
                Some(name) => self.recall_log.name(since.recalled, parent, name),
                None => self.recall_log.names(since.recalled, parent),
            }
    }

    /// Returns true if attributes of an unreferenced inode may be cached as prefetched.
    pub(crate) fn is_fresh(&self, since: RequestTime, parent: u64, name: &[u8], attr: &Attr) -> bool {
        attr.marks.contains(Marks::KEEP)
            && !self.recall_log.name(since.recalled, parent, name)
            && !self.recall_log.attr(since.recalled, attr.ino)
            && self.rules.inodes.get(attr.ino).is_none()
    }
}
