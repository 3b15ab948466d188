//! The shared part of a mount: the client, its caches, and the thread for recalls.
//!
//! The session ends with the last [`Core`] reference: that of the mount, and those of its
//! directories and open files.
//!
//! # Concurrency
//! Any thread. No locks of its own.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rdmabox::Address;
use rfs_client::{Client, ClientError};
use rfs_proto::{Attr, Errno};

use crate::{
    cache::{
        names::{NameCache, NameChange},
        nodes::{Node, Nodes},
    },
    error::ConnectError,
    session::{
        options::MountOptions,
        recalls::{Caches, RecallThread},
        workers::Workers,
    },
};

/// The shared part of a mount.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) client: Arc<Client>,
    /// The root directory, so that an absolute path begins without a look into the table.
    pub(crate) root: Arc<Node>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) names: Arc<NameCache>,
    pub(crate) workers: Arc<Workers>,
    recalls: RecallThread,
    next_handle: AtomicU64,
}

impl Core {
    /// Connects, attaches, and starts to obey recalls.
    pub(crate) fn connect(address: &Address, options: &MountOptions) -> Result<Core, ConnectError> {
        let client = Client::connect(address, &options.session()?, &options.attach())?;
        Core::of(Arc::new(client), options.cached_names).inspect_err(|e| log::debug!("{address}: {e}"))
    }

    fn of(client: Arc<Client>, cached_names: usize) -> Result<Core, ConnectError> {
        let start = || {
            client.recalls.announce().map_err(ConnectError::Announce)?;
            let nodes = Arc::new(Nodes::new(Arc::clone(&client)));
            let names = Arc::new(NameCache::new(cached_names));
            let (root, workers) = (nodes.root(), Arc::<Workers>::default());
            let caches = Caches {
                client: Arc::clone(&client),
                names: Arc::clone(&names),
                nodes: Arc::clone(&nodes),
                workers: Arc::clone(&workers),
            };
            let recalls = RecallThread::start(caches).map_err(ConnectError::Thread)?;
            let next_handle = AtomicU64::new(1);
            Ok(Core { client: Arc::clone(&client), root, nodes, names, workers, recalls, next_handle })
        };
        start().inspect_err(|_| client.close_session())
    }

    /// Returns a number for an open file, which no other file of the mount has.
    pub(crate) fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks a name up in a directory. Returns `None` if it is absent.
    ///
    /// # Errors
    /// The error of a call to the server.
    pub(crate) fn lookup(&self, parent: &Node, name: &[u8]) -> Result<Option<Arc<Node>>, ClientError> {
        parent.note_use();
        if let Some(node) = self.names.get(parent.ino, name) {
            return Ok(Some(node));
        }
        let caching = &self.client.caching;
        let (mark, since, arrival) = (self.names.mark(parent.ino, name), caching.since(), caching.arrival());
        let attr = match self.client.lookups.lookup(parent.ino, name) {
            Ok(attr) => attr,
            // A removed directory is empty.
            Err(ClientError::Errno(Errno::ENOENT | Errno::ESTALE)) => return Ok(None),
            Err(e) => return Err(e),
        };
        let node = self.nodes.adopt(attr.ino, attr.kind);
        node.learn(since, &attr);
        {
            let guard = caching.hold_recalls();
            if guard.may_cache_named_inode(since, parent.ino, name, &attr) {
                self.names.insert(mark, parent.ino, name, &node);
            }
        }
        // The inode may be removed from here on, and its name is known then.
        drop(arrival);
        Ok(Some(node))
    }

    /// Makes a change that creates a name. `make` returns the attributes of the named inode, and
    /// has taken a reference to it.
    pub(crate) fn make_name(
        &self,
        parent: &Node,
        name: &[u8],
        make: impl FnOnce() -> Result<Attr, ClientError>,
    ) -> Result<(Arc<Node>, Attr), ClientError> {
        let caching = &self.client.caching;
        let (since, arrival) = (caching.since(), caching.arrival());
        let change = self.names.change(&[(parent.ino, name)]);
        let made = make();
        parent.forget_attr();
        let attr = match made {
            Ok(attr) => attr,
            Err(e) => {
                change.remove(parent.ino, name);
                return Err(e);
            }
        };
        let node = self.nodes.adopt(attr.ino, attr.kind);
        node.changed();
        {
            let guard = caching.hold_recalls();
            match guard.may_cache_named_inode(since, parent.ino, name, &attr) {
                true => change.insert(parent.ino, name, &node),
                false => change.remove(parent.ino, name),
            }
        }
        drop((change, arrival));
        Ok((node, attr))
    }

    /// Begins a change of names, each with its directory.
    pub(crate) fn change_names(&self, names: &[(u64, &[u8])]) -> NameChange<'_> {
        self.names.change(names)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.recalls.stop();
        self.names.clear();
        self.client.close_session();
    }
}
