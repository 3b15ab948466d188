//! The cache: which replies this client and the kernel may cache until a recall.
//!
//! Before a request whose reply may be cached, the caller notes the time ([`Client::since`]). The
//! reply is cached only if nothing was recalled since that concerns it. While the kernel is told
//! ([`Client::telling`]), no recall is noted. The kernel is therefore told first, and drops
//! second, and never caches data whose recall is over.
//!
//! # Concurrency
//! Session threads, and the thread that obeys recalls. Locks: the recall log, then an inode's
//! `attr_caching`, then any one of the others, which are held briefly.

mod attr_caching;
mod changes;
mod dir_attrs;
mod dir_names;
mod interest;
mod listing;
mod lookup_prefetch;
mod pages;
mod recall_log;
pub(crate) mod sharing;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rdmabox::{Cancel, RequestError};
use rfs_proto::{Attr, Marks, Recall, Recalls, Reply, Request, decode_reply, encode_request};

use crate::{
    Client, ClientError,
    inode::{Inode, InodeTable},
};
pub(crate) use attr_caching::AttrCaching;
pub(crate) use changes::Effect;
pub use changes::{Changes, UnderWay};
use dir_attrs::ChangedDirAttrs;
use dir_names::DirNames;
pub(crate) use dir_names::{ListingId, Mark};
pub(crate) use interest::Interest;
pub(crate) use listing::Listing;
pub use listing::Opened;
use lookup_prefetch::LookupPrefetch;
pub(crate) use pages::PageState;
pub(crate) use recall_log::{Moment, RecallLog};

/// The owner of a cache that this client fills, for example the kernel. It obeys recalls.
pub trait Keeper: Send + Sync {
    /// Drops the recalled entries. On return the cache has none of them, except entries that a
    /// [change](Changes) in flight may hold.
    fn drop_all(&self, recalls: &[Recall]);

    /// Starts to drop a directory's names, which only recalls have used lately, and to
    /// [return](Client::return_names) them. Does not block.
    fn return_names(&self, _dir: u64) {}
}

/// Drops all cached names. Only their owner has a list of them. Does not block.
type DropNames = Box<dyn Fn() + Send + Sync>;

/// The time before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    recalled: Moment,
    /// Time among this client's own changes.
    changed: Moment,
}

/// The cache's state, and the recall log.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// False if nothing may be cached: the server did not agree, or the session has ended.
    enabled: AtomicBool,
    recall_log: RwLock<RecallLog>,
    /// Inodes that this client has changed, logged as recalls of their attributes.
    changed: Mutex<RecallLog>,
    pub(crate) dir_names: Mutex<DirNames>,
    pub(crate) prefetch: Mutex<LookupPrefetch>,
    dir_attrs: Mutex<ChangedDirAttrs>,
    changes: Changes,
    names: NamesOwner,
}

/// The callback of the names' owner.
#[derive(Default)]
struct NamesOwner(OnceLock<DropNames>);

impl fmt::Debug for NamesOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamesOwner")
    }
}

impl Cache {
    pub(crate) fn new(on: bool) -> Cache {
        Cache { enabled: AtomicBool::new(on), ..Cache::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Forgets all cached state.
    pub(crate) fn void_all(&self, inodes: &InodeTable) {
        let mut recall_log = self.recall_log.write();
        recall_log.note_all();
        self.dir_names.lock().forget_all();
        self.prefetch.lock().forget_all();
        self.dir_attrs.lock().removed();
        for inode in inodes.numbers().into_iter().filter_map(|ino| inodes.get(ino)) {
            inode.attr_caching.lock().recalled(Instant::now());
            inode.pages.recalled();
            inode.hold.recalled(inodes.sharing());
            inode.size.lock().distrust();
            inode.listing.lock().recalled();
        }
        // Names go before any thread learns how an operation of the old era ended, and looks for
        // its result.
        if let Some(drop_names) = self.names.0.get() {
            drop_names();
        }
    }
}

/// A guard that holds recalls off. No recall is noted while it exists.
#[derive(Debug)]
pub struct Telling<'c> {
    client: &'c Client,
    recall_log: RwLockReadGuard<'c, RecallLog>,
}

impl Telling<'_> {
    /// Returns the current time.
    pub(crate) fn now(&self) -> Since {
        Since { recalled: self.recall_log.now(), changed: self.client.cache.changed.lock().now() }
    }

