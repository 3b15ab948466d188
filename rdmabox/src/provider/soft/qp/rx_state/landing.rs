//! Where the payload of a frame lands.
//!
//! # Concurrency
//! [`Landing`] has no lock of its own; the queue pair locks it. It stores an aligned word of 8
//! bytes atomically.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    mapping::{self, IoVec},
    provider::soft::qp::request::Pieces,
    verbs::WcOpcode,
};

/// Size in bytes of a word that is stored atomically.
const WORD: usize = 8;

/// Maximum number of vectors per receive call.
pub(in crate::provider::soft::qp) const MAX_VECTORS: usize = 32;

/// A posted receive that a message consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenRecv {
    pub wr_id: u64,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub opcode: WcOpcode,
}

/// Action after the payload has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Completes a request of the peer.
    Executed { msn: u32, ack: bool, recv: Option<TakenRecv> },
    /// Completes an own READ.
    ReadDone(u32),
}

/// Payload in transit to its destination.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(in crate::provider::soft::qp) pieces: Pieces,
    /// Number of pieces that are full.
    pub(in crate::provider::soft::qp) next: usize,
    /// Bytes of piece `next` that have arrived.
    pub(in crate::provider::soft::qp) filled: usize,
    pub(in crate::provider::soft::qp) remaining: usize,
    /// Bytes of an aligned word, which is stored atomically when complete. `None` for other
    /// payloads, whose bytes are stored as they arrive.
    word: Option<[u8; WORD]>,
    pub then: Then,
}

impl Landing {
    pub(crate) fn new(pieces: Pieces, len: usize, then: Then) -> Landing {
        debug_assert!(pieces.iter().map(|piece| piece.len).sum::<usize>() >= len, "shorter than the payload");
        let is_word = len == WORD
            && pieces.first().is_some_and(|piece| piece.len >= WORD && piece.ptr.addr().is_multiple_of(WORD));
        Landing { pieces, next: 0, filled: 0, remaining: len, word: is_word.then_some([0; WORD]), then }
    }

    /// Stores a gathered word after all its bytes have arrived. If the connection ends earlier, the
    /// old word stays.
    pub(in crate::provider::soft::qp) fn store_word(&mut self) {
        if let (Some(word), Some(piece)) = (self.word.take(), self.pieces.first()) {
            // SAFETY: the piece has at least 8 checked bytes of a region that it keeps mapped, at
            // an aligned address. AtomicU64 allows concurrent modification.
            let place = unsafe { AtomicU64::from_ptr(piece.ptr.cast()) };
            place.store(u64::from_ne_bytes(word), Ordering::Release);
        }
    }

    /// Fills `vectors` with the destination of the next bytes. Returns the number of vectors, and
    /// whether they cover the rest of the payload.
    pub(in crate::provider::soft::qp) fn vectors(&mut self, vectors: &mut [IoVec]) -> (usize, bool) {
        if let Some(word) = &mut self.word {
            let mut vector = IoVec::new(word.as_mut_ptr(), WORD);
            vector.skip(WORD - self.remaining);
            vectors[0] = vector;
            return (usize::from(self.remaining > 0), true);
        }
        let (mut count, mut filled, mut remaining) = (0, self.filled, self.remaining);
        for piece in &self.pieces[self.next..] {
            if remaining == 0 || count == vectors.len() {
                break;
            }
            let mut vector = IoVec::new(piece.ptr, piece.len.min(filled + remaining));
            vector.skip(std::mem::take(&mut filled));
            remaining -= vector.len();
            vectors[count] = vector;
            count += 1;
        }
        (count, remaining == 0)
    }

    /// Copies buffered bytes to their destination. Returns how many of them were payload.
    pub(in crate::provider::soft::qp) fn put(&mut self, bytes: &[u8]) -> usize {
        let mut vectors = [IoVec::new(std::ptr::null_mut(), 0); MAX_VECTORS];
        let (used, _) = self.vectors(&mut vectors);
        let mut put = 0;
        for vector in &vectors[..used] {
            let len = vector.len().min(bytes.len() - put);
            // SAFETY: the destination was checked against its regions, which it keeps mapped, and
            // belongs to an outstanding request. The source is a private buffer.
            unsafe { mapping::copy(bytes[put..].as_ptr(), vector.ptr(), len) };
            put += len;
        }
        self.advance(put);
        put
    }

    /// Records `count` received bytes. Returns the number of bytes beyond the payload.
    pub(in crate::provider::soft::qp) fn advance(&mut self, mut count: usize) -> usize {
        while count > 0 && self.remaining > 0 {
            let room = (self.pieces[self.next].len - self.filled).min(self.remaining);
            let done = count.min(room);
            self.filled += done;
            self.remaining -= done;
            count -= done;
            if done == room {
                self.next += 1;
                self.filled = 0;
            }
        }
        count
    }
}

#[cfg(all(not(loom), test))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        mapping::Memory,
        provider::soft::memory::{Piece, Region},
        verbs::Access,
    };

    fn landing(memory: &Arc<Memory>, offset: u64, len: u64) -> Landing {
        let (addr, length) = (memory.addr(), memory.len() as u64);
        let region =
            Region { addr, length, access: Access::REMOTE_WRITE, key: 1, memory: Some(Arc::clone(memory)) };
        let mut pieces = Pieces::new();
        pieces.push(Piece::new(&Arc::new(region), addr + offset, len).expect("inside"));
        Landing::new(pieces, len as usize, Then::Executed { msn: 1, ack: false, recv: None })
    }

    /// For every split of the stream, a reader or a broken connection never sees a part of the
    /// word.
    #[test]
    fn an_aligned_word_is_stored_atomically() {
        let memory = Arc::new(Memory::private(4096).expect("memory"));
        for first in 1..8 {
            memory.write(24, &[0xaa; 8]);
            let mut landing = landing(&memory, 24, 8);
            assert_eq!(landing.put(&[1, 2, 3, 4, 5, 6, 7][..first]), first);
            assert_eq!(memory.load_u64(24), 0xaaaa_aaaa_aaaa_aaaa, "cut after {first}");
            let mut vectors = [IoVec::new(std::ptr::null_mut(), 0); MAX_VECTORS];
            assert_eq!(landing.vectors(&mut vectors), (1, true));
            assert_eq!(vectors[0].len(), 8 - first);
            // The following bytes belong to the next frame.
            assert_eq!(landing.put(&[[1, 2, 3, 4, 5, 6, 7, 8], [9; 8]].concat()[first..]), 8 - first);
            landing.store_word();
            assert_eq!(memory.load_u64(24).to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(memory.load_u64(32), 0);
        }
    }

    #[test]
    fn other_payloads_are_stored_as_they_arrive() {
        let memory = Arc::new(Memory::private(4096).expect("memory"));
        for (offset, len) in [(25, 8), (24, 7), (24, 16)] {
            memory.write(0, &[0; 64]);
            let mut landing = landing(&memory, offset, len);
            let bytes = vec![7; len as usize];
            assert_eq!(landing.put(&bytes[..3]), 3);
            let mut out = [0; 3];
            memory.read(offset as usize, &mut out);
            assert_eq!(out, [7; 3]);
            assert_eq!(landing.put(&bytes[3..]), len as usize - 3);
            landing.store_word();
            let mut out = vec![0; len as usize + 1];
            memory.read(offset as usize, &mut out);
            assert_eq!((&out[..len as usize], out[len as usize]), (&bytes[..], 0));
        }
    }
}
