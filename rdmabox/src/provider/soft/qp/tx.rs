//! The sending half of a connection: queued frames whose payload stays in registered memory.
//!
//! # Concurrency
//! [`Tx`] has no lock of its own; the queue pair locks it.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use zerocopy::IntoBytes;

use crate::{
    mapping::IoVec,
    provider::soft::{
        memory::{Piece, Region},
        stream::Socket,
        wire::Header,
    },
};

/// Maximum number of vectors per system call.
const MAX_VECTORS: usize = 64;

/// Maximum number of bytes sent before other queue pairs get their turn.
const BUDGET_BYTES: usize = 16 << 20;

/// Size in bytes of `Tx::small` above which sent headers are removed.
const COMPACT_AT: usize = 64 * 1024;

#[derive(Debug)]
enum Chunk {
    /// Bytes of `Tx::small` (headers and inline payload), and the number of answer headers among
    /// them.
    Small { start: usize, len: usize, answers: usize },
    /// Registered memory, with the sequence number of the own request that it belongs to; `None`
    /// for an answer.
    Memory(Piece, Option<u32>),
    /// A descriptor that travels with the next byte.
    Descriptor(OwnedFd),
}

#[derive(Debug, Default)]
pub(crate) struct Tx {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that have been sent.
    sent: usize,
    /// Headers and inline payload of the chunks; cleared when everything has been sent.
    small: Vec<u8>,
    /// Number of answers with unsent headers.
    answers: usize,
    /// True if the connection has failed or this side has closed it; nothing is sent any more.
    closed: bool,
}

impl Tx {
    /// Adds the header of an own request or announcement.
    pub(crate) fn header(&mut self, header: &Header) {
        self.small(header.as_bytes(), 0);
    }

    /// Adds the header of an answer to the peer.
    pub(crate) fn answer(&mut self, header: &Header) {
        self.small(header.as_bytes(), 1);
    }

    /// Adds inline payload.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.small(bytes, 0);
    }

    fn small(&mut self, bytes: &[u8], answers: usize) {
        if self.closed || bytes.is_empty() {
            return;
        }
        self.answers += answers;
        let start = self.small.len();
        self.small.extend_from_slice(bytes);
        // Adjacent small chunks are sent as one vector.
        if let Some(Chunk::Small { start: first, len, answers: before }) = self.chunks.back_mut()
            && *first + *len == start
        {
            *len += bytes.len();
            *before += answers;
            return;
        }
        self.chunks.push_back(Chunk::Small { start, len: bytes.len(), answers });
    }

    /// Adds payload of own request `msn`, or of an answer if `None`.
    pub(crate) fn memory(&mut self, piece: Piece, msn: Option<u32>) {
        if !self.closed && piece.len > 0 {
            self.chunks.push_back(Chunk::Memory(piece, msn));
        }
    }

    /// Returns the first own request whose payload has not been sent completely.
    pub(crate) fn first_unsent(&self) -> Option<u32> {
        self.chunks.iter().find_map(|chunk| match chunk {
            Chunk::Memory(_, msn) => *msn,
            _ => None,
        })
    }

    /// Returns true if payload of this region waits to be sent.
    pub(crate) fn uses(&self, region: &Arc<Region>) -> bool {
        self.chunks.iter().any(|chunk| matches!(chunk, Chunk::Memory(piece, _) if piece.is_of(region)))
    }

    pub(crate) fn descriptor(&mut self, fd: OwnedFd) {
        if !self.closed {
            self.chunks.push_back(Chunk::Descriptor(fd));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the number of queued answers.
    pub(crate) fn answers(&self) -> usize {
        self.answers
    }

    /// Drops all queued output and accepts no more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.chunks.clear();
        self.small.clear();
        self.sent = 0;
        self.answers = 0;
    }

    /// Sends queued output. Returns `Ok(false)` if the socket takes no more or the budget is used
    /// up. Returns `Ok(true)` if nothing is left, including the TLS channel's buffers.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        let mut budget = BUDGET_BYTES;
        while !self.chunks.is_empty() {
            if budget == 0 {
                return Ok(false);
            }
            let descriptor = match self.chunks.front() {
                Some(Chunk::Descriptor(_)) => match self.chunks.pop_front() {
                    Some(Chunk::Descriptor(fd)) => Some(fd),
                    _ => None,
                },
                _ => None,
            };
            let mut vectors = [IoVec::new(std::ptr::null_mut(), 0); MAX_VECTORS];
            let mut count = 0;
            for chunk in &self.chunks {
                if count == MAX_VECTORS {
                    break;
                }
                let mut vector = match chunk {
                    Chunk::Small { start, len, .. } => {
                        IoVec::new(self.small[*start..*start + *len].as_ptr().cast_mut(), *len)
                    }
                    Chunk::Memory(piece, _) => IoVec::new(piece.ptr, piece.len),
                    // A descriptor starts a new message.
                    Chunk::Descriptor(_) => break,
                };
                if count == 0 {
                    vector.skip(self.sent);
                }
                vectors[count] = vector;
                count += 1;
            }
            // SAFETY: small bytes are in `self.small`, which does not change during the call;
            // pieces keep their memory mapped.
            match unsafe { socket.send(&vectors[..count], descriptor.as_ref().map(AsFd::as_fd)) } {
                Ok(sent) => {
                    budget = budget.saturating_sub(sent);
                    self.advance(sent);
                }
                Err(e) => {
                    if let Some(fd) = descriptor {
                        self.chunks.push_front(Chunk::Descriptor(fd));
                    }
                    match e.kind() {
                        io::ErrorKind::Interrupted => {}
                        io::ErrorKind::WouldBlock => {
                            if self.small.len() > COMPACT_AT {
                                self.compact();
                            }
                            return Ok(false);
                        }
                        _ => return Err(e),
                    }
                }
            }
        }
        self.small.clear();
        socket.flush()
    }

    /// Removes sent bytes from `small`, in case the queue never runs empty.
    fn compact(&mut self) {
        if let Some(Chunk::Small { start, len, .. }) = self.chunks.front_mut() {
            *start += self.sent;
            *len -= self.sent;
            self.sent = 0;
        }
        let start = self.chunks.iter().find_map(|chunk| match chunk {
            Chunk::Small { start, .. } => Some(*start),
            _ => None,
        });
        let start = start.unwrap_or(self.small.len());
        self.small.drain(..start);
        for chunk in &mut self.chunks {
            if let Chunk::Small { start: s, .. } = chunk {
                *s -= start;
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(chunk) = self.chunks.front() {
            let (len, answers) = match chunk {
                Chunk::Small { len, answers, .. } => (*len, *answers),
                Chunk::Memory(piece, _) => (piece.len, 0),
                Chunk::Descriptor(_) => return,
            };
            let left = len - self.sent;
            if count < left {
                self.sent += count;
                return;
            }
            count -= left;
            self.answers -= answers;
            self.sent = 0;
            self.chunks.pop_front();
        }
    }
}
