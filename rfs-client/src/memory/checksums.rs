//! The checksum words of the arena.
//!
//! # Concurrency
//! Any number of threads. No locks.

use std::sync::Arc;

use rdmabox::RemoteAddr;
use rfs_proto::{BLOCK, RegionRef, checksum};

use crate::{
    error::ClientError,
    remote::{Mapped, Remote, at},
};

/// The region of checksum words.
#[derive(Debug)]
pub(crate) struct Checksums {
    region: RegionRef,
    pub(crate) map: Option<Mapped>,
}

impl Checksums {
    /// Creates the view of an arena's words. Fails if the region is too small.
    pub(crate) fn new(
        remote: &Arc<dyn Remote>,
        region: RegionRef,
        arena: &RegionRef,
    ) -> Result<Checksums, ClientError> {
        if region.len < checksum::region_len(arena.len) || !region.addr.is_multiple_of(8) {
            return Err(ClientError::Protocol("checksums that are not aligned, or too few"));
        }
        Ok(Checksums { region, map: Mapped::of(&**remote, &region) })
    }

    /// Returns the address of the words of `len` bytes at `arena`, with the key of an epoch.
    pub(crate) fn remote(&self, epoch: u32, arena: u64, len: u64) -> Result<RemoteAddr, ClientError> {
        at(&self.region, epoch, checksum::place(arena), len / BLOCK * checksum::LEN)
            .ok_or(ClientError::Protocol("an extent without checksums"))
    }
}
