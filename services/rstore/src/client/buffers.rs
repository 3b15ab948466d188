//! Local memory of mappings, kept registered for later mappings of the same length.
//!
//! # Concurrency
//! Any thread. The lock is held for moments.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use rdmabox::{Buffer, Session};

use crate::error::Error;

/// Length of a page, for the first touch.
const PAGE: usize = 4096;

/// Buffers without a mapping.
#[derive(Debug)]
pub(super) struct Buffers {
    limit: u64,
    state: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    bytes: u64,
    of_length: BTreeMap<usize, VecDeque<Buffer>>,
}

impl Buffers {
    pub(super) fn new(limit: u64) -> Buffers {
        Buffers { limit, state: Mutex::default() }
    }

    /// Returns a buffer of `len` bytes. A kept one has bytes of an earlier mapping of this client.
    /// A new one is registered with the session, and all of its pages are present.
    pub(super) fn take(&self, session: &Session, len: usize) -> Result<Buffer, Error> {
        let mut cache = self.state.lock();
        let kept = cache.of_length.get_mut(&len).and_then(VecDeque::pop_front);
        if let Some(buffer) = kept {
            cache.bytes -= len as u64;
            return Ok(buffer);
        }
        drop(cache);
        let buffer = session.allocate(len).map_err(|source| Error::Local { len: len as u64, source });
        let mut buffer = buffer?;
        buffer.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
        Ok(buffer)
    }

    /// Keeps a buffer, within the limit.
    pub(super) fn give_back(&self, buffer: Buffer) {
        let len = buffer.len() as u64;
        let mut cache = self.state.lock();
        if cache.bytes.saturating_add(len) <= self.limit {
            cache.bytes += len;
            cache.of_length.entry(buffer.len()).or_default().push_back(buffer);
        }
    }
}
