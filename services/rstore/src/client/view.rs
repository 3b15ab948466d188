//! Links to the chunks of a mapped range, and the cut of transfers at the boundaries of chunks.
//!
//! A transfer inside one chunk is one request, without an allocation.
//!
//! # Concurrency
//! Any thread. No locks.

use std::ops::Range;

use pool::{Link, Piece, TransferError, read_parts};

use super::handle::{Handle, Region};
use crate::error::Error;

/// A range of a region with links to its chunks.
#[derive(Debug)]
pub(super) struct View {
    pub(super) region: Region,
    /// Links to the chunks of the range.
    links: Vec<Link>,
    /// Offset of the range in the first of them.
    start: u64,
    pub(super) len: u64,
    chunk: u64,
    /// Indices of the chunks in the region.
    indices: Range<usize>,
}

impl View {
    pub(super) fn new(region: Region, range: &Range<u64>) -> Result<View, Error> {
        let handle = &region.0;
        Handle::check(range, handle.bytes, "region")?;
        let len = range.end - range.start;
        if len == 0 {
            let (offset, limit) = (range.start, handle.bytes);
            return Err(Error::OutOfBounds { offset, len, limit, object: "region" });
        }
        let chunk = handle.connection.chunk_bytes;
        let indices = (range.start / chunk) as usize..((range.end - 1) / chunk) as usize + 1;
        let links = handle.link(indices.clone())?;
        let start = range.start % chunk;
        Ok(View { region, links, start, len, chunk, indices })
    }

    /// Returns the link to the first chunk.
    pub(super) fn first(&self) -> Option<&Link> {
        self.links.first()
    }

    /// Gets links of the present sessions.
    pub(super) fn relink(&mut self) -> Result<(), Error> {
        self.links = self.region.0.link(self.indices.clone())?;
        Ok(())
    }

    /// Checks that bytes are in the range.
    #[inline]
    pub(super) fn check(&self, range: &Range<u64>) -> Result<(), Error> {
        Handle::check(range, self.len, "mapping")
    }

    /// Returns the piece of a range that is inside one chunk.
    #[inline]
    pub(super) fn single(&self, range: &Range<u64>) -> Option<Piece<'_>> {
        let (at, end) = (self.start + range.start, self.start + range.end);
        // Without a division in the first chunk.
        let index = if end <= self.chunk { 0 } else { at / self.chunk };
        let base = index * self.chunk;
        let link = self.links.get(index as usize).filter(|_| end - base <= self.chunk)?;
        Some(Piece { link, offset: at - base, len: (end - at) as usize })
    }

    /// Cuts a range at the boundaries of chunks.
    pub(super) fn pieces(&self, range: Range<u64>) -> Vec<Piece<'_>> {
        let (mut at, end) = (self.start + range.start, self.start + range.end);
        let mut pieces = Vec::with_capacity(self.links.len());
        while let Some(link) = self.links.get((at / self.chunk) as usize).filter(|_| at < end) {
            let (offset, len) = (at % self.chunk, (end - at).min(self.chunk - at % self.chunk));
            at += len;
            pieces.push(Piece { link, offset, len: len as usize });
        }
        pieces
    }

    /// Reads bytes of the region.
    pub(super) fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<(), TransferError> {
        match self.single(&range) {
            Some(piece) => pool::read(&[piece], out),
            None => pool::read(&self.pieces(range), out),
        }
    }

    /// Writes bytes of the region.
    pub(super) fn write(&self, range: Range<u64>, data: &[u8]) -> Result<(), TransferError> {
        match self.single(&range) {
            Some(piece) => pool::write(&[piece], data),
            None => pool::write(&self.pieces(range), data),
        }
    }

    /// Reads bytes of the region, and the marks of their chunks in the same lists. Returns the
    /// number of chunks that a newer version has replaced.
    pub(super) fn read_marked(&self, range: Range<u64>, out: &mut [u8]) -> Result<usize, TransferError> {
        let pieces = self.pieces(range);
        let mut marks = vec![[0; 8]; pieces.len()];
        let mut parts = Vec::with_capacity(2 * pieces.len());
        let mut rest = out;
        for (piece, mark) in pieces.iter().zip(&mut marks) {
            let (part, later) = rest.split_at_mut(piece.len);
            rest = later;
            parts.push((*piece, part));
            parts.push((Piece { link: piece.link, offset: self.chunk, len: 8 }, &mut mark[..]));
        }
        read_parts(parts)?;
        let version = self.region.0.version;
        Ok(marks.into_iter().filter(|mark| u64::from_ne_bytes(*mark) > version).count())
    }
}
