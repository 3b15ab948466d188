//! Walks paths from a directory, as the kernel does on a mount.
//!
//! Each component needs permission to search its directory. At most 40 symbolic links are followed.
//! A link target that begins with a slash begins at the root of the export. `..` returns to the
//! directory that the walk came from, and the root is its own parent.
//!
//! # Concurrency
//! A value of the calling thread.

use std::sync::Arc;

use rfs_client::ClientError;
use rfs_proto::{Errno, FileKind, ROOT_INO, mode::SEARCH};
use smallvec::{SmallVec, smallvec};

use crate::{
    access::credentials::Credentials,
    cache::nodes::Node,
    path::components::{Components, check_name, check_path},
    session::core::Core,
};

/// Maximum number of symbolic links in one walk.
const MAX_LINKS: u32 = 40;

/// Whether a walk follows a symbolic link at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    Yes,
    /// Only if a slash follows.
    No,
    /// Never: the caller changes the name itself, and checks the slash.
    Never,
    /// Only if no slash follows: the caller creates the file if it is absent, and checks the slash.
    Create,
}

/// The last component of a path.
#[derive(Debug)]
enum Last<'p> {
    /// The current directory: the path ends with `.`, `..` or the root.
    Here,
    /// A name in the current directory.
    Name {
        name: &'p [u8],
        /// True if a slash follows, so that the name has to be of a directory.
        slash: bool,
    },
}

/// The end of a walk.
#[derive(Debug)]
pub(crate) enum End {
    /// A directory that the path does not name.
    Here(Arc<Node>),
    /// A name in a directory, and the inode that it stands for, if it exists.
    Entry { parent: Arc<Node>, name: SmallVec<[u8; 32]>, slash: bool, node: Option<Arc<Node>> },
}

/// A name at the end of a path, which is not looked up yet.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) parent: Arc<Node>,
    pub(crate) name: SmallVec<[u8; 32]>,
    /// True if a slash follows.
    pub(crate) slash: bool,
    /// Numbers of the directories that the walk came through, with the parent.
    pub(crate) above: SmallVec<[u64; 8]>,
}

impl Name {
    /// Returns the inode of the name, if the name exists.
    pub(crate) fn find(&self, core: &Core) -> Result<Option<Arc<Node>>, ClientError> {
        check_name(&self.name)?;
        core.lookup(&self.parent, &self.name)
    }
}

/// A walk in progress.
#[derive(Debug)]
pub(crate) struct Walk<'c> {
    core: &'c Core,
    user: &'c Credentials,
    /// The directories that the walk came through; the last one is the current directory.
    directories: SmallVec<[Arc<Node>; 8]>,
    links: u32,
}

impl<'c> Walk<'c> {
    /// Begins at a directory.
    pub(crate) fn new(core: &'c Core, user: &'c Credentials, start: &Arc<Node>) -> Walk<'c> {
        Walk { core, user, directories: smallvec![Arc::clone(start)], links: 0 }
    }

    fn here(&self) -> &Arc<Node> {
        // There is always a current directory: `up` keeps the first one.
        &self.directories[self.directories.len() - 1]
    }

    /// Walks to the directory of the last component.
    fn reach_last<'p>(&mut self, path: &'p [u8]) -> Result<Last<'p>, ClientError> {
        check_path(path)?;
        if path[0] == b'/' {
            self.directories = smallvec![Arc::clone(&self.core.root)];
        }
        let mut components = Components::of(path);
        while let Some((name, is_last)) = components.next() {
            self.here().check(self.user, SEARCH)?;
            match name {
                b"." => {}
                b".." => self.up()?,
                name if is_last => return Ok(Last::Name { name, slash: path.ends_with(b"/") }),
                name => self.enter(name)?,
            }
        }
        Ok(Last::Here)
    }

    /// Goes to the parent directory.
    fn up(&mut self) -> Result<(), ClientError> {
        if self.directories.len() > 1 {
            self.directories.pop();
        } else if self.here().ino != ROOT_INO {
            let attr = self.core.client.lookups.lookup_parent(self.here().ino)?;
            self.directories[0] = self.core.nodes.adopt(attr.ino, attr.kind);
        }
        Ok(())
    }

    /// Returns the inode of a name in the current directory, which the user may search.
    fn child(&self, name: &[u8]) -> Result<Option<Arc<Node>>, ClientError> {
        check_name(name)?;
        self.core.lookup(self.here(), name)
    }

    /// Goes to the directory of a name, which may be a symbolic link to it.
    fn enter(&mut self, name: &[u8]) -> Result<(), ClientError> {
        let node = self.child(name)?.ok_or(Errno::ENOENT)?;
        match node.kind {
            FileKind::Directory => self.directories.push(node),
            FileKind::Symlink => {
                self.count_link()?;
                if let Last::Name { name, .. } = self.reach_last(node.target()?)? {
                    self.enter(name)?;
                }
            }
            _ => return Err(Errno::ENOTDIR.into()),
        }
        Ok(())
    }

    fn count_link(&mut self) -> Result<(), ClientError> {
        self.links += 1;
        if self.links > MAX_LINKS { Err(Errno::ELOOP.into()) } else { Ok(()) }
    }

    /// Walks to the directory of the last component. Returns `None` if the path ends with `.`, `..`
    /// or the root.
    pub(crate) fn find_name(mut self, path: &[u8]) -> Result<Option<Name>, ClientError> {
        let Last::Name { name, slash } = self.reach_last(path)? else { return Ok(None) };
        let (parent, name) = (Arc::clone(self.here()), SmallVec::from_slice(name));
        let above = self.directories.iter().map(|node| node.ino).collect();
        Ok(Some(Name { parent, name, slash, above }))
    }

    /// Walks to the end of a path.
    pub(crate) fn find_end(mut self, path: &[u8], follow: Follow) -> Result<End, ClientError> {
        self.walk_end(path, follow, false)
    }

    fn walk_end(&mut self, path: &[u8], follow: Follow, slash: bool) -> Result<End, ClientError> {
        let (name, slash) = match self.reach_last(path)? {
            Last::Here => return Ok(End::Here(Arc::clone(self.here()))),
            Last::Name { name, slash: own } => (name, slash || own),
        };
        let follows = match follow {
            Follow::Yes => true,
            Follow::No => slash,
            Follow::Never => false,
            Follow::Create => !slash,
        };
        let checks_slash = matches!(follow, Follow::Yes | Follow::No);
        match self.child(name)? {
            Some(link) if link.kind == FileKind::Symlink && follows => {
                self.count_link()?;
                let follow = if follow == Follow::Create { follow } else { Follow::Yes };
                self.walk_end(link.target()?, follow, slash)
            }
            Some(node) if slash && !node.is_directory() && checks_slash => Err(Errno::ENOTDIR.into()),
            node => {
                let (parent, name) = (Arc::clone(self.here()), SmallVec::from_slice(name));
                Ok(End::Entry { parent, name, slash, node })
            }
        }
    }

    /// Walks to the inode of a path.
    ///
    /// # Errors
    /// ENOENT if the path names nothing.
    pub(crate) fn find_node(self, path: &[u8], follow: Follow) -> Result<Arc<Node>, ClientError> {
        match self.find_end(path, follow)? {
            End::Here(node) => Ok(node),
            End::Entry { node, .. } => node.ok_or_else(|| Errno::ENOENT.into()),
        }
    }
}
