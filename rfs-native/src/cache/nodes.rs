//! The inodes that a mount refers to, with their attributes while these are certain.
//!
//! A [`Node`] has one reference of the client, which it returns when it is dropped. It caches
//! attributes that the server recalls, except while this mount has the file open for writing:
//! writes change them without a message. The server recalls nothing from the mount that changes, so
//! a node notes own changes with the client.
//!
//! # Concurrency
//! Any thread. The table's lock and a node's lock are held briefly, and not over a call. A node's
//! lock is taken under the lock of the recall log.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use rfs_client::{Client, ClientError};
use rfs_proto::{Attr, Errno, FileKind, Marks, ROOT_INO, acl::Acl, xattr};
use rustc_hash::FxHashMap;

use crate::access::{credentials::Credentials, permission::permits};

/// The nodes of a mount, by inode number.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) client: Arc<Client>,
    live: Mutex<FxHashMap<u64, Weak<Node>>>,
}

/// Attributes that the server recalls before they change.
#[derive(Debug, Default)]
struct Known {
    attr: Option<Attr>,
    /// The access ACL, if it was read since the attributes.
    acl: Option<Option<Arc<Acl>>>,
    /// Number of opens for writing by this mount.
    writers: u32,
}

/// An inode that this mount refers to.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    nodes: Arc<Nodes>,
    known: Mutex<Known>,
    /// True if a name of the directory was recalled since the last [use](Node::note_use).
    recalled: AtomicBool,
    /// Target of a symbolic link, which never changes.
    target: OnceLock<Box<[u8]>>,
}

impl Nodes {
    pub(crate) fn new(client: Arc<Client>) -> Nodes {
        Nodes { client, live: Mutex::default() }
    }

    /// Returns the root directory.
    pub(crate) fn root(self: &Arc<Self>) -> Arc<Node> {
        self.adopt(ROOT_INO, FileKind::Directory)
    }

    /// Returns the node of an inode to which the client has just taken a reference.
    pub(crate) fn adopt(self: &Arc<Self>, ino: u64, kind: FileKind) -> Arc<Node> {
        let mut live = self.live.lock();
        if let Some(node) = live.get(&ino).and_then(Weak::upgrade) {
            drop(live);
            // The node has its own reference.
            self.client.lookups.forget(ino, 1);
            return node;
        }
        let (known, recalled, target) = (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        let node = Arc::new(Node { ino, kind, nodes: Arc::clone(self), known, recalled, target });
        live.insert(ino, Arc::downgrade(&node));
        node
    }

    /// Drops the attributes of an inode, which the server has recalled.
    pub(crate) fn forget_attr(&self, ino: u64) {
        let node = self.live.lock().get(&ino).and_then(Weak::upgrade);
        if let Some(node) = node {
            node.forget_attr();
        }
    }

    /// Drops the attributes of a directory, one of whose names the server has recalled.
    pub(crate) fn name_recalled(&self, dir: u64) {
        let node = self.live.lock().get(&dir).and_then(Weak::upgrade);
        if let Some(node) = node {
            node.recalled.store(true, Ordering::Relaxed);
            node.forget_attr();
        }
    }

    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.live.lock().len()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut live = self.nodes.live.lock();
        // Another thread may have made a new node of the inode meanwhile.
        if live.get(&self.ino).is_some_and(|node| node.strong_count() == 0) {
            live.remove(&self.ino);
        }
        drop(live);
        self.nodes.client.lookups.forget(self.ino, 1);
    }
}

impl Node {
    /// Returns current attributes: cached ones, or those of the server.
    pub(crate) fn attr(&self) -> Result<Attr, ClientError> {
        let client = &self.nodes.client;
        let is_known = self.known.lock().attr.is_some();
        if is_known {
            // May wait for a session. The recalls that then come take the lock.
            client.ready()?;
            let known = self.known.lock().attr;
            if let Some(attr) = known {
                return Ok(attr);
            }
        }
        let since = client.caching.since();
        let attr = client.attributes.getattr(self.ino)?;
        self.learn(since, &attr);
        Ok(attr)
    }

