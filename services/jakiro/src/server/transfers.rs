//! The transfers of long values that the sessions of a partition have under way.
//!
//! # Concurrency
//! Plain values. The executor has a lock around them.

use std::collections::{HashMap, hash_map::Entry};

use crate::{
    protocol::MAX_TRANSFERS,
    store::{Download, Partition, Upload},
};

/// A transfer of a session.
#[derive(Debug)]
pub(super) enum Transfer {
    Upload(Upload),
    Download(Download),
}

impl Transfer {
    /// Ends the transfer before its end.
    pub(super) fn abort(self, partition: &mut Partition) {
        match self {
            Transfer::Upload(upload) => partition.abort_upload(upload),
            Transfer::Download(download) => partition.end_download(download),
        }
    }
}

/// The transfers of all sessions, by session and number.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    sessions: HashMap<u64, HashMap<u32, Transfer>>,
    last: u32,
}

impl Transfers {
    /// Returns true if a session may have one more transfer.
    pub(super) fn has_room(&self, session: u64) -> bool {
        self.sessions.get(&session).is_none_or(|own| own.len() < MAX_TRANSFERS)
    }

    /// Adds a transfer. Returns its number.
    pub(super) fn add(&mut self, session: u64, transfer: Transfer) -> u32 {
        let own = self.sessions.entry(session).or_default();
        loop {
            self.last = self.last.wrapping_add(1);
            if let Entry::Vacant(free) = own.entry(self.last) {
                free.insert(transfer);
                return self.last;
            }
        }
    }

    /// Takes a transfer that [`put_back`](Self::put_back) returns, or that has ended.
    pub(super) fn take(&mut self, session: u64, number: u32) -> Option<Transfer> {
        self.sessions.get_mut(&session)?.remove(&number)
    }

    /// Returns a transfer that goes on.
    pub(super) fn put_back(&mut self, session: u64, number: u32, transfer: Transfer) {
        self.sessions.entry(session).or_default().insert(number, transfer);
    }

    /// Takes all transfers of a session.
    pub(super) fn take_all(&mut self, session: u64) -> impl Iterator<Item = Transfer> + use<> {
        self.sessions.remove(&session).into_iter().flat_map(HashMap::into_values)
    }
}
