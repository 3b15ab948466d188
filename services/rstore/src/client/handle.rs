//! Handles of regions, with the places of all chunks of a version.
//!
//! A handle is one reference at the master. Its drop gives the reference back.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{ops::Range, sync::Arc};

use pool::{ChunkId, ClientId, Link, LinkError};

use super::connection::{Connection, unexpected};
use crate::{
    error::Error,
    proto::{Answer, RegionId, RegionInfo, Request},
};

/// A handle of a region in one version. Clones share the reference. The version stays readable
/// until the last clone, and the last mapping, is dropped.
#[derive(Clone, Debug)]
pub struct Region(pub(super) Arc<Handle>);

#[derive(Debug)]
pub(super) struct Handle {
    pub(super) connection: Arc<Connection>,
    pub(super) id: RegionId,
    pub(super) bytes: u64,
    pub(super) copy_on_write: bool,
    pub(super) version: u64,
    pub(super) chunks: Vec<ChunkId>,
    /// The drop tells the master.
    pub(super) has_reference: bool,
}

impl Region {
    /// Makes a handle, and fetches the places that were not in the reply.
    pub(super) fn new(connection: Arc<Connection>, info: RegionInfo) -> Result<Region, Error> {
        let RegionInfo { region: id, bytes, copy_on_write, version, chunks, .. } = info;
        let mut handle =
            Handle { connection, id, bytes, copy_on_write, version, chunks, has_reference: true };
        let wanted = bytes.div_ceil(handle.connection.chunk_bytes);
        while (handle.chunks.len() as u64) < wanted {
            let places = handle.places(handle.chunks.len())?;
            handle.chunks.extend(places);
        }
        if handle.chunks.len() as u64 != wanted {
            return Err(Error::Protocol(format!("{} chunks for {bytes} bytes", handle.chunks.len())));
        }
        Ok(Region(Arc::new(handle)))
    }

    /// Returns the first address.
    pub fn address(&self) -> u64 {
        self.0.id.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.0.bytes
    }

    /// Returns false: no region is empty.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Returns the version. It grows with each update of a copy-on-write region.
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// Returns the client that has the handle.
    pub(crate) fn client(&self) -> ClientId {
        self.0.connection.client()
    }

    /// Returns the clients of a list that reach no store and hold no reference any more.
    pub(crate) fn lost(&self, clients: Vec<ClientId>) -> Result<Vec<ClientId>, Error> {
        self.0.connection.lost(clients)
    }

    /// Returns the number of stores that have bytes of the region.
    pub fn stores(&self) -> usize {
        let stores: std::collections::BTreeSet<_> = self.0.chunks.iter().map(|chunk| chunk.store).collect();
        stores.len()
    }
}

impl Handle {
    /// Asks the master for a page of places. The connection learns the addresses of their stores,
    /// and the epoch of the client.
    fn places(&self, from: usize) -> Result<Vec<ChunkId>, Error> {
        let request = Request::Places { region: self.id, version: self.version, from: from as u32 };
        match self.connection.call(&request)? {
            Answer::Places(places, _) if !places.is_empty() => Ok(places),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns links to chunks, by their indices. A client whose access was ended gets links in its
    /// present epoch.
    pub(super) fn link(&self, indices: Range<usize>) -> Result<Vec<Link>, Error> {
        let chunks = &self.chunks[indices.clone()];
        match self.connection.stores.link(chunks) {
            Err(LinkError::Refused { .. }) => {
                let mut at = indices.start;
                while at < indices.end {
                    at += self.places(at)?.len();
                }
                Ok(self.connection.stores.link(chunks)?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Checks that a range is inside `limit` bytes.
    pub(super) fn check(range: &Range<u64>, limit: u64, object: &'static str) -> Result<(), Error> {
        match range.start <= range.end && range.end <= limit {
            true => Ok(()),
            false => {
                let len = range.end.wrapping_sub(range.start);
                Err(Error::OutOfBounds { offset: range.start, len, limit, object })
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.has_reference {
            self.connection.call_sometime(Request::Drop(self.id, self.version));
        }
    }
}
