//! Replies to the kernel: error numbers, attributes and values.
//!
//! # Concurrency
//! Any thread that answers a request. Takes no locks.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fuser::{Errno, INodeNo};
use parking_lot::Mutex;
use rfs_proto::Attr;

use super::Adapter;
use crate::fuse::{
    convert,
    kernel::Part,
    kernel_cache::lifetimes::NameQuery,
    session::{ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr, Request},
};
use rfs_client::{Client, ClientError, RequestTime};

/// Logs the errors of requests. Failures of the session are logged once. After its final loss each
/// kind of operation is logged once more, with the reason.
#[derive(Debug)]
pub(super) struct FailureLog {
    client: Arc<Client>,
    is_logged: AtomicBool,
    /// Kinds of operations that are logged since the final loss.
    kinds: Mutex<BTreeSet<String>>,
}

impl FailureLog {
    pub(super) fn new(client: Arc<Client>) -> FailureLog {
        FailureLog { client, is_logged: AtomicBool::new(false), kinds: Mutex::default() }
    }

    /// Returns the error number for the kernel. Logs errors other than an ordinary refusal.
    pub(super) fn errno(&self, what: &str, error: &ClientError) -> Errno {
        match error {
            ClientError::Errno(_) => {}
            ClientError::Request(_) => self.log_session_failure(what, error),
            _ => log::error!("{what}: {error}"),
        }
        convert::errno(error.errno())
    }

    fn log_session_failure(&self, what: &str, error: &ClientError) {
        if self.client.is_connected() {
            if !self.is_logged.swap(true, Ordering::Relaxed) {
                log::error!("{what}: {error}; further failures of the session are not logged");
            }
            return;
        }
        // Nearly all of the operations that fail are of a kind that is logged.
        if self.kinds.lock().contains(what) {
            return;
        }
        let reason = self.client.status().final_loss;
        if self.kinds.lock().insert(what.to_owned()) {
            let reason = reason.unwrap_or_else(|| error.to_string());
            log::error!("{what} fails until a new mount: {reason}; this is logged once for {what}");
        }
    }
}

impl Adapter {
    /// Returns the error number for the kernel. Logs errors other than an ordinary refusal, and the
    /// failure of a session once.
    pub(super) fn errno(&self, what: &str, error: &ClientError) -> Errno {
        self.failures.errno(what, error)
    }

    /// Works like [`errno`](Self::errno), for an operation on an inode. A missing inode is ESTALE,
    /// which makes the kernel look the name up again.
    pub(super) fn inode_errno(&self, what: &str, error: &ClientError) -> Errno {
        match error {
            ClientError::Errno(rfs_proto::Errno::ENOENT) => Errno::ESTALE,
            error => self.errno(what, error),
        }
    }

    /// Works like [`errno`](Self::errno), for a call by name. ESTALE means that the directory was
    /// removed, and sends the thread back to walk the path again. In the second walk the result is
    /// ENOENT.
    pub(super) fn name_errno(&self, what: &str, thread: u32, error: &ClientError) -> Errno {
        match error {
            ClientError::Errno(rfs_proto::Errno::ESTALE) if !self.retries.send_back(thread, None) => {
                Errno::ENOENT
            }
            error => self.errno(what, error),
        }
    }

    /// Answers a request that removes or renames a name.
    pub(super) fn answer_removal(
        &self,
        what: &str,
        thread: u32,
        result: Result<(), ClientError>,
        reply: ReplyEmpty,
    ) {
        match result {
            Ok(()) => {
                self.retries.finish_walk(thread);
                reply.ok();
            }
            Err(e) => {
                if !matches!(e, ClientError::Errno(rfs_proto::Errno::ESTALE)) {
                    self.retries.finish_walk(thread);
                }
                reply.error(self.name_errno(what, thread, &e));
            }
        }
    }