    /// Returns true if the caller may cache a reply about a name, requested at `since`, even its
    /// absence.
    pub fn keeps_name(&self, since: Since, parent: u64, name: &[u8]) -> bool {
        self.client.cache.is_on() && !self.recall_log.name(since.recalled, parent, name)
    }

    /// Returns true if the caller may cache the absence of a name, requested at `since`. Records
    /// the name then.
    pub fn keeps_absence(&self, since: Since, parent: u64, name: &[u8]) -> bool {
        self.keeps_name(since, parent, name) && self.client.inodes.absent(parent, name)
    }

    /// Returns true if the caller may also cache the inode that a name stands for.
    ///
    /// No recall concerned the inode since, so the caller has its current owner. Records the name
    /// in any case, because the caller is told of it and may remember it.
    pub fn keeps_what_is_named(&self, since: Since, parent: u64, name: &[u8], attr: &Attr) -> bool {
        // "." and ".." are looked up for file handles. No path walk uses them.
        if !matches!(name, b"." | b"..") {
            self.client.inodes.named(attr.ino, parent, name);
        }
        self.keeps_name(since, parent, name) && !self.recall_log.attr(since.recalled, attr.ino)
    }

    /// Returns true if cacheable attributes, requested at `since`, may be cached. A change by this
    /// client counts like a recall: the kernel may hear of the change before it hears of the
    /// attributes.
    pub(crate) fn keeps_attr(&self, since: Since, ino: u64) -> bool {
        self.client.cache.is_on()
            && !self.client.cache.changed.lock().attr(since.changed, ino)
            && !self.recall_log.attr(since.recalled, ino)
            && self.client.inodes.get(ino).is_some_and(|inode| inode.attr_caching.lock().is_cacheable())
    }

    /// Returns true if these attributes, requested at `since`, may be cached. They need their own
    /// mark: attributes that were read before the inode became cacheable must not be cached.
    pub fn keeps(&self, since: Since, attr: &Attr) -> bool {
        attr.marks.contains(Marks::KEEP) && self.keeps_attr(since, attr.ino)
    }

    /// Takes a reference to an inode whose attributes were requested at `since`.
    pub fn reference(&self, since: Since, attr: &Attr) {
        self.answered(since, &self.client.acquire(attr), attr);
    }

    /// Notes whether attributes from the server may be cached.
    fn answered(&self, since: Since, inode: &Inode, attr: &Attr) {
        if self.client.cache.is_on() {
            let kept = attr.marks.contains(Marks::KEEP) && !self.recall_log.attr(since.recalled, inode.ino);
            inode.attr_caching.lock().answered(kept, Instant::now());
            if !kept {
                inode.pages.recalled();
            }
            self.learn(since, inode, attr.marks);
        }
    }

    /// Learns the marks of attributes that were requested at `since`.
    pub(crate) fn learn(&self, since: Since, inode: &Inode, marks: Marks) {
        // Held, so that a change that ends meanwhile voids the marks.
        let mut attr_caching = inode.attr_caching.lock();
        if !self.client.cache.changed.lock().attr(since.changed, inode.ino)
            && !self.recall_log.attr(since.recalled, inode.ino)
        {
            attr_caching.learn(marks);
        }
    }

    /// Returns true if pages of an open file with these attributes may be cached although other
    /// clients may write to it later: the server recalls them.
    pub fn holds_pages(&self, attr: &Attr) -> bool {
        let Some(inode) = self.client.inodes.get(attr.ino) else { return false };
        self.client.cache.is_on()
            && (attr.marks.contains(Marks::KEEP) || inode.attr_caching.lock().is_cacheable())
    }

    /// Returns true if this client may cache nothing.
    pub fn keeps_nothing(&self) -> bool {
        !self.client.cache.is_on()
    }

    /// Returns true if pages of an inode may have been recalled since.
    pub(crate) fn loses_pages(&self, since: Since, ino: u64) -> bool {
        self.recall_log.pages(since.recalled, ino)
    }

    /// Notes that a file, requested at `since`, is opened as `handle` through the caller's page
    /// cache. Returns true if the cached pages are current. Otherwise the caller drops them.
    pub fn opens_pages(&self, since: Since, attr: &Attr, handle: u64) -> bool {
        let ino = attr.ino;
        let Some(inode) = self.client.inodes.get(ino) else { return false };
        let kept = self.client.cache.is_on()
            && !self.recall_log.attr(since.recalled, ino)
            && inode.attr_caching.lock().is_cacheable();
        if kept {
            inode.hold.hold(self.client.inodes.sharing());
        } else if self.holds_pages(attr) {
            inode.hold.hold_later(self.client.inodes.sharing());
        }
        inode.pages.opened(handle, kept)
    }

