//! The cache: which replies this client and the kernel may cache until a recall.
//!
//! # Concurrency
//! Session threads, and the thread that obeys recalls. Locks, each held briefly: the recall log,
//! then `dir_names`, then `prefetch`, then `dir_attrs` or the table of inodes. Under the recall log
//! alone: an inode's `caller`, then `changed`.

pub(crate) mod attr_caching;
pub(crate) mod changes;
pub(crate) mod dir_attrs;
pub(crate) mod dir_names;
pub(crate) mod interest;
pub(crate) mod listing;
pub(crate) mod lookup_prefetch;
pub(crate) mod page_hold;
pub(crate) mod pages;
pub(crate) mod recall_log;
pub(crate) mod uses;

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::cache::{
    changes::{Changes, name_removals::NameRemovals},
    dir_attrs::ChangedDirAttrs,
    dir_names::DirNames,
    lookup_prefetch::LookupPrefetch,
    recall_log::{Moment, RecallLog, RequestTime},
    uses::CacheUses,
};

/// Drops all cached names. Only their owner has a list of them. Does not block.
pub(crate) type DropNames = Box<dyn Fn() + Send + Sync>;

/// The cache's state, and the recall log.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// False if nothing may be cached: the server did not agree, or the session has ended.
    pub(crate) enabled: AtomicBool,
    pub(crate) recall_log: RwLock<RecallLog>,
    /// Inodes that this client has changed, logged as recalls of their attributes.
    pub(crate) changed: Mutex<RecallLog>,
    pub(crate) dir_names: Mutex<DirNames>,
    pub(crate) prefetch: Mutex<LookupPrefetch>,
    pub(crate) dir_attrs: Mutex<ChangedDirAttrs>,
    pub(crate) changes: Changes,
    pub(crate) name_removals: NameRemovals,
    pub(crate) names: NamesOwner,
    pub(crate) uses: CacheUses,
}

/// The callback of the names' owner.
#[derive(Default)]
pub(crate) struct NamesOwner(pub(crate) OnceLock<DropNames>);

impl fmt::Debug for NamesOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamesOwner")
    }
}

impl Cache {
    pub(crate) fn new(on: bool) -> Cache {
        Cache { enabled: AtomicBool::new(on), ..Cache::default() }
    }

    /// Returns the current time, `recalled` in the order of recalls.
    pub(crate) fn time(&self, recalled: Moment) -> RequestTime {
        RequestTime { recalled, changed: self.changed.lock().now(), answered: self.name_removals.now() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }
}
