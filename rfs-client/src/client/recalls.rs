//! Recalls: the client asks the server for them, obeys them, and has the caller obey them.
//!
//! # Concurrency
//! One thread in [`Client::obey`]. Takes the recall log exclusively, then any one of the cache's
//! other locks, or of an inode's, each briefly.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use rdmabox::{Cancel, RequestError};
use rfs_proto::{Recall, Recalls, Reply, Request, decode_reply, encode_request};

use crate::{
    cache::Cache,
    client::{Client, calls::wrong_kind},
    error::ClientError,
    inode::table::InodeTable,
    remote::{CallOptions, ReplyWait},
};

/// The owner of a cache that this client fills, for example the kernel. It obeys recalls.
pub trait RecallHandler: Send + Sync {
    /// Drops the recalled entries. On return the cache has none of them, except entries that a
    /// [change](crate::Changes) in flight may hold.
    fn drop_all(&self, recalls: &[Recall]);

    /// Starts to drop a directory's names, which only recalls have used lately, and to
    /// [return](Client::return_names) them. Does not block.
    fn return_names(&self, _dir: u64) {}
}

/// Forgets all cached state.
pub(crate) fn void_all(cache: &Cache, inodes: &InodeTable) {
    let mut recall_log = cache.recall_log.write();
    recall_log.note_all();
    cache.dir_names.lock().forget_all();
    cache.prefetch.lock().forget_all();
    cache.dir_attrs.lock().removed();
    for inode in inodes.numbers().into_iter().filter_map(|ino| inodes.get(ino)) {
        inode.attr_caching.lock().recalled(Instant::now());
        inode.pages.recalled();
        inode.hold.recalled(inodes.sharing());
        inode.size.lock().distrust();
        inode.listing.lock().recalled();
    }
    // Names go before any thread learns how an operation of the old epoch ended, and looks for
    // its result.
    if let Some(drop_names) = cache.names.0.get() {
        drop_names();
    }
}

impl Client {
    /// Asks for recalls and has them obeyed, until `cancel` or the end of the session. On return
    /// nothing is cached.
    pub fn obey(&self, handler: &dyn RecallHandler, cancel: &Cancel) -> Result<(), ClientError> {
        if self.cache.is_on() {
            // The server has queued recalls for this session since the attach.
            self.inodes.recalls().begin();
        }
        let outcome = self.forgetting(|| self.obey_on(handler, cancel));
        self.inodes.recalls().end();
        self.cache.enabled.store(false, Ordering::Release);
        // Recalls of cached state go unheard from here on.
        let all = self.all_pages();
        self.note(&all);
        if !cancel.is_cancelled() {
            handler.drop_all(&all);
        }
        outcome
    }

    fn obey_on(&self, handler: &dyn RecallHandler, cancel: &Cancel) -> Result<(), ClientError> {
        let (mut out, mut back, mut done) = (Vec::new(), Vec::new(), 0);
        // Acknowledgements are of this epoch. Another epoch numbers its recalls anew.
        let mut epoch = self.remote.epochs().newest;
        loop {
            encode_request(&Request::Recalls { done }, &mut out);
            let wait = ReplyWait::Cancellable(cancel);
            let options = CallOptions { epoch: Some(epoch), wait, ..CallOptions::default() };
            match self.remote.call(&out, &mut back, options) {
                Err(RequestError::Cancelled) => return Ok(()),
                Err(RequestError::Disconnected)
                    if self.remote.epochs().newest != epoch && self.is_connected() =>
                {
                    epoch = self.remote.epochs().newest;
                    // The server has dropped the state of this mount.
                    handler.drop_all(&self.all_pages());
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
                        void_all(&self.cache, &self.inodes);
                        handler.drop_all(&self.all_pages());
                    } else {
                        self.note(&recalls);
                        handler.drop_all(&recalls);
                        self.unused(&recalls).into_iter().for_each(|dir| handler.return_names(dir));
                    }
                    self.give_layouts_back(epoch, &recalls);
                    for recall in recalls {
                        if let Recall::Unlinked { ino } = recall {
                            self.inodes.unlinked(ino);
                        }
                    }
                    done = number;
                }
                Reply::Error(errno) => return Err(errno.into()),
                _ => return wrong_kind(),
            }
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

    fn all_pages(&self) -> Vec<Recall> {
        self.inodes.numbers().into_iter().map(|ino| Recall::Pages { ino }).collect()
    }

    /// Sets the callback that drops all names when the whole cache is voided.
    pub fn drop_names_by(&self, drop_names: impl Fn() + Send + Sync + 'static) {
        // Only the thread that obeys recalls sets the callback, once.
        let _ = self.cache.names.0.set(Box::new(drop_names));
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

    /// Returns the names of an inode that the caller may have cached.
    pub fn known_names(&self, ino: u64) -> impl Iterator<Item = (u64, Arc<[u8]>)> + use<> {
        self.inodes.names(ino).into_iter()
    }
}
