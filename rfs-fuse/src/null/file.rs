//! A sparse file in memory, in chunks of 1 MiB.
//!
//! # Concurrency
//! Session threads. A lock over the list of chunks, then a lock over each chunk.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;

const CHUNK: usize = 1 << 20;
/// Maximum offset of a write.
pub(super) const MAX_LEN: u64 = 1 << 40;
static ZEROS: [u8; CHUNK] = [0; CHUNK];

type Chunk = Arc<RwLock<Box<[u8]>>>;

#[derive(Debug, Default)]
pub(super) struct File {
    len: AtomicU64,
    chunks: RwLock<Vec<Option<Chunk>>>,
}

/// Splits a range at chunk borders. Yields a chunk's index, the first byte in it, and the number
/// of bytes.
fn split(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut at = offset;
    let end = offset + len as u64;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (index, from) = ((at / CHUNK as u64) as usize, (at % CHUNK as u64) as usize);
        let run = (CHUNK - from).min((end - at) as usize);
        at += run as u64;
        Some((index, from, run))
    })
}

impl File {
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn chunk(&self, index: usize) -> Option<Chunk> {
        self.chunks.read().get(index).cloned().flatten()
    }

    fn chunk_to_write(&self, index: usize) -> Chunk {
        if let Some(chunk) = self.chunk(index) {
            return chunk;
        }
        let mut chunks = self.chunks.write();
        if chunks.len() <= index {
            chunks.resize(index + 1, None);
        }
        chunks[index].get_or_insert_with(|| Arc::new(RwLock::new(vec![0; CHUNK].into_boxed_slice()))).clone()
    }

    pub(super) fn write(&self, offset: u64, mut data: &[u8]) {
        let end = offset + data.len() as u64;
        for (index, from, run) in split(offset, data.len()) {
            self.chunk_to_write(index).write()[from..from + run].copy_from_slice(&data[..run]);
            data = &data[run..];
        }
        self.len.fetch_max(end, Ordering::AcqRel);
    }

    /// Calls `sink` with the bytes of a range up to the file's end. Bytes of one chunk are not
    /// copied.
    pub(super) fn read(&self, offset: u64, len: usize, buffer: &mut Vec<u8>, sink: impl FnOnce(&[u8])) {
        let len = self.len().saturating_sub(offset).min(len as u64) as usize;
        let mut runs = split(offset, len);
        match (runs.next(), runs.next()) {
            (None, _) => sink(&[]),
            (Some((index, from, run)), None) => match self.chunk(index) {
                Some(chunk) => sink(&chunk.read()[from..from + run]),
                None => sink(&ZEROS[..run]),
            },
            _ => {
                buffer.clear();
                for (index, from, run) in split(offset, len) {
                    match self.chunk(index) {
                        Some(chunk) => buffer.extend_from_slice(&chunk.read()[from..from + run]),
                        None => buffer.extend_from_slice(&ZEROS[..run]),
                    }
                }
                sink(buffer);
            }
        }
    }

    pub(super) fn truncate(&self, len: u64) {
        let mut chunks = self.chunks.write();
        if len < self.len() {
            chunks.truncate(len.div_ceil(CHUNK as u64) as usize);
            let tail = (len % CHUNK as u64) as usize;
            if tail != 0
                && let Some(Some(last)) = chunks.get((len / CHUNK as u64) as usize)
            {
                last.write()[tail..].fill(0);
            }
        }
        self.len.store(len, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(file: &File, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        file.read(offset, len, &mut Vec::new(), |bytes| out = bytes.to_vec());
        out
    }

    #[test]
    fn bytes_come_back_across_chunks_and_holes_are_zero() {
        let file = File::default();
        let at = CHUNK as u64 - 3;
        file.write(at, b"abcdef");
        assert_eq!(file.len(), at + 6);
        assert_eq!(all(&file, at, 100), b"abcdef");
        assert_eq!(all(&file, at - 2, 4), b"\0\0ab");
        assert_eq!(all(&file, at + 6, 10), b"");
    }

    #[test]
    fn truncated_bytes_do_not_come_back() {
        let file = File::default();
        file.write(0, b"abcdef");
        file.truncate(2);
        file.truncate(6);
        assert_eq!(all(&file, 0, 10), b"ab\0\0\0\0");
    }
}
