//! Which replies the caller and this client may cache.
//!
//! Before a request whose reply may be cached, the caller notes the time ([`CacheRules::since`]).
//! The reply is cached only if nothing was recalled since that concerns it. While the kernel is
//! told ([`CacheRules::hold_recalls`]), no recall is noted. The kernel is therefore told first, and
//! drops second, and never caches data whose recall is over.
//!
//! # Concurrency
//! Session threads, and the thread that obeys recalls. Takes the recall log. Under it, takes
//! `dir_names`, then `prefetch`, then the table of inodes. Or takes an inode's `caller`, then
//! `changed`, or one other lock of the cache or of an inode. Recalls take the recall log
//! exclusively. None of these locks is held over a call.

use std::{sync::Arc, time::Instant};

use rfs_proto::{Attr, Recall};

use crate::{
    cache::{
        Cache,
        changes::{Changes, Effect},
        recall_log::RequestTime,
    },
    error::ClientError,
    inode::{
        Inode,
        table::{InodeTable, aliases::CachedName, arrival::Arrival},
    },
    requests::recall_guard::RecallGuard,
};

/// The rules of the caches of this client and its caller: which entries recalls and changes void.
#[derive(Debug)]
pub struct CacheRules {
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) cache: Arc<Cache>,
}

impl CacheRules {
    /// Returns true if this client may cache anything.
    pub(crate) fn is_on(&self) -> bool {
        self.cache.is_on()
    }

    /// Takes a reference to an inode whose attributes came.
    pub(crate) fn acquire(&self, attr: &Attr) -> Arc<Inode> {
        let inode = self.inodes.acquire(attr.ino);
        inode.set_slot(attr.slot);
        self.cache.prefetch.lock().remove_inode(attr.ino);
        inode
    }

    /// Takes a reference to an inode whose attributes were requested at `since`.
    pub(crate) fn referenced(&self, since: RequestTime, attr: Attr) -> Attr {
        self.hold_recalls().reference(since, &attr);
        self.inodes.get(attr.ino).map_or(attr, |inode| inode.with_pending(attr))
    }

    /// Begins a request whose reply may bring inode numbers. The server keeps these inodes until
    /// the returned value is dropped.
    pub fn arrival(&self) -> Arrival<'_> {
        self.inodes.arrival()
    }

    /// Returns the time to note before a request.
    pub fn since(&self) -> RequestTime {
        let recalled = self.cache.recall_log.read().now();
        self.cache.time(recalled)
    }

    /// Returns `since`, except that own changes up to now do not count: the reply to an own change
    /// already includes them.
    pub fn since_but_changed(&self, since: RequestTime) -> RequestTime {
        RequestTime { changed: self.cache.changed.lock().now(), ..since }
    }

    /// Holds recalls off while the caller is told. Must be brief, and not nested on one thread.
    pub fn hold_recalls(&self) -> RecallGuard<'_> {
        RecallGuard::new(self)
    }

    /// Notes attributes of a referenced inode, requested at `since`.
    pub(crate) fn answered(&self, since: RequestTime, inode: &Inode, attr: &Attr) {
        if self.cache.is_on() {
            self.hold_recalls().answered(since, inode, attr);
        }
    }

    /// Notes that a directory is read here. The attributes that came with a change are older than
    /// that.
    pub(crate) fn directory_is_read(&self, ino: u64) {
        self.cache.dir_attrs.lock().take(ino);
    }

    /// Returns a directory's attributes that came with this client's own change, if nothing has
    /// changed since and they may be cached.
    pub(crate) fn after_own_change(&self, since: RequestTime, inode: &Inode) -> Option<Attr> {
        let (attr, as_of) = self.cache.dir_attrs.lock().take(inode.ino)?;
        let guard = self.hold_recalls();
        if !guard.may_cache(as_of, &attr) {
            return None;
        }
        guard.learn(since, inode, &attr);
        Some(attr)
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
        let until_changed = RequestTime { changed: changed.now(), ..since };
        drop(changed);
        for inode in effect.inodes().filter_map(|ino| self.inodes.get(ino)) {
            inode.caller.lock().attr_caching.changed();
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
        let guard = self.hold_recalls();
        for (parent, name, gone) in &effect.names {
            let gone = *gone && outcome.is_ok() && !guard.lost(since, *parent, Some(name));
            cache.dir_names.lock().ended(*parent, name, gone);
            cache.prefetch.lock().remove_name(*parent, name);
        }
        outcome
    }

    /// Notes that this client has changed attributes of an inode other than by `change`, such as by
    /// writing. Attributes that were requested before may not be cached.
    pub fn changed(&self, ino: u64) {
        self.cache.changed.lock().note(Recall::Attr { ino });
    }

    /// Returns the changes of this client in flight.
    pub fn changes(&self) -> &Changes {
        &self.cache.changes
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

    /// Returns the names of an inode that the caller may have cached.
    pub fn known_names(&self, ino: u64) -> impl Iterator<Item = (u64, Arc<[u8]>)> + use<> {
        self.inodes.names(ino).into_iter()
    }

    /// Returns the entry that the caller may have cached under a name.
    pub fn cached_name(&self, parent: u64, name: &[u8]) -> CachedName {
        match self.cache.is_on() {
            true => self.inodes.cached_name(parent, name),
            false => CachedName::Uncertain,
        }
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
            // `All` has no inode; [`void_all`](Self::void_all) handles it.
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
                {
                    let mut caller = inode.caller.lock();
                    caller.attr_caching.recalled(Instant::now());
                    if !matches!(recall, Recall::Attr { .. } | Recall::Owner { .. }) {
                        caller.listing.recalled();
                    }
                }
                inode.pages.recalled();
                if recall.concerns_pages(ino) {
                    inode.hold.recalled(self.inodes.sharing());
                }
                inode.file.write().size.distrust();
            }
        }
    }

    /// Forgets all cached state.
    pub(crate) fn void_all(&self) {
        let CacheRules { inodes, cache } = self;
        let mut recall_log = cache.recall_log.write();
        recall_log.note_all();
        cache.dir_names.lock().forget_all();
        cache.prefetch.lock().forget_all();
        cache.dir_attrs.lock().removed();
        for inode in inodes.numbers().into_iter().filter_map(|ino| inodes.get(ino)) {
            {
                let mut caller = inode.caller.lock();
                caller.attr_caching.recalled(Instant::now());
                caller.listing.recalled();
            }
            inode.pages.recalled();
            inode.hold.recalled(inodes.sharing());
            inode.file.write().size.distrust();
        }
        // Names go before any thread learns how an operation of the old epoch ended, and looks for
        // its result.
        if let Some(drop_names) = cache.names.0.get() {
            drop_names();
        }
    }
}
