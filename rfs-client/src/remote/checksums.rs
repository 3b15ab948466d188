//! The checksum words of the arena.
//!
//! # Concurrency
//! Any number of threads. No locks.

use std::sync::Arc;

use rfs_proto::{BLOCK, RegionRef, checksum};

use crate::{
    error::ClientError,
    remote::{
        Mapped, Remote,
        address::{Epoch, Place, Region, RegionBounds},
    },
};

/// The region of checksum words.
#[derive(Debug)]
pub(crate) struct Checksums {
    bounds: RegionBounds,
    pub(crate) map: Option<Mapped>,
}

impl Checksums {
    /// Creates the view of an arena's words. Fails if the region is too small.
    pub(crate) fn new(
        remote: &Arc<dyn Remote>,
        region: RegionRef,
        arena: RegionBounds,
    ) -> Result<Checksums, ClientError> {
        if region.len < checksum::region_len(arena.len) || !region.addr.is_multiple_of(8) {
            return Err(ClientError::Protocol("checksums that are not aligned, or too few"));
        }
        let bounds = RegionBounds { region: Region::Sums, len: region.len };
        Ok(Checksums { bounds, map: Mapped::of(&**remote, bounds) })
    }

    /// Returns the place of the words of `len` bytes at an offset of the arena.
    pub(crate) fn place(&self, epoch: Epoch, arena: u64, len: u64) -> Result<Place, ClientError> {
        let words = self.bounds.place(epoch, checksum::place(arena), len / BLOCK * checksum::LEN);
        words.ok_or(ClientError::Protocol("an extent without checksums"))
    }
}
