//! What became of a request, as the kernel is told.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fuser::{Errno, INodeNo};
use rfs_proto::Attr;

use super::{Adapter, convert};
use crate::{
    client::{ClientError, Since},
    fuse::{
        kernel::Part,
        lifetimes::Asked,
        session::{ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr, Request},
    },
};

/// The error number for the kernel, and the log's part of it: `complained` says that a broken session is in there.
pub(super) fn errno(complained: &AtomicBool, what: &str, error: &ClientError) -> Errno {
    match error {
        ClientError::Errno(_) => {}
        ClientError::Request(_) => {
            if !complained.swap(true, Ordering::Relaxed) {
                log::error!("{what}: {error}; further failures of the session are not logged");
            }
        }
        _ => log::error!("{what}: {error}"),
    }
    convert::errno(error.errno())
}

impl Adapter {
    /// The error number for the kernel. What is not an ordinary refusal is logged, a broken session once.
    pub(super) fn errno(&self, what: &str, error: &ClientError) -> Errno {
        errno(&self.complained, what, error)
    }

    /// As [`errno`](Self::errno), for an operation on an inode: one that is gone is stale, which makes the kernel look
    /// the name up again.
    pub(super) fn stale(&self, what: &str, error: &ClientError) -> Errno {
        match error {
            ClientError::Errno(rfs_proto::Errno::ENOENT) => Errno::ESTALE,
            error => self.errno(what, error),
        }
    }

    /// As [`errno`](Self::errno), for a call of a thread by name. ESTALE: the directory has been
    /// removed. The thread looks the path up once more. If the directory that it finds then has
    /// been removed as well, there is no such name.
    pub(super) fn by_name(&self, what: &str, thread: u32, error: &ClientError) -> Errno {
        match error {
            ClientError::Errno(rfs_proto::Errno::ESTALE) if !self.retries.send_back(thread, None) => {
                Errno::ENOENT
            }
            error => self.errno(what, error),
        }
    }

    /// Answers a request that removes or renames a name.
    pub(super) fn named(&self, what: &str, thread: u32, result: Result<(), ClientError>, reply: ReplyEmpty) {
        match result {
            Ok(()) => {
                self.retries.arrived(thread);
                reply.ok();
            }
            Err(e) => reply.error(self.by_name(what, thread, &e)),
        }
    }

    /// Something is about to be asked for about a name.
    pub(super) fn asked<'n>(&self, request: &Request, parent: INodeNo, name: &'n OsStr) -> Asked<'n> {
        Asked { since: self.client.since(), parent: parent.0, name: name.as_bytes(), thread: request.pid() }
    }

    pub(super) fn entry(
        &self,
        what: &str,
        asked: &Asked<'_>,
        result: Result<Attr, ClientError>,
        reply: ReplyEntry,
    ) {
        match result {
            Ok(attr) => self.lifetimes.entry(&self.client, asked, &attr, reply),
            Err(e) => reply.error(self.by_name(what, asked.thread, &e)),
        }
    }

    pub(super) fn attr(
        &self,
        what: &str,
        asked: (Since, u32),
        result: Result<Attr, ClientError>,
        reply: ReplyAttr,
    ) {
        match result {
            Ok(attr) => self.lifetimes.attr(&self.client, asked, &attr, reply),
            Err(e) => reply.error(self.stale(what, &e)),
        }
    }

    /// Answers a request that makes a name.
    pub(super) fn made(
        &self,
        what: &str,
        asked: &Asked<'_>,
        result: Result<Attr, ClientError>,
        reply: ReplyEntry,
    ) {
        self.changed(asked.parent, asked.thread);
        if result.is_ok() {
            self.retries.arrived(asked.thread);
        }
        self.entry(what, asked, result, reply);
    }

    /// A thread had a directory or extended attributes changed. The kernel invalidates what it keeps of the attributes then, but
    /// does not see to it that an answer from before, to another thread that has not read it yet, does not count. This does.
    pub(super) fn changed(&self, ino: u64, thread: u32) {
        if self.settings.attr_timeout.is_zero() || !self.client.others_were_told(ino, thread) {
            return;
        }
        self.drop_attributes(ino);
    }

    /// Makes the kernel ask for attributes anew.
    pub(super) fn drop_attributes(&self, ino: u64) {
        if let Err(e) = self.kernel.drop_inode(ino, Part::Attributes) {
            log::warn!("cannot refresh the attributes of inode {ino}: {e}");
        }
    }

    /// The kernel is about to keep pages of an inode, which have to be recalled when another mount
    /// writes to it.
    pub(super) fn before_pages_are_kept(&self, ino: u64) -> Result<(), ClientError> {
        match self.client.lacks_hold(ino) && self.handles.are_cached(ino) {
            true => self.client.hold_pages(ino),
            false => Ok(()),
        }
    }

    /// How a write to an inode is answered whose bytes are in place: at once, or if the inode is
    /// `shared`, when other mounts have dropped their pages of it.
    pub(super) fn answer_to_write(
        &self,
        ino: u64,
        shared: bool,
    ) -> impl FnOnce(ReplyWrite, u32) + Send + use<> {
        let waits = shared.then(|| (Arc::clone(&self.remote_pages), Arc::clone(&self.complained)));
        move |reply, len| match waits {
            None => reply.written(len),
            Some((pages, complained)) => pages.drop_then(ino, move |dropped| match dropped {
                Ok(()) => reply.written(len),
                Err(e) => reply.error(errno(&complained, "write", &e)),
            }),
        }
    }

    pub(super) fn done(&self, what: &str, result: Result<(), ClientError>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.errno(what, &e)),
        }
    }

    /// Answers with a value, or with its length if the caller asks for no bytes.
    pub(super) fn value(
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

    /// Makes the kernel ask for attributes anew if the file is not what it was told.
    pub(super) fn refresh(&self, attr: &Attr) {
        if self.settings.attr_timeout.is_zero() || !self.client.differs_from_told(attr) {
            return;
        }
        self.drop_attributes(attr.ino);
    }
}
