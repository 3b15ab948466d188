//! Calls to the server.
//!
//! All calls of the client go through [`Client::call`], which retries after ENOSPC once started
//! closes have ended, and tells the cache about changes.
//!
//! # Concurrency
//! Any number of threads.

use rfs_proto::{Attr, Errno, Reply, Request};

use crate::{
    cache::changes::Effect,
    client::Client,
    error::ClientError,
    remote::{
        address::Epoch,
        messages::{call_in, start_on},
    },
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

impl Client {
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
            Some(effect) if self.cache.is_on() => self.change(&effect, ask),
            _ => ask().map(|(reply, _)| reply),
        }
    }

    pub(crate) fn call_attr(&self, request: &Request<'_>) -> Result<Attr, ClientError> {
        self.call(request).and_then(attr_of)
    }

    pub(crate) fn call_done(&self, request: &Request<'_>) -> Result<(), ClientError> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => wrong_kind(),
        }
    }
}
