//! The operations of a program on a region: map, update, free.
//!
//! A region is opened apart from [`Region::map`], so that a program can fetch places ahead.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{ops::Range, sync::Arc};

use super::{connection::unexpected, handle::Region, mapping::Mapping, update::Update};
use crate::{
    error::Error,
    proto::{Answer, RegionId, Request},
};

impl Region {
    /// Maps a range of the region: connects to its stores, and takes registered local memory. The
    /// local bytes are not read from the stores yet.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Link`] and [`Error::Local`]. A retry is safe.
    pub fn map(&self, range: Range<u64>) -> Result<Mapping, Error> {
        Mapping::new(self.clone(), range)
    }

    /// Maps the whole region.
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    pub fn map_all(&self) -> Result<Mapping, Error> {
        self.map(0..self.0.bytes)
    }

    /// Begins an update of whole chunks of a copy-on-write region, by their indices.
    ///
    /// # Errors
    /// [`Refusal::WriterExists`](crate::Refusal::WriterExists),
    /// [`Refusal::NotReserved`](crate::Refusal::NotReserved) and others.
    pub fn update(&self, chunks: Range<u32>) -> Result<Update, Error> {
        Update::new(self.clone(), chunks)
    }

    /// Returns a handle of the newest version.
    ///
    /// # Errors
    /// As for [`Namespace::open`](super::Namespace::open).
    pub fn newest(&self) -> Result<Region, Error> {
        let RegionId { namespace, address } = self.0.id;
        match self.0.connection.call(&Request::Init { namespace, address, bytes: self.0.bytes })? {
            Answer::Region(info) => Region::new(Arc::clone(&self.0.connection), info),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes the region. Its chunks go back to the reservation of the namespace.
    ///
    /// # Errors
    /// [`Error::StillMapped`] if this process has mappings or clones of the handle, and
    /// [`Refusal::RegionInUse`](crate::Refusal::RegionInUse) if there are other handles. The region
    /// stays, without this handle.
    pub fn free(self) -> Result<(), Error> {
        let mut handle = Arc::try_unwrap(self.0).map_err(|_| Error::StillMapped)?;
        match handle.connection.call(&Request::Free(handle.id))? {
            Answer::Done => {
                handle.has_reference = false;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
}
