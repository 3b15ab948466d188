//! Replies with names and attributes, and how long the kernel may cache them.
//!
//! The kernel caches without a time limit if the server recalls the object from this client, and
//! else not at all. With `--cache none` it caches nothing.
//!
//! # Concurrency
//! Session threads. Recalls wait while a `RecallGuard` exists, so a reply never overtakes a recall.

use std::time::Duration;

use fuser::{FileHandle, FopenFlags, Generation};
use rfs_proto::{Attr, Marks};

use crate::fuse::{
    convert,
    session::{ReplyAttr, ReplyCreate, ReplyEntry, ReplyStatx},
    settings::Settings,
};
use rfs_client::{Client, RecallGuard, RequestTime};

/// Inode numbers are never reused, even if the server restores a snapshot. So one generation
/// suffices.
pub(in crate::fuse) const GENERATION: Generation = Generation(0);

/// Inode number of a negative entry. The kernel ignores the attributes that come with it.
const NO_INODE: u64 = 0;

/// Maximum cache times.
#[derive(Clone, Copy, Debug)]
pub(in crate::fuse) struct Lifetimes {
    attr: Duration,
    entry: Duration,
}

/// A name that the kernel asks for, and the time of the request.
#[derive(Clone, Copy, Debug)]
pub(in crate::fuse) struct NameQuery<'n> {
    pub(in crate::fuse) since: RequestTime,
    pub(in crate::fuse) parent: u64,
    pub(in crate::fuse) name: &'n [u8],
    /// The thread that asks.
    pub(in crate::fuse) thread: u32,
}

fn upto(limit: Duration, kept: bool) -> Duration {
    if kept { limit } else { Duration::ZERO }
}

impl Lifetimes {
    pub(in crate::fuse) fn new(settings: &Settings) -> Lifetimes {
        Lifetimes { attr: settings.attr_timeout, entry: settings.entry_timeout }
    }

    fn of(&self, guard: &RecallGuard<'_>, query: &NameQuery<'_>, given: &Attr) -> (Duration, Duration) {
        let NameQuery { since, parent, name, .. } = *query;
        (
            upto(self.attr, guard.may_cache(since, given)),
            upto(self.entry, guard.may_cache_named_inode(since, parent, name, given)),
        )
    }

    /// Returns the cache time for a name together with its attributes.
    pub(in crate::fuse) fn of_both(
        &self,
        guard: &RecallGuard<'_>,
        query: &NameQuery<'_>,
        given: &Attr,
    ) -> Duration {
        let (attr, entry) = self.of(guard, query, given);
        attr.min(entry)
    }

    pub(in crate::fuse) fn entry(
        &self,
        client: &Client,
        query: &NameQuery<'_>,
        attr: &Attr,
        reply: ReplyEntry,
    ) {
        client.attributes.wait_for_removals(query.since, attr);
        let guard = client.caching.hold_recalls();
        let attr = guard.visible_with_name(query.since, attr);
        guard.told(query.since, &attr, query.thread);
        let (attr_ttl, entry_ttl) = self.of(&guard, query, &attr);
        reply.entry_with_ttls(&attr_ttl, &entry_ttl, &convert::attr(&attr), GENERATION);
    }

    /// Answers that a name is absent, if the kernel may cache that. Returns `reply` otherwise.
    pub(in crate::fuse) fn absent(
        &self,
        client: &Client,
        query: &NameQuery<'_>,
        reply: ReplyEntry,
    ) -> Option<ReplyEntry> {
        let guard = client.caching.hold_recalls();
        let kept = !self.entry.is_zero() && guard.may_cache_absence(query.since, query.parent, query.name);
        let ttl = upto(self.entry, kept);
        if ttl.is_zero() {
            return Some(reply);
        }
        reply.entry_with_ttls(&Duration::ZERO, &ttl, &convert::attr(&nothing()), GENERATION);
        None
    }

    pub(in crate::fuse) fn attr(
        &self,
        client: &Client,
        (since, thread): (RequestTime, u32),
        attr: &Attr,
        reply: ReplyAttr,
    ) {
        client.attributes.wait_for_removals(since, attr);
        let guard = client.caching.hold_recalls();
        let attr = guard.visible(attr);
        guard.told(since, &attr, thread);
        let ttl = upto(self.attr, guard.may_cache(since, &attr));
        reply.attr(&ttl, &convert::attr(&attr));
    }

    pub(in crate::fuse) fn statx(
        &self,
        client: &Client,
        (since, thread): (RequestTime, u32),
        (attr, birth): (&Attr, Option<i64>),
        reply: ReplyStatx,
    ) {
        client.attributes.wait_for_removals(since, attr);
        let guard = client.caching.hold_recalls();
        let attr = guard.visible(attr);
        guard.told(since, &attr, thread);
        let ttl = upto(self.attr, guard.may_cache(since, &attr));
        reply.attr(&ttl, &convert::attr(&attr), birth.map(convert::time));
    }

    pub(in crate::fuse) fn created(
        &self,
        guard: &RecallGuard<'_>,
        query: &NameQuery<'_>,
        attr: &Attr,
        (handle, flags): (FileHandle, FopenFlags),
        reply: ReplyCreate,
    ) {
        guard.told(query.since, attr, query.thread);
        let ttl = self.of_both(guard, query, attr);
        reply.created(&ttl, &convert::attr(attr), GENERATION, handle, flags);
    }

    pub(in crate::fuse) fn created_unnamed(
        &self,
        guard: &RecallGuard<'_>,
        (since, thread): (RequestTime, u32),
        attr: &Attr,
        (handle, flags): (FileHandle, FopenFlags),
        reply: ReplyCreate,
    ) {
        guard.told(since, attr, thread);
        let ttl = upto(self.attr, guard.may_cache(since, attr));
        reply.created(&ttl, &convert::attr(attr), GENERATION, handle, flags);
    }
}

/// Returns attributes that the kernel may not cache, for the reply to a link, and to a change of
/// attributes on an old kernel. The thread that waits for the reply takes them over even if the
/// kernel was told to drop them in between. After other replies about a known inode, the kernel
/// notices that.
pub(in crate::fuse) fn uncacheable(attr: Attr) -> Attr {
    Attr { marks: attr.marks - Marks::KEEP, ..attr }
}

/// Returns attributes of no inode.
pub(in crate::fuse) fn nothing() -> Attr {
    Attr {
        ino: NO_INODE,
        kind: rfs_proto::FileKind::Regular,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        layout_generation: 0,
        slot: 0,
        marks: rfs_proto::Marks::empty(),
    }
}