    /// Notes that a directory is opened as `handle`. Returns how the caller may use its cached
    /// listing.
    pub fn opens_listing(&self, ino: u64, handle: u64) -> Opened {
        let kept = self.client.cache.is_on();
        let Some(inode) = self.client.inodes.get(ino) else { return Opened::Apart };
        inode.interest.used();
        inode.listing.lock().opened(handle, kept)
    }

    /// Returns false if the caller must drop the directory's cached listing before it is told that
    /// `handle` has reached the end.
    pub fn completes_listing(&self, ino: u64, handle: u64) -> bool {
        self.client.inodes.get(ino).is_some_and(|inode| !inode.listing.lock().is_spoiled(handle))
    }

    /// Returns true if a name, or all names of a directory, were recalled since.
    pub(crate) fn lost(&self, since: Since, parent: u64, name: Option<&[u8]>) -> bool {
        !self.client.cache.is_on()
            || match name {
                Some(name) => self.recall_log.name(since.recalled, parent, name),
                None => self.recall_log.names(since.recalled, parent),
            }
    }

    /// Returns true if attributes of an unreferenced inode may be cached as prefetched.
    pub(crate) fn is_fresh(&self, since: Since, parent: u64, name: &[u8], attr: &Attr) -> bool {
        attr.marks.contains(Marks::KEEP)
            && !self.recall_log.name(since.recalled, parent, name)
            && !self.recall_log.attr(since.recalled, attr.ino)
            && self.client.inodes.get(attr.ino).is_none()
    }
}

impl Client {
    /// Returns the time to note before a request.
    pub fn since(&self) -> Since {
        let recalled = self.cache.recall_log.read().now();
        Since { recalled, changed: self.cache.changed.lock().now() }
    }

    /// Returns `since`, except that own changes up to now do not count: the reply to an own change
    /// already includes them.
    pub fn since_but_changed(&self, since: Since) -> Since {
        Since { changed: self.cache.changed.lock().now(), ..since }
    }

    /// Carries out a request that changes cacheable state, and updates the cache. The reply may
    /// have the attributes of the changed directory.
    pub(crate) fn change<R>(
        &self,
        effect: &Effect<'_>,
        ask: impl FnOnce() -> Result<(R, Option<Attr>), ClientError>,
    ) -> Result<R, ClientError> {
        let since = self.since();
        let cache = &self.cache;
        let removals = cache.dir_attrs.lock().removals();
        for (parent, name, _) in &effect.names {
            cache.dir_names.lock().begins(*parent, name);
            cache.prefetch.lock().remove_name(*parent, name);
        }
        let outcome = {
            let _under_way = cache.changes.begin(effect);
            ask()
        };
        let mut changed = cache.changed.lock();
        let came = outcome.as_ref().ok().and_then(|(_, came)| *came);
        // The order of concurrent changes is unknown, so the attributes of neither are used.
        let came = came.filter(|attr| !changed.attr(since.changed, attr.ino));
        for ino in effect.inodes() {
            changed.note(Recall::Attr { ino });
        }
        let until_changed = Since { changed: changed.now(), ..since };
        drop(changed);
        for inode in effect.inodes().filter_map(|ino| self.inodes.get(ino)) {
            inode.attr_caching.lock().changed();
        }
        let outcome = outcome.map(|(reply, _)| reply);
        if effect.names.is_empty() {
            return outcome;
        }
        {
            let mut dir_attrs = cache.dir_attrs.lock();
            if effect.may_remove_a_directory {
                dir_attrs.removed();
            }
            if let Some(attr) = came.filter(|attr| effect.is_of(attr)) {
                dir_attrs.came(attr, until_changed, removals);
            }
        }
        let telling = self.telling();
        for (parent, name, gone) in &effect.names {
            let gone = *gone && outcome.is_ok() && !telling.lost(since, *parent, Some(name));
            cache.dir_names.lock().ended(*parent, name, gone);
            cache.prefetch.lock().remove_name(*parent, name);
        }
        outcome
    }

