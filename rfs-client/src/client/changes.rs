//! This client's own changes, and their effect on its cache.
//!
//! # Concurrency
//! Session threads. Takes the locks of the cache, each briefly, and none over the call.

use rfs_proto::{Attr, Recall};

use crate::{
    cache::{
        changes::{Changes, Effect},
        recall_log::RequestTime,
    },
    client::Client,
    error::ClientError,
};

impl Client {
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
        let guard = self.hold_recalls();
        for (parent, name, gone) in &effect.names {
            let gone = *gone && outcome.is_ok() && !guard.lost(since, *parent, Some(name));
            cache.dir_names.lock().ended(*parent, name, gone);
            cache.prefetch.lock().remove_name(*parent, name);
        }
        outcome
    }

    /// Returns the changes of this client in flight.
    pub fn changes(&self) -> &Changes {
        &self.cache.changes
    }
}
