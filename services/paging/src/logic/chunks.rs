//! Which chunks of lenders hold the pages of a region.
//!
//! A region is divided into chunks of [`CHUNK_PAGES`] pages. The first page of a chunk that is
//! written out gets the chunk a place of equal length at each of its servers, so adjacent pages are
//! adjacent there. Invariant: `used` is the number of pages of the chunk that need their slot.
//!
//! # Concurrency
//! Plain values.

use smallvec::SmallVec;

use super::PAGE;

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = 256;
/// Length of a chunk in bytes.
pub(crate) const CHUNK: usize = CHUNK_PAGES * PAGE;

/// A copy of a chunk: `M` says where in the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica<M> {
    /// Index of the server.
    pub(crate) server: usize,
    /// The chunk there.
    pub(crate) memory: M,
}

/// The copies of one chunk.
pub(crate) type Replicas<M> = SmallVec<[Replica<M>; 2]>;

#[derive(Debug)]
struct Chunk<M> {
    replicas: Replicas<M>,
    used: usize,
}

/// Chunks of one region. A chunk without an entry has no page at a server.
#[derive(Debug)]
pub(crate) struct ChunkMap<M> {
    chunks: Vec<Option<Chunk<M>>>,
}

impl<M: Copy> ChunkMap<M> {
    /// Makes the map of a region with `pages` pages.
    pub(crate) fn new(pages: usize) -> ChunkMap<M> {
        ChunkMap { chunks: (0..pages.div_ceil(CHUNK_PAGES)).map(|_| None).collect() }
    }

    /// Returns the copies of a page's chunk; none if the chunk has no place.
    pub(crate) fn replicas(&self, page: usize) -> &[Replica<M>] {
        self.chunks[page / CHUNK_PAGES].as_ref().map_or(&[], |chunk| &chunk.replicas)
    }

    /// Gives a chunk its place. The chunk of the page must have none.
    pub(crate) fn place(&mut self, page: usize, replicas: Replicas<M>) {
        let chunk = &mut self.chunks[page / CHUNK_PAGES];
        debug_assert!(chunk.is_none());
        *chunk = Some(Chunk { replicas, used: 0 });
    }

    /// Adds a copy to the chunk of a page.
    pub(crate) fn add_replica(&mut self, page: usize, replica: Replica<M>) {
        if let Some(chunk) = &mut self.chunks[page / CHUNK_PAGES] {
            chunk.replicas.push(replica);
        }
    }

    /// Returns the first page of the first chunk at or after `page` that has a place, but fewer
    /// than `wanted` copies.
    pub(crate) fn next_bare(&self, page: usize, wanted: usize) -> Option<usize> {
        let from = page / CHUNK_PAGES;
        let is_bare =
            |chunk: &Option<Chunk<M>>| chunk.as_ref().is_some_and(|chunk| chunk.replicas.len() < wanted);
        let found = self.chunks.get(from..)?.iter().position(is_bare)?;
        Some((from + found) * CHUNK_PAGES)
    }

    /// Notes that a page needs its slot.
    pub(crate) fn take_slot(&mut self, page: usize) {
        if let Some(chunk) = &mut self.chunks[page / CHUNK_PAGES] {
            chunk.used += 1;
        }
    }

    /// Notes that a page needs its slot no more. Returns the chunk's copies if no page needs the
    /// chunk; its place is then free.
    pub(crate) fn leave_slot(&mut self, page: usize) -> Replicas<M> {
        let place = &mut self.chunks[page / CHUNK_PAGES];
        let Some(chunk) = place else { return Replicas::new() };
        chunk.used -= 1;
        if chunk.used > 0 {
            return Replicas::new();
        }
        place.take().map(|chunk| chunk.replicas).unwrap_or_default()
    }

    /// Removes a server. Returns the first page of each chunk that had its only copy there; such a
    /// chunk has no place any more.
    pub(crate) fn remove_server(&mut self, server: usize) -> Vec<usize> {
        let mut bare = Vec::new();
        for (index, place) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = place else { continue };
            let before = chunk.replicas.len();
            chunk.replicas.retain(|replica| replica.server != server);
            if chunk.replicas.is_empty() && before > 0 {
                *place = None;
                bare.push(index * CHUNK_PAGES);
            }
        }
        bare
    }

    /// Removes all chunks, and returns their copies.
    pub(crate) fn clear(&mut self) -> Vec<Replica<M>> {
        self.chunks.iter_mut().filter_map(Option::take).flat_map(|chunk| chunk.replicas).collect()
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn replica(server: usize, memory: u32) -> Replica<u32> {
        Replica { server, memory }
    }

    #[test]
    fn a_chunk_is_free_when_its_last_slot_is() {
        let mut map = ChunkMap::new(1000);
        assert!(map.replicas(300).is_empty());
        map.place(300, smallvec![replica(0, 7), replica(1, 8)]);
        assert_eq!(map.replicas(256).len(), 2);
        assert!(map.replicas(255).is_empty());
        map.take_slot(300);
        map.take_slot(301);
        assert!(map.leave_slot(300).is_empty());
        assert_eq!(map.leave_slot(301).as_slice(), [replica(0, 7), replica(1, 8)]);
        assert!(map.replicas(300).is_empty());
    }

    #[test]
    fn only_the_last_copy_bares_a_chunk() {
        let mut map = ChunkMap::new(1000);
        map.place(0, smallvec![replica(0, 1), replica(1, 1)]);
        map.place(999, smallvec![replica(1, 2)]);
        assert_eq!(map.remove_server(1), [768]);
        assert_eq!(map.replicas(0), [replica(0, 1)]);
        assert_eq!((map.next_bare(0, 2), map.next_bare(256, 2), map.next_bare(0, 1)), (Some(0), None, None));
        assert_eq!(map.next_bare(5000, 2), None);
        map.add_replica(0, replica(2, 5));
        assert_eq!(map.next_bare(0, 2), None);
        assert_eq!(map.remove_server(2), [0_usize; 0]);
        assert_eq!(map.remove_server(1), [0_usize; 0]);
        assert_eq!(map.remove_server(0), [0]);
        assert!(map.clear().is_empty());
    }
}
