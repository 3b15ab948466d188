//! Mappings: local memory and links to chunks, for reads and writes without the master.
//!
//! A read or write is cut at the boundaries of chunks, and all parts are under way at once. Nothing
//! is allocated for a transfer inside one chunk of an in-place region.
//!
//! # Concurrency
//! One thread uses a mapping at a time. No locks.

use std::{ops::Range, sync::Arc};

use rdmabox::{Buffer, RemoteAddr, Session};

use super::{handle::Region, view::View};
use crate::error::Error;

/// A mapped range of a region. The drop unmaps it; the local memory and the links stay ready for a
/// later mapping.
#[derive(Debug)]
pub struct Mapping {
    view: View,
    /// `None` only while it is dropped.
    local: Option<Buffer>,
    tainted: usize,
}

impl Mapping {
    pub(super) fn new(region: Region, range: Range<u64>) -> Result<Mapping, Error> {
        let view = View::new(region, &range)?;
        let len = usize::try_from(view.len).unwrap_or(usize::MAX);
        let buffers = &view.region.0.connection.buffers;
        let local = view.first().map(|link| buffers.take(link.session(), len)).transpose()?;
        Ok(Mapping { view, local, tainted: 0 })
    }

    /// Returns the region.
    pub fn region(&self) -> &Region {
        &self.view.region
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.view.len
    }

    /// Returns false: no mapping is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the local bytes.
    pub fn local(&self) -> &[u8] {
        self.local.as_deref().unwrap_or_default()
    }

    /// Returns the local bytes, to be changed before a [`write`](Self::write).
    pub fn local_mut(&mut self) -> &mut [u8] {
        self.local.as_deref_mut().unwrap_or_default()
    }

    /// Reads bytes of the region into the same place of the local memory, and returns them.
    ///
    /// In a copy-on-write region the same request reads the marks of the chunks
    /// ([`tainted`](Self::tainted)).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] and [`Error::Transfer`]. A retry is safe.
    pub fn read(&mut self, range: Range<u64>) -> Result<&[u8], Error> {
        self.view.check(&range)?;
        let local = self.local.as_deref_mut().unwrap_or_default();
        let out = &mut local[range.start as usize..range.end as usize];
        if self.view.region.0.copy_on_write {
            self.tainted = self.view.read_marked(range, out)?;
        } else {
            self.view.read(range, out)?;
        }
        Ok(out)
    }

    /// Reads bytes from `offset` on into memory of the caller.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_into(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let range = offset..offset.saturating_add(out.len() as u64);
        self.view.check(&range)?;
        if self.view.region.0.copy_on_write {
            self.tainted = self.view.read_marked(range, out)?;
            return Ok(());
        }
        Ok(self.view.read(range, out)?)
    }

    /// Returns the number of chunks that the last read found tainted: a newer version has replaced
    /// them. The bytes that were read are those of this version in any case. [`Region::newest`] has
    /// the new version. The master marks chunks after the update, so a read may find marks on some
    /// of the replaced chunks, or on none yet.
    pub fn tainted(&self) -> usize {
        self.tainted
    }

    /// Writes local bytes to the same place of the region.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] and [`Error::Transfer`]; a retry is safe. [`Error::CopyOnWrite`] for
    /// a region that [`Region::update`] changes.
    pub fn write(&mut self, range: Range<u64>) -> Result<(), Error> {
        self.view.check(&range)?;
        self.check_in_place()?;
        let local = range.start as usize..range.end as usize;
        Ok(self.view.write(range, &self.local()[local])?)
    }

    /// Writes memory of the caller from `offset` on.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_from(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let range = offset..offset.saturating_add(data.len() as u64);
        self.view.check(&range)?;
        self.check_in_place()?;
        Ok(self.view.write(range, data)?)
    }

    fn check_in_place(&self) -> Result<(), Error> {
        match self.view.region.0.copy_on_write {
            true => Err(Error::CopyOnWrite),
            false => Ok(()),
        }
    }

    /// Returns the session and the address of a byte, for requests that this library has not, such
    /// as atomics. They are valid while the region is mapped.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn locate(&self, offset: u64) -> Result<(Arc<Session>, RemoteAddr), Error> {
        let outside = || Error::OutOfBounds { offset, len: 1, limit: self.len(), object: "mapping" };
        let range = offset..offset.saturating_add(1);
        self.view.check(&range)?;
        let piece = self.view.single(&range).ok_or_else(outside)?;
        let remote = piece.link.memory().at(piece.offset).map_err(|_| outside())?;
        Ok((Arc::clone(piece.link.session()), remote))
    }

    /// Connects again after a store has ended this client's sessions. Asks the master only if the
    /// store refuses the client's epoch.
    ///
    /// # Errors
    /// [`Error::Link`], and reasons of the master. A retry is safe.
    pub fn relink(&mut self) -> Result<(), Error> {
        self.view.relink()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(buffer) = self.local.take() {
            self.view.region.0.connection.buffers.give_back(buffer);
        }
    }
}
