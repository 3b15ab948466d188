//! Namespaces: reservations and regions.
//!
//! # Concurrency
//! Any thread. No locks.

use std::sync::Arc;

use super::{
    connection::{Connection, unexpected},
    handle::Region,
};
use crate::{
    error::Error,
    proto::{Answer, NamespaceId, Request},
};

/// A flat 64-bit space of addresses that clients share by its name.
#[derive(Clone, Debug)]
pub struct Namespace {
    connection: Arc<Connection>,
    id: NamespaceId,
}

/// The kind of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocFlags {
    /// Writes change the bytes in place. Clients coordinate their accesses.
    #[default]
    InPlace,
    /// One writer at a time makes new versions out of place; readers keep theirs.
    CopyOnWrite,
}

impl Namespace {
    pub(super) fn new(connection: Arc<Connection>, id: NamespaceId) -> Namespace {
        Namespace { connection, id }
    }

    /// Prepares memory at the stores: at least `bytes` bytes, in whole chunks. The reservation
    /// belongs to the namespace, and outlives the client.
    ///
    /// # Errors
    /// [`Refusal::NotEnoughMemory`](crate::Refusal::NotEnoughMemory),
    /// [`Refusal::StoreLost`](crate::Refusal::StoreLost) and others. Nothing is reserved then.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        self.done(&Request::Reserve(self.id, bytes))
    }

    /// Returns reserved chunks of `bytes` bytes to the pool. They stay prepared for the next
    /// reservation.
    ///
    /// # Errors
    /// [`Refusal::NotReserved`](crate::Refusal::NotReserved) and others, without an effect.
    pub fn release(&self, bytes: u64) -> Result<(), Error> {
        self.done(&Request::Release(self.id, bytes))
    }

    /// Binds reserved chunks to a new region of `bytes` bytes, over as many stores as possible. The
    /// bytes of a new region are those that the chunks had before.
    ///
    /// # Errors
    /// [`Refusal::NotReserved`](crate::Refusal::NotReserved) and others, without an effect.
    pub fn alloc(&self, bytes: u64, flags: AllocFlags) -> Result<Region, Error> {
        let copy_on_write = flags == AllocFlags::CopyOnWrite;
        self.region(&Request::Alloc { namespace: self.id, bytes, copy_on_write })
    }

    /// Reserves and allocates in one call: for programs that prepare nothing ahead.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve) and [`alloc`](Self::alloc).
    pub fn alloc_reserved(&self, bytes: u64, flags: AllocFlags) -> Result<Region, Error> {
        self.reserve(bytes)?;
        self.alloc(bytes, flags)
    }

    /// Opens the region that has `bytes` bytes from `address` on, in its newest version.
    ///
    /// # Errors
    /// [`Refusal::NoSuchRegion`](crate::Refusal::NoSuchRegion) and others.
    pub fn open(&self, address: u64, bytes: u64) -> Result<Region, Error> {
        self.region(&Request::Init { namespace: self.id, address, bytes })
    }

    /// Returns the address of the first region of a namespace.
    pub fn first_address(&self) -> u64 {
        self.connection.chunk_bytes
    }

    /// Deletes the namespace with its regions and its reservation.
    ///
    /// # Errors
    /// [`Refusal::NamespaceInUse`](crate::Refusal::NamespaceInUse) while there are handles of its
    /// regions, also handles of this client.
    pub fn delete(self) -> Result<(), Error> {
        self.done(&Request::DeleteNamespace(self.id))
    }

    fn region(&self, request: &Request) -> Result<Region, Error> {
        match self.connection.call(request)? {
            Answer::Region(info) => Region::new(Arc::clone(&self.connection), info),
            other => Err(unexpected(&other)),
        }
    }

    fn done(&self, request: &Request) -> Result<(), Error> {
        match self.connection.call(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}