    /// Returns the time of birth, or `None` if the server does not know it.
    pub(crate) fn birth(&self) -> Result<Option<i64>, ClientError> {
        self.nodes.client.attributes.birth(self.ino)
    }

    /// Caches attributes that were requested at `since`, if they may be cached.
    pub(crate) fn learn(&self, since: rfs_client::RequestTime, attr: &Attr) {
        let guard = self.nodes.client.caching.hold_recalls();
        let mut known = self.known.lock();
        if known.writers == 0 && guard.may_cache(since, attr) {
            known.attr = Some(*attr);
        }
    }

    /// Notes that this mount has changed the inode. Drops the cached attributes, and keeps those
    /// out that are requested already.
    pub(crate) fn changed(&self) {
        self.nodes.client.caching.changed(self.ino);
        self.forget_attr();
    }

    /// Drops the cached attributes, because of a recall or a change of names that the client knows.
    pub(crate) fn forget_attr(&self) {
        let mut known = self.known.lock();
        (known.attr, known.acl) = (None, None);
    }

    /// Notes that this mount uses the directory, and keeps its names.
    pub(crate) fn note_use(&self) {
        if self.recalled.load(Ordering::Relaxed) && self.recalled.swap(false, Ordering::Relaxed) {
            self.nodes.client.recalls.uses_names(self.ino);
        }
    }

    /// Notes that this mount opens the file for writing. From now on no attributes are cached.
    pub(crate) fn begin_writes(&self) {
        self.nodes.client.caching.changed(self.ino);
        let mut known = self.known.lock();
        known.writers += 1;
        (known.attr, known.acl) = (None, None);
    }

    /// Notes that this mount has closed the file, which it had open for writing.
    pub(crate) fn end_writes(&self) {
        self.nodes.client.caching.changed(self.ino);
        let mut known = self.known.lock();
        known.writers = known.writers.saturating_sub(1);
        known.attr = None;
    }

    /// Returns the access ACL of an inode with these attributes, if it has one.
    fn acl(&self, attr: &Attr) -> Result<Option<Arc<Acl>>, ClientError> {
        if !attr.marks.contains(Marks::XATTRS) {
            return Ok(None);
        }
        if let Some(acl) = &self.known.lock().acl {
            return Ok(acl.clone());
        }
        let acl = match self.nodes.client.xattrs.get_xattr(self.ino, xattr::ACCESS_ACL) {
            Ok(value) => {
                let invalid = |_| ClientError::Protocol("an invalid access list");
                Acl::decode(&value).map_err(invalid)?.map(Arc::new)
            }
            Err(ClientError::Errno(Errno::ENODATA)) => None,
            Err(e) => return Err(e),
        };
        let mut known = self.known.lock();
        // A recall drops both. It may have come since these attributes.
        if known.attr == Some(*attr) {
            known.acl = Some(acl.clone());
        }
        Ok(acl)
    }

    /// Returns true if a user has all of the `wanted` permissions.
    pub(crate) fn permits(&self, user: &Credentials, wanted: u32) -> Result<bool, ClientError> {
        // Root may do everything with a directory.
        if user.is_root() && self.kind == FileKind::Directory {
            return Ok(true);
        }
        let attr = self.attr()?;
        let acl = if user.is_root() { None } else { self.acl(&attr)? };
        Ok(permits(user, &attr, acl.as_deref(), wanted))
    }

    /// Checks that a user has all of the `wanted` permissions.
    ///
    /// # Errors
    /// EACCES if a permission is missing.
    pub(crate) fn check(&self, user: &Credentials, wanted: u32) -> Result<(), ClientError> {
        if self.permits(user, wanted)? { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn target(&self) -> Result<&[u8], ClientError> {
        if let Some(target) = self.target.get() {
            return Ok(target);
        }
        let target = self.nodes.client.names.readlink(self.ino)?;
        Ok(self.target.get_or_init(|| target.into()))
    }

    /// Returns true for a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