    /// Returns the state before a request about a name.
    pub(super) fn name_query<'n>(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &'n OsStr,
    ) -> NameQuery<'n> {
        NameQuery {
            since: self.client.caching.since(),
            parent: parent.0,
            name: name.as_bytes(),
            thread: request.pid(),
        }
    }

    pub(super) fn answer_entry(
        &self,
        what: &str,
        query: &NameQuery<'_>,
        result: Result<Attr, ClientError>,
        reply: ReplyEntry,
    ) {
        match result {
            Ok(attr) => self.lifetimes.entry(&self.client, query, &attr, reply),
            Err(e) => reply.error(self.name_errno(what, query.thread, &e)),
        }
    }

    pub(super) fn answer_attr(
        &self,
        what: &str,
        query: (RequestTime, u32),
        result: Result<Attr, ClientError>,
        reply: ReplyAttr,
    ) {
        match result {
            Ok(attr) => self.lifetimes.attr(&self.client, query, &attr, reply),
            Err(e) => reply.error(self.inode_errno(what, &e)),
        }
    }

    /// Answers a request that creates a name.
    pub(super) fn answer_creation(
        &self,
        what: &str,
        query: &NameQuery<'_>,
        result: Result<Attr, ClientError>,
        reply: ReplyEntry,
    ) {
        self.refresh_after_change(query.parent, query.thread);
        if result.is_ok() {
            self.retries.finish_walk(query.thread);
        }
        self.answer_entry(what, query, result, reply);
    }

    /// Drops attributes that the kernel has cached of an inode, after a thread has changed the
    /// directory or its extended attributes. The kernel invalidates them itself. But another thread
    /// may still hold an older reply, and would cache that.
    pub(super) fn refresh_after_change(&self, ino: u64, thread: u32) {
        if self.settings.attr_timeout.is_zero() || !self.client.attributes.others_were_told(ino, thread) {
            return;
        }
        self.drop_attributes(ino);
    }

    /// Has the kernel fetch the attributes of an inode again.
    pub(super) fn drop_attributes(&self, ino: u64) {
        if let Err(e) = self.kernel.drop_inode(ino, Part::Attributes) {
            log::warn!("cannot refresh the attributes of inode {ino}: {e}");
        }
    }

    /// Has the server recall pages of an inode, before the kernel caches them.
    pub(super) fn hold_pages(&self, ino: u64) -> Result<(), ClientError> {
        match self.client.pages.lacks_hold(ino) && self.handles.are_cached(ino) {
            true => self.client.pages.hold_pages(ino),
            false => Ok(()),
        }
    }

    /// Returns the function that answers a write whose bytes are in place. For a `shared` inode it
    /// answers once other mounts have dropped their pages.
    pub(super) fn write_answer(&self, ino: u64, shared: bool) -> impl FnOnce(ReplyWrite, u32) + Send + use<> {
        let waits = shared.then(|| (Arc::clone(&self.remote_pages), Arc::clone(&self.failures)));
        move |reply, len| match waits {
            None => reply.written(len),
            Some((pages, failures)) => pages.drop_then(ino, move |dropped| match dropped {
                Ok(()) => reply.written(len),
                Err(e) => reply.error(failures.errno("write", &e)),
            }),
        }
    }

    pub(super) fn answer_result(&self, what: &str, result: Result<(), ClientError>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.errno(what, &e)),
        }
    }

    /// Answers with a value, or with its length if `size` is 0.
    pub(super) fn answer_value(
        &self,
        what: &str,
        value: Result<Vec<u8>, ClientError>,
        size: u32,
        reply: ReplyXattr,
    ) {
        match value {
            // Values are at most 64 KiB.
            Ok(value) if size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
            Ok(value) => reply.data(&value),
            Err(e) => reply.error(self.errno(what, &e)),
        }
    }

    /// Has the kernel fetch attributes again if they differ from those that it has.
    pub(super) fn refresh(&self, attr: &Attr) {
        if self.settings.attr_timeout.is_zero() || !self.client.attributes.differs_from_told(attr) {
            return;
        }
        self.drop_attributes(attr.ino);
    }
}
