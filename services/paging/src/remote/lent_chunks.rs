//! The chunks that one lender has lent to this pager.
//!
//! A lender that lends memory twice would have one page overwrite another. So each new chunk is
//! compared with those in use.
//!
//! # Concurrency
//! Plain values.

use std::collections::{BTreeSet, HashSet};

use rdmabox::RequestError;

use crate::{lender::protocol::LentChunk, logic::layout::CHUNK};

/// The chunks in use of one lender.
#[derive(Debug, Default)]
pub(super) struct LentChunks {
    numbers: HashSet<u32>,
    /// Remote keys and addresses.
    places: BTreeSet<(u32, u64)>,
}

impl LentChunks {
    /// Returns the number of chunks.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if it shares bytes or its number with another one.
    pub(super) fn add(&mut self, chunk: &LentChunk) -> Result<(), RequestError> {
        let (rkey, start) = place(chunk);
        let last = CHUNK as u64 - 1;
        let near = (rkey, start.saturating_sub(last))..=(rkey, start.saturating_add(last));
        if self.places.range(near).next().is_some() || self.numbers.contains(&chunk.number) {
            let number = chunk.number;
            return Err(RequestError::Invalid(format!("the lender lent memory of chunk {number} twice")));
        }
        self.places.insert((rkey, start));
        self.numbers.insert(chunk.number);
        Ok(())
    }

    /// Removes a chunk.
    pub(super) fn remove(&mut self, chunk: &LentChunk) {
        self.places.remove(&place(chunk));
        self.numbers.remove(&chunk.number);
    }

    /// Removes all chunks.
    pub(super) fn clear(&mut self) {
        *self = LentChunks::default();
    }
}

fn place(chunk: &LentChunk) -> (u32, u64) {
    let base = chunk.memory.base();
    (base.rkey, base.addr)
}

#[cfg(test)]
mod tests {
    use rdmabox::{Access, RemoteAddr, RemoteMr};

    use super::*;

    fn chunk(number: u32, rkey: u32, addr: u64) -> LentChunk {
        let memory = RemoteMr::new(RemoteAddr { addr, rkey }, CHUNK as u64, Access::REMOTE_READ);
        LentChunk { number, memory: memory.expect("a range") }
    }

    #[test]
    fn a_chunk_that_shares_a_byte_or_a_number_is_refused() {
        let (mut lent, len) = (LentChunks::default(), CHUNK as u64);
        let first = chunk(0, 7, 4 * len);
        lent.add(&first).expect("new");
        // Each side, and the same addresses of another region.
        for new in [chunk(1, 7, 3 * len), chunk(2, 7, 5 * len), chunk(3, 8, 4 * len)] {
            lent.add(&new).expect("new");
        }
        for twice in [
            chunk(9, 7, 4 * len),
            chunk(9, 7, 2 * len + 1),
            chunk(9, 7, 6 * len - 1),
            chunk(0, 7, 50 * len),
            chunk(9, 8, 4 * len + 4096),
        ] {
            assert!(matches!(lent.add(&twice), Err(RequestError::Invalid(_))), "{twice:?}");
        }
        assert_eq!(lent.len(), 4);
        lent.remove(&first);
        lent.add(&chunk(0, 7, 4 * len)).expect("it was given back");
        lent.clear();
        assert_eq!(lent.len(), 0);
        for place in [0, u64::MAX - len] {
            lent.add(&chunk(place as u32, 7, place)).expect("new");
        }
    }
}
