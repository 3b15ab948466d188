//! A registration that a caller keeps, of memory that the runtime does not own.
//!
//! Requests find it only while it is on loan, because the runtime cannot see the fate of the memory
//! in between.
//!
//! # Concurrency
//! Any thread may use it. A loan takes the lock of the registration cache twice, for moments.

use std::sync::Arc;

use super::registrations::RegistrationCache;
use crate::verbs::MrHandle;

/// A registration of a caller's memory, from [`Session::register`](crate::Session::register). It
/// ends when this is dropped.
#[derive(Debug)]
pub struct CallerMr {
    handle: MrHandle,
    cache: Arc<RegistrationCache>,
}

impl CallerMr {
    pub(crate) fn new(handle: MrHandle, cache: &Arc<RegistrationCache>) -> CallerMr {
        CallerMr { handle, cache: Arc::clone(cache) }
    }

    /// Returns true if it is a registration of a session with this cache, and covers the bytes.
    pub(crate) fn covers(&self, cache: &Arc<RegistrationCache>, bytes: &[u8]) -> bool {
        let offset = (bytes.as_ptr() as u64).checked_sub(self.handle.addr());
        let end = offset.and_then(|offset| offset.checked_add(bytes.len() as u64));
        Arc::ptr_eq(&self.cache, cache) && end.is_some_and(|end| end <= self.handle.length())
    }

    /// Runs `work`, whose requests find the registration.
    pub(crate) fn lend<R>(&self, work: impl FnOnce() -> R) -> R {
        let _lent = self.cache.lend(&self.handle);
        work()
    }
}