    /// Notes that a directory is read here. The attributes that came with a change are older than
    /// that.
    pub(crate) fn directory_is_read(&self, ino: u64) {
        self.cache.dir_attrs.lock().take(ino);
    }

    /// Returns a directory's attributes that came with this client's own change, if nothing has
    /// changed since and they may be cached.
    pub(crate) fn after_own_change(&self, since: Since, inode: &Inode) -> Option<Attr> {
        let (attr, as_of) = self.cache.dir_attrs.lock().take(inode.ino)?;
        let telling = self.telling();
        if !telling.keeps(as_of, &attr) {
            return None;
        }
        telling.learn(since, inode, attr.marks);
        Some(attr)
    }

    /// Holds recalls off while the caller is told. Must be brief, and not nested on one thread.
    pub fn telling(&self) -> Telling<'_> {
        Telling { client: self, recall_log: self.cache.recall_log.read() }
    }

    /// Takes a reference to an inode whose attributes came.
    pub(crate) fn acquire(&self, attr: &Attr) -> Arc<Inode> {
        let inode = self.inodes.acquire(attr.ino);
        inode.set_slot(attr.slot);
        self.cache.prefetch.lock().remove_inode(attr.ino);
        inode
    }

    /// Returns the changes of this client in flight.
    pub fn changes(&self) -> &Changes {
        &self.cache.changes
    }

    /// Notes attributes of a referenced inode, requested at `since`.
    pub(crate) fn answered(&self, since: Since, inode: &Inode, attr: &Attr) {
        if self.cache.is_on() {
            self.telling().answered(since, inode, attr);
        }
    }

    /// Returns true if the caller has a reference to the inode.
    pub fn knows(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some()
    }

    /// Notes a request through the open file `handle`.
    pub fn used(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.pages.used(handle);
        }
    }

    /// Notes that the directory is read through `handle`.
    pub fn lists_through(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.listing.lock().used(handle);
        }
    }

    /// Notes that the directory's `handle` is closed for good.
    pub fn closed_listing(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.listing.lock().closed(handle);
        }
    }

    /// Returns the names of a directory to the server, unless this mount has used the directory
    /// meanwhile. The caller has dropped the names before.
    ///
    /// # Errors
    /// The error of the call. The names stay cached then, and are recalled one by one.
    pub fn return_names(&self, dir: u64) -> Result<(), ClientError> {
        match self.inodes.get(dir) {
            Some(inode) if !inode.interest.is_lost() => Ok(()),
            _ => self.call_done(&Request::ReturnNames { ino: dir }),
        }
    }

    /// Returns all names in a directory that the caller may have cached, including absent ones. The
    /// caller drops each and then calls [`dropped_name`](Self::dropped_name).
    pub fn names_in(&self, dir: u64) -> Vec<Arc<[u8]>> {
        self.inodes.names_in(dir)
    }

    /// Notes that the caller has dropped a name.
    pub fn dropped_name(&self, parent: u64, name: &[u8]) {
        self.inodes.dropped(parent, name);
    }

    /// Returns the directories among these recalls whose names are due to be returned.
    fn unused(&self, recalls: &[Recall]) -> Vec<u64> {
        let is_unused = |recall: &Recall| match recall {
            Recall::Name { parent, .. } => {
                let inode = self.inodes.get(*parent);
                inode.is_none_or(|inode| inode.interest.recalled()).then_some(*parent)
            }
            _ => None,
        };
        let mut unused: Vec<u64> = recalls.iter().filter_map(is_unused).collect();
        unused.dedup();
        unused
    }

    /// Logs recalls. From now on the client uses none of the recalled state.
    pub(crate) fn note(&self, recalls: &[Recall]) {
        let mut recall_log = self.cache.recall_log.write();
        for recall in recalls {
            recall_log.note(recall.clone());
            // Layouts and locks are not cached here.
            if matches!(recall, Recall::Layout { .. } | Recall::Locks { .. }) {
                continue;
            }
            // `All` has no inode; [`Cache::void_all`] handles it.
            let Some(ino) = recall.inode() else { continue };
            let (mut dir_names, mut prefetch) = (self.cache.dir_names.lock(), self.cache.prefetch.lock());
            prefetch.remove_inode(ino);
            // Only pages are concerned. The attributes stay cacheable.
            if matches!(recall, Recall::Written { .. }) {
                if let Some(inode) = self.inodes.get(ino) {
                    inode.pages.recalled();
                    inode.hold.recalled(self.inodes.sharing());
                }
                continue;
            }
            // Attributes and names of the inode have their own recalls.
            if matches!(recall, Recall::Unlinked { .. }) {
                continue;
            }
            match recall {
                Recall::Name { parent, name } => {
                    dir_names.recalled(*parent, name);
                    self.inodes.unnamed(*parent, name);
                    prefetch.remove_name(*parent, name);
                }
                Recall::Names { ino } => {
                    dir_names.forget(*ino);
                    prefetch.remove_directory(*ino);
                }
                Recall::Attr { .. }
                | Recall::Pages { .. }
                | Recall::Owner { .. }
                | Recall::Unlinked { .. }
                | Recall::Written { .. }
                | Recall::Layout { .. }
                | Recall::Locks { .. }
                | Recall::All => {}
            }
            drop((dir_names, prefetch));
            if let Some(inode) = self.inodes.get(ino) {
                inode.attr_caching.lock().recalled(Instant::now());
                inode.pages.recalled();
                if recall.concerns_pages(ino) {
                    inode.hold.recalled(self.inodes.sharing());
                }
                inode.size.lock().distrust();
                if !matches!(recall, Recall::Attr { .. } | Recall::Owner { .. }) {
                    inode.listing.lock().recalled();
                }
            }
        }
    }

    /// Asks for recalls and has them obeyed, until `cancel` or the end of the session. On return
    /// nothing is cached.
    pub fn obey(&self, keeper: &dyn Keeper, cancel: &Cancel) -> Result<(), ClientError> {
        if self.cache.is_on() {
            // The server has queued recalls for this session since the attach.
            self.inodes.recalls().begin();
        }
        let outcome = self.forgetting(|| self.obey_on(keeper, cancel));
        self.inodes.recalls().end();
        self.cache.enabled.store(false, Ordering::Release);
        // Recalls of cached state go unheard from here on.
        let all = self.all_pages();
        self.note(&all);
        if !cancel.is_cancelled() {
            keeper.drop_all(&all);
        }
        outcome
    }

    /// Sets the callback that drops all names when the whole cache is voided.
    pub fn drop_names_by(&self, drop_names: impl Fn() + Send + Sync + 'static) {
        // Only the thread that obeys recalls sets the callback, once.
        let _ = self.cache.names.0.set(Box::new(drop_names));
    }

    fn all_pages(&self) -> Vec<Recall> {
        self.inodes.numbers().into_iter().map(|ino| Recall::Pages { ino }).collect()
    }

    fn obey_on(&self, keeper: &dyn Keeper, cancel: &Cancel) -> Result<(), ClientError> {
        let (mut out, mut back, mut done) = (Vec::new(), Vec::new(), 0);
        // Acknowledgements are of this era. Another era numbers its recalls anew.
        let mut era = self.remote.era();
        loop {
            encode_request(&Request::Recalls { done }, &mut out);
            match self.remote.call_waiting(era, &out, &mut back, cancel) {
                Err(RequestError::Cancelled) => return Ok(()),
                Err(RequestError::Disconnected) if self.remote.era() != era && self.is_connected() => {
                    era = self.remote.era();
                    // The server has dropped the state of this mount.
                    keeper.drop_all(&self.all_pages());
                    done = 0;
                    continue;
                }
                asked => asked?,
            }
            match decode_reply(&back)? {
                Reply::Recalls(Recalls { number, recalls }) => {
                    // After this reply the server certainly queues recalls for this session.
                    self.inodes.recalls().begin();
                    if recalls.contains(&Recall::All) {
                        // The server was restarted. The names are dropped first, by their owner,
                        // which knows them all.
                        self.cache.void_all(&self.inodes);
                        keeper.drop_all(&self.all_pages());
                    } else {
                        self.note(&recalls);
                        keeper.drop_all(&recalls);
                        self.unused(&recalls).into_iter().for_each(|dir| keeper.return_names(dir));
                    }
                    self.give_layouts_back(era, &recalls);
                    for recall in recalls {
                        if let Recall::Unlinked { ino } = recall {
                            self.inodes.unlinked(ino);
                        }
                    }
                    done = number;
                }
                Reply::Error(errno) => return Err(errno.into()),
                _ => return crate::metadata::names::wrong_kind(),
            }
        }
    }
}
