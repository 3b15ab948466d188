//! Calls to the server.
//!
//! All calls of the client go through [`Calls::call`], which retries after ENOSPC once started
//! closes have ended, and tells the cache about changes.
//!
//! # Concurrency
//! Any number of threads. Takes the locks of the cache, none of them over a call.

use std::sync::Arc;

use rdmabox::RequestError;
use rfs_proto::{Attr, Errno, Reply, Request};

use crate::{
    cache::changes::Effect,
    error::ClientError,
    inode::Inode,
    remote::{
        Remote,
        address::Epoch,
        messages::{call_in, start_on},
    },
    requests::cache_rules::CacheRules,
};

pub(crate) fn wrong_kind<T>() -> Result<T, ClientError> {
    Err(ClientError::Protocol("a reply of the wrong kind"))
}

pub(crate) fn attr_of(reply: Reply) -> Result<Attr, ClientError> {
    match reply {
        Reply::Attr(attr) => Ok(attr),
        _ => wrong_kind(),
    }
}

/// Calls to the server. The session ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) caching: Arc<CacheRules>,
}

impl Calls {
    /// Returns false once the session has ended. Every operation fails then.
    pub(crate) fn is_connected(&self) -> bool {
        self.remote.status().is_connected
    }

    /// Starts a call and ignores its reply.
    pub(crate) fn start(&self, request: &Request<'_>) -> Result<(), ClientError> {
        start_on(&*self.remote, request)
    }

    /// Calls the server. If the server has no space or no free inode, waits for started closes,
    /// which may free some, and retries once.
    pub(crate) fn call(&self, request: &Request<'_>) -> Result<Reply, ClientError> {
        self.call_or_retry(request, None)
    }

    /// Calls as [`call`](Self::call), in one epoch only.
    pub(crate) fn call_in(&self, epoch: Epoch, request: &Request<'_>) -> Result<Reply, ClientError> {
        self.call_or_retry(request, Some(epoch))
    }

    fn call_or_retry(&self, request: &Request<'_>, epoch: Option<Epoch>) -> Result<Reply, ClientError> {
        match self.call_once(request, epoch) {
            Err(ClientError::Errno(Errno::ENOSPC)) => {
                self.remote.finish_calls()?;
                self.call_once(request, epoch)
            }
            outcome => outcome,
        }
    }

    fn call_once(&self, request: &Request<'_>, epoch: Option<Epoch>) -> Result<Reply, ClientError> {
        let ask = || call_in(&*self.remote, request, epoch);
        match Effect::of(request) {
            Some(effect) if self.caching.is_on() => self.caching.change(&effect, ask),
            _ => ask().map(|(reply, _)| reply),
        }
    }

    /// Calls the server for attributes.
    pub(crate) fn call_attr(&self, request: &Request<'_>) -> Result<Attr, ClientError> {
        self.call(request).and_then(attr_of)
    }

    /// Calls the server for a reply without contents.
    pub(crate) fn call_done(&self, request: &Request<'_>) -> Result<(), ClientError> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => wrong_kind(),
        }
    }

    /// Makes a call about open files that their locks may guard. The caller issued it in
    /// `issued_epoch`.
    ///
    /// # Errors
    /// EIO if such a lock was lost in a later epoch. The call is not carried out in a later epoch
    /// then.
    pub(crate) fn call_guarded(
        &self,
        inodes: &[&Inode],
        issued_epoch: Epoch,
        request: &Request<'_>,
    ) -> Result<Reply, ClientError> {
        // The order matters: a lock that is held here and lost before the epoch is read is detected
        // after that.
        let held_locks = inodes.iter().any(|inode| !inode.caller.lock().locks.is_empty());
        let epoch = self.remote.epochs().in_use;
        let guarded = || inodes.iter().try_for_each(|inode| inode.locks.check_guards(issued_epoch));
        guarded()?;
        if !held_locks {
            return self.call(request);
        }
        match self.call_in(epoch, request) {
            Err(e @ ClientError::Request(RequestError::Disconnected)) => guarded().and(Err(e)),
            outcome => outcome,
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.remote.close();
    }
}
