//! Updates of copy-on-write regions: new chunks under a lease, then one commit.
//!
//! The update writes to chunks that no reader has. The commit makes them the newest version, all at
//! once. If the writer dies, or is slow, the region keeps its last version.
//!
//! # Concurrency
//! One thread uses an update at a time. No locks.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use pool::{Link, Piece};

use super::{
    connection::unexpected,
    handle::{Handle, Region},
};
use crate::{
    error::Error,
    proto::{Answer, LeaseInfo, Request},
    refusal::Refusal,
};

/// New chunks for a part of a region. The drop gives them back, unless they were committed. After a
/// failed write they come back with the end of the lease.
#[derive(Debug)]
pub struct Update {
    region: Region,
    lease: Option<u64>,
    end: Instant,
    links: Vec<Link>,
    /// Length of the part in bytes.
    len: u64,
    /// A failed write may still have its effect, until the fence of the lease.
    is_uncertain: bool,
}

impl Update {
    pub(super) fn new(region: Region, chunks: Range<u32>) -> Result<Update, Error> {
        let handle = &region.0;
        let begun = Instant::now();
        let count = chunks.end.saturating_sub(chunks.start);
        let request = Request::Lease { region: handle.id, first: chunks.start, count };
        let (answer, epoch) = handle.connection.call_in_epoch(&request)?;
        let Answer::Lease(LeaseInfo { lease, chunks: places, millis, .. }) = answer else {
            return Err(unexpected(&answer));
        };
        let chunk = handle.connection.chunk_bytes;
        let start = u64::from(chunks.start) * chunk;
        let len = (u64::from(count) * chunk).min(handle.bytes.saturating_sub(start));
        let end = begun + Duration::from_millis(millis);
        let mut update =
            Update { region, lease: Some(lease), end, links: Vec::new(), len, is_uncertain: false };
        let connection = &update.region.0.connection;
        update.links = connection.stores.link(&places)?;
        // The fence of the lease ends the epoch in which it was given. In a later epoch the lease
        // may have ended, and the links would still reach its chunks.
        if connection.epoch() != epoch {
            return Err(Refusal::LeaseExpired.into());
        }
        Ok(update)
    }

    /// Returns the length of the part in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns false: no update is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the time until the lease ends.
    pub fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Writes bytes from `offset` of the part on. A commit publishes all chunks of the part, so
    /// each of their bytes has to be written.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] and [`Error::Transfer`], also if the lease has ended.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let range = offset..offset.saturating_add(data.len() as u64);
        Handle::check(&range, self.len, "lease")?;
        let chunk = self.region.0.connection.chunk_bytes;
        let (mut at, end) = (range.start, range.end);
        let mut pieces = Vec::new();
        while let Some(link) = self.links.get((at / chunk) as usize).filter(|_| at < end) {
            let (offset, len) = (at % chunk, (end - at).min(chunk - at % chunk));
            at += len;
            pieces.push(Piece { link, offset, len: len as usize });
        }
        let outcome = pool::write(&pieces, data);
        self.is_uncertain |= outcome.as_ref().is_err_and(|failed| failed.error.outcome_unknown());
        Ok(outcome?)
    }

    /// Publishes the chunks as the newest version, and returns a handle of it.
    ///
    /// # Errors
    /// [`Refusal::LeaseExpired`] if the lease has ended: the region keeps its last version.
    /// [`Error::MasterLost`] if the outcome is not known.
    pub fn commit(mut self) -> Result<Region, Error> {
        let handle = &self.region.0;
        let Some(lease) = self.lease else { return Err(Refusal::LeaseExpired.into()) };
        let answer = handle.connection.call(&Request::Commit(handle.id, lease))?;
        let connection = Arc::clone(&handle.connection);
        self.lease = None;
        match answer {
            Answer::Region(info) => Region::new(connection, info),
            other => Err(unexpected(&other)),
        }
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take().filter(|_| !self.is_uncertain) {
            // An ended lease is refused, which is as well.
            self.region.0.connection.call_sometime(Request::Abort(self.region.0.id, lease));
        }
    }
}
