//! A buffer with its own memory and a cached registration.

use std::{io, sync::Arc};

use super::registrations::RegistrationCache;
use crate::mapping::{Memory, MemoryError};
use crate::verbs::{Access, VerbsError};

/// A buffer of any length. Its registration stays in the cache while the buffer exists, unless
/// other registrations evict it. The drop ends the registration and returns the memory to the
/// system.
#[derive(Debug)]
pub(crate) struct OwnBuf {
    memory: Arc<Memory>,
    len: usize,
    cache: Arc<RegistrationCache>,
}

impl OwnBuf {
    /// Allocates and registers a buffer of `len` zeros.
    pub(crate) fn new(len: usize, cache: &Arc<RegistrationCache>) -> Result<OwnBuf, VerbsError> {
        let memory = Memory::private(len.max(1)).map_err(|e| match e {
            MemoryError::Os { what, source } => VerbsError::Os { what, source },
            other => VerbsError::Os { what: "mmap", source: io::Error::other(other) },
        })?;
        let memory = Arc::new(memory);
        cache.register(&memory, Access::LOCAL_WRITE)?;
        Ok(OwnBuf { memory, len, cache: Arc::clone(cache) })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped while `self` exists, and not accessed by other code. The cache keeps the
        // memory only for its registration, and a request that fills it holds an exclusive loan.
        unsafe { std::slice::from_raw_parts(self.memory.ptr(0), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.ptr(0), self.len) }
    }
}

impl Drop for OwnBuf {
    fn drop(&mut self) {
        // Requests have dropped their handles already, because a buffer on loan is not dropped.
        self.cache.forget(&self.memory);
    }
}
