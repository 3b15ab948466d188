//! Long values that come and go in parts: an upload builds an item, a download holds it.
//!
//! The parts of an upload are not visible before it is finished. A download sees one version of the
//! value, even if the item is replaced or evicted meanwhile. Both hold memory of the partition, so
//! each must be ended by one of its methods.
//!
//! # Concurrency
//! One thread at a time. No I/O, no locks, no clock.

use super::{
    change::{Change, StoreMode, StoreOutcome},
    error::StoreError,
    key::{Key, MAX_KEY},
    memory::{BlockId, Cursor},
    partition::Partition,
};

/// A value that is being stored in parts.
#[derive(Debug)]
#[must_use = "its memory stays in use"]
pub struct Upload {
    item: BlockId,
    place: Cursor,
    left: usize,
    mode: StoreMode,
}

impl Upload {
    /// Returns the number of bytes that have not come yet.
    pub fn left(&self) -> usize {
        self.left
    }
}

/// A value that is being read in parts.
#[derive(Debug)]
#[must_use = "its memory stays in use"]
pub struct Download {
    item: BlockId,
    place: Cursor,
    left: usize,
}

impl Download {
    /// Returns the number of bytes that have not been read yet.
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Partition {
    /// Begins to store a value of `value_len` bytes.
    ///
    /// # Errors
    /// [`StoreError::ValueTooLong`] and [`StoreError::Full`].
    ///
    /// # Panics
    /// If the mode is [`StoreMode::Append`] or [`StoreMode::Prepend`].
    pub fn begin_upload(
        &mut self,
        key: &Key<'_>,
        change: &Change,
        value_len: usize,
        now: u64,
    ) -> Result<Upload, StoreError> {
        assert!(
            !matches!(change.mode, StoreMode::Append | StoreMode::Prepend),
            "only whole values come in parts"
        );
        self.check_length(value_len)?;
        let item = self.make(key, value_len, change, now)?;
        self.items.hold(item);
        let place = self.items.value(item);
        Ok(Upload { item, place, left: value_len, mode: change.mode })
    }

    /// Stores the next part. Returns false, and does nothing, if it is longer than the rest.
    #[must_use]
    pub fn continue_upload(&mut self, upload: &mut Upload, part: &[u8]) -> bool {
        let fits = part.len() <= upload.left;
        if fits {
            self.items.write(&mut upload.place, part);
            upload.left -= part.len();
        }
        fits
    }

    /// Makes the value visible, if the condition of the change holds.
    ///
    /// # Panics
    /// If parts are missing.
    pub fn finish_upload(&mut self, upload: Upload, now: u64) -> StoreOutcome {
        assert_eq!(upload.left, 0, "the upload is not complete");
        self.count_store();
        let mut bytes = [0; MAX_KEY];
        let key = self.items.key_of(upload.item, &mut bytes);
        let old = self.peek(&key, now);
        let outcome = self.refusal(upload.mode, old).unwrap_or_else(|| {
            if let Some(old) = old {
                self.items.unlink(old);
            }
            self.link(upload.item)
        });
        self.items.unhold(upload.item);
        outcome
    }

    /// Drops the parts of a value that have come.
    pub fn abort_upload(&mut self, upload: Upload) {
        self.items.unhold(upload.item);
    }

    /// Begins to read the value of a live item. The order of use and the counters stay.
    pub fn begin_download(&mut self, key: &Key<'_>, now: u64) -> Option<Download> {
        let item = self.peek(key, now)?;
        self.items.hold(item);
        let left = self.items.head(item).value_len as usize;
        Some(Download { item, place: self.items.value(item), left })
    }

    /// Appends the next part, of up to `max` bytes, to `out`.
    pub fn continue_download(&self, download: &mut Download, max: usize, out: &mut Vec<u8>) {
        let len = download.left.min(max);
        self.items.read(&mut download.place, len, out);
        download.left -= len;
    }

    /// Ends a download, also before its end.
    pub fn end_download(&mut self, download: Download) {
        self.items.unhold(download.item);
    }
}
