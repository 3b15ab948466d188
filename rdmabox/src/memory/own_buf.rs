//! A buffer in memory of its own, whose registration is kept.

use std::{io, sync::Arc};

use super::{Memory, MemoryError, RegistrationCache};
use crate::verbs::{Access, VerbsError};

/// A buffer of any length. While it exists its registration is in the cache, unless others have displaced it; when it is
/// dropped the registration ends and the memory goes back to the system.
#[derive(Debug)]
pub(crate) struct OwnBuf {
    memory: Arc<Memory>,
    len: usize,
    cache: Arc<RegistrationCache>,
}

impl OwnBuf {
    /// A buffer of `len` zeros, registered.
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
        // SAFETY: mapped while this exists, and nobody else reads or writes it: the cache holds the memory for its
        // registration only, and a request that fills it holds an exclusive loan.
        unsafe { std::slice::from_raw_parts(self.memory.ptr(0), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.ptr(0), self.len) }
    }
}

impl Drop for OwnBuf {
    fn drop(&mut self) {
        // Requests have let go of their handles: a buffer on loan is not dropped.
        self.cache.forget(&self.memory);
    }
}
