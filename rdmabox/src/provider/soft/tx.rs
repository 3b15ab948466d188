//! The sending half of a connection: frames that wait for the socket, with payload left where it is.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
};

use zerocopy::IntoBytes;

use super::{
    regions::Piece,
    socket::{IoVec, Socket},
    wire::Header,
};

/// Vectors per system call.
const MAX_VECTORS: usize = 64;

/// Sent headers are forgotten at the latest when so many bytes of them have gathered.
const COMPACT_AT: usize = 64 * 1024;

#[derive(Debug)]
enum Chunk {
    /// Bytes of `Tx::small`: headers and inline payload.
    Small { start: usize, len: usize },
    /// Registered memory.
    Memory(Piece),
    /// A descriptor that goes with the next byte.
    Descriptor(OwnedFd),
}

#[derive(Debug, Default)]
pub(crate) struct Tx {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that have been sent.
    sent: usize,
    /// Headers and inline payload of the chunks; emptied whenever everything was sent.
    small: Vec<u8>,
    /// Payload bytes that wait.
    pending_bytes: usize,
    /// The peer is gone or this side has given up: nothing is sent any more.
    closed: bool,
}

impl Tx {
    pub(crate) fn header(&mut self, header: &Header) {
        self.bytes(header.as_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if self.closed || bytes.is_empty() {
            return;
        }
        let start = self.small.len();
        self.small.extend_from_slice(bytes);
        // Adjacent small chunks go out as one vector.
        if let Some(Chunk::Small { start: first, len }) = self.chunks.back_mut()
            && *first + *len == start
        {
            *len += bytes.len();
            return;
        }
        self.chunks.push_back(Chunk::Small { start, len: bytes.len() });
    }

    pub(crate) fn memory(&mut self, piece: Piece) {
        if !self.closed && piece.len > 0 {
            self.pending_bytes += piece.len;
            self.chunks.push_back(Chunk::Memory(piece));
        }
    }

    pub(crate) fn descriptor(&mut self, fd: OwnedFd) {
        if !self.closed {
            self.chunks.push_back(Chunk::Descriptor(fd));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Bytes that wait, payload and headers.
    pub(crate) fn backlog(&self) -> usize {
        self.pending_bytes + self.small.len()
    }

    /// Drops everything that waits and takes no more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.chunks.clear();
        self.small.clear();
        self.sent = 0;
        self.pending_bytes = 0;
    }

    /// Sends until the socket takes no more (`Ok(false)`) or nothing is left (`Ok(true)`).
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while !self.chunks.is_empty() {
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
                    Chunk::Small { start, len } => {
                        IoVec::new(self.small[*start..*start + *len].as_ptr().cast_mut(), *len)
                    }
                    Chunk::Memory(piece) => IoVec::new(piece.ptr, piece.len),
                    // A descriptor starts a message of its own.
                    Chunk::Descriptor(_) => break,
                };
                if count == 0 {
                    vector.skip(self.sent);
                }
                vectors[count] = vector;
                count += 1;
            }
            // SAFETY: small bytes live in `self.small`, which does not change during the call; pieces keep their
            // memory mapped.
            match unsafe { socket.send(&vectors[..count], descriptor.as_ref().map(AsFd::as_fd)) } {
                Ok(sent) => self.advance(sent),
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
        Ok(true)
    }

    /// Forgets the small bytes that were sent, when the queue never runs empty.
    fn compact(&mut self) {
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
            let (len, payload) = match chunk {
                Chunk::Small { len, .. } => (*len, false),
                Chunk::Memory(piece) => (piece.len, true),
                Chunk::Descriptor(_) => return,
            };
            let left = len - self.sent;
            let done = count.min(left);
            if payload {
                self.pending_bytes -= done;
            }
            if count < left {
                self.sent += count;
                return;
            }
            count -= left;
            self.sent = 0;
            self.chunks.pop_front();
        }
    }
}
