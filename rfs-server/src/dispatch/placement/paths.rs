//! Paths of files, for messages to people.
//!
//! # Concurrency
//! As the dispatcher. Each look locks one shard. Names that change meanwhile may be missed.

use std::collections::HashMap;

use rfs_proto::{MAX_SHOWN_PATH, ROOT_INO};

use crate::{
    dispatch::{
        state::{
            shards::{Mode, SHARDS},
            store::Store,
        },
        transaction::{
            locked_inodes::Plan,
            view::{ReadView, View},
        },
    },
    metadata::namespace::{directory::Directory, inode::Inode},
};

/// The most directories in a path.
const MAX_DEPTH: usize = 256;

impl Store {
    /// Finds a path for each of these files that has one. Scans directories until each file has a
    /// path.
    pub(in crate::dispatch) fn paths(&self, files: impl Iterator<Item = u64>) -> HashMap<u64, Vec<u8>> {
        let mut names: HashMap<u64, Option<(u64, Vec<u8>)>> = files.map(|ino| (ino, None)).collect();
        for at in 0..SHARDS {
            if names.values().all(Option::is_some) {
                break;
            }
            self.transact(Plan::shard(at), None, |look: &mut ReadView<'_>| {
                for (&directory, inode) in &look.namespace.inodes_mut().only().inodes {
                    for (_, name, child) in inode.directory().into_iter().flat_map(|names| names.after(0)) {
                        if let Some(found @ None) = names.get_mut(&child) {
                            *found = Some((directory, name.to_vec()));
                        }
                    }
                }
            });
        }
        let path = |(ino, found): (u64, Option<(u64, Vec<u8>)>)| {
            let (directory, name) = found?;
            Some((ino, self.path(directory, name)?))
        };
        names.into_iter().filter_map(path).collect()
    }

    /// Returns the path of a name in a directory, or `None` if the directory is being removed.
    fn path(&self, mut directory: u64, mut path: Vec<u8>) -> Option<Vec<u8>> {
        path.insert(0, b'/');
        for _ in 0..MAX_DEPTH {
            if directory == ROOT_INO {
                break;
            }
            let parent = self.look(directory, |look| Some(look.directory(directory)?.parent))?;
            let name = self.look(parent, |look| {
                let mut names = look.directory(parent)?.after(0);
                names.find(|&(_, _, child)| child == directory).map(|(_, name, _)| name.to_vec())
            })?;
            path.splice(0..0, [b"/", &name[..]].concat());
            directory = parent;
        }
        Some(path.split_off(path.len().saturating_sub(MAX_SHOWN_PATH)))
    }

    fn look<T>(&self, ino: u64, look: impl FnOnce(&ReadView<'_>) -> T) -> T {
        self.transact(Plan::new(&[ino]), None, |view: &mut ReadView<'_>| look(view)).0
    }
}

impl<M: Mode> View<'_, M> {
    fn directory(&self, ino: u64) -> Option<&Directory> {
        self.namespace.get(ino).ok().and_then(Inode::directory)
    }
}
