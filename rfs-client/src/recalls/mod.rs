//! Recalls: the client asks the server for them, obeys them, and has the caller obey them.
//!
//! # Concurrency
//! One thread in [`Recalls::obey`]. Takes the recall log exclusively; `requests::cache_rules` has
//! the locks under it.

pub(crate) mod pages;
pub(crate) mod unlinked_inodes;

use std::sync::{Arc, atomic::Ordering};

use rdmabox::{Cancel, RequestError};
use rfs_proto::{Recall, Recalls as Recalled, Reply, Request, decode_reply, encode_request};

use crate::{
    error::ClientError,
    inode::table::{InodeTable, orphans::ANNOUNCEMENT},
    recalls::unlinked_inodes::UnlinkedInodes,
    remote::{CallOptions, Remote, ReplyWait},
    requests::{
        cache_rules::CacheRules,
        calls::{Calls, wrong_kind},
        layouts::Layouts,
    },
};

/// The owner of a cache that this client fills, for example the kernel. It obeys recalls.
pub trait RecallHandler: Send + Sync {
    /// Drops the recalled entries. On return the cache has none of them, except entries that a
    /// [change](crate::Changes) in flight may hold.
    fn drop_all(&self, recalls: &[Recall]);

    /// Starts to drop a directory's names, which only recalls have used lately, and to
    /// [return](Recalls::return_names) them. Does not block.
    fn return_names(&self, _dir: u64) {}
}

/// Asks the server for recalls, and has the caches obey them.
#[derive(Debug)]
pub struct Recalls {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    pub(crate) layouts: Arc<Layouts>,
    unlinked: UnlinkedInodes,
}

impl Recalls {
    pub(crate) fn new(calls: &Arc<Calls>, layouts: &Arc<Layouts>) -> Recalls {
        Recalls {
            remote: Arc::clone(&calls.remote),
            calls: Arc::clone(calls),
            caching: Arc::clone(&calls.caching),
            inodes: Arc::clone(&calls.caching.inodes),
            layouts: Arc::clone(layouts),
            unlinked: UnlinkedInodes::new(calls),
        }
    }

    /// Asks for recalls and has them obeyed, until `cancel` or the end of the session. On return
    /// nothing is cached.
    pub fn obey(&self, handler: &dyn RecallHandler, cancel: &Cancel) -> Result<(), ClientError> {
        if self.caching.is_on() {
            // The server has queued recalls for this session since the attach.
            self.inodes.recalls().begin();
        }
        let outcome = self.unlinked.forgetting(|| self.obey_on(handler, cancel));
        self.inodes.recalls().end();
        self.caching.cache.enabled.store(false, Ordering::Release);
        // Recalls of cached state go unheard from here on.
        let all = self.all_pages();
        self.caching.note(&all);
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
                    if self.remote.epochs().newest != epoch && self.calls.is_connected() =>
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
                Reply::Recalls(Recalled { number, recalls }) => {
                    // After this reply the server certainly queues recalls for this session.
                    self.inodes.recalls().begin();
                    if recalls.contains(&Recall::All) {
                        // The server was restarted. The names are dropped first, by their owner,
                        // which knows them all.
                        self.caching.void_all();
                        handler.drop_all(&self.all_pages());
                    } else {
                        self.caching.note(&recalls);
                        handler.drop_all(&recalls);
                        self.unused(&recalls).into_iter().for_each(|dir| handler.return_names(dir));
                    }
                    self.layouts.give_layouts_back(epoch, &recalls);
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

    /// Tells the server that this client reports forgotten inodes. From then on the server keeps
    /// unlinked inodes for this client.
    pub fn announce(&self) -> Result<(), ClientError> {
        self.calls.call_done(&ANNOUNCEMENT)
    }

    /// Sets the callback that drops the names of an unlinked inode.
    pub fn drop_unlinked_by(&self, drop_names: impl Fn(u64) + Send + Sync + 'static) {
        // Only the thread that obeys recalls sets the callback, once.
        let _ = self.inodes.orphans().drop_names.set(Box::new(drop_names));
    }

    /// Sets the callback that drops all names when the whole cache is voided.
    pub fn drop_names_by(&self, drop_names: impl Fn() + Send + Sync + 'static) {
        // Only the thread that obeys recalls sets the callback, once.
        let _ = self.caching.cache.names.0.set(Box::new(drop_names));
    }

    /// Notes that this mount uses names of a directory, although it has not asked for the
    /// directory's attributes. The mount keeps the names.
    pub fn uses_names(&self, dir: u64) {
        if let Some(inode) = self.inodes.get(dir) {
            inode.interest.used();
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
            _ => self.calls.call_done(&Request::ReturnNames { ino: dir }),
        }
    }
}
