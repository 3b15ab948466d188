//! The files that have data in a store whose memory is lost.
//!
//! # Concurrency
//! As the module.

use rfs_proto::DataPlace;

use super::Placement;
use crate::{
    dispatch::{
        state::shards::SHARDS,
        transaction::{locked_inodes::Plan, view::ReadView},
    },
    metadata::namespace::inode::Inode,
};

/// The most files that a report lists.
const MAX_LISTED: usize = 1000;

/// A file with lost data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// Its inode.
    pub ino: u64,
    /// Bytes of its space that are lost.
    pub bytes: u64,
    /// A path from the root directory on, or its end; `None` for a file without a name.
    pub path: Option<Vec<u8>>,
}

/// Files with data in one store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostFiles {
    /// Number of files.
    pub files: u64,
    /// Bytes of their space in the store.
    pub bytes: u64,
    /// The files with the lowest inode numbers, at most a thousand, in order.
    pub listed: Vec<LostFile>,
}

impl Placement<'_> {
    /// Returns the files that have data in a store, with paths.
    pub fn files_in(self, store: u16) -> LostFiles {
        let mut found = LostFiles::default();
        let mut all = Vec::new();
        for at in 0..SHARDS {
            self.store.transact(Plan::shard(at), None, |look: &mut ReadView<'_>| {
                let inodes = look.namespace.inodes_mut().only().inodes.iter();
                all.extend(inodes.filter_map(|(&ino, inode)| Some((ino, bytes_in(inode, store)?))));
            });
        }
        all.sort_unstable();
        found.files = all.len() as u64;
        found.bytes = all.iter().map(|(_, bytes)| bytes).sum();
        all.truncate(MAX_LISTED);
        let mut paths = self.store.paths(all.iter().map(|(ino, _)| *ino));
        let listed = |(ino, bytes)| LostFile { ino, bytes, path: paths.remove(&ino) };
        found.listed = all.into_iter().map(listed).collect();
        found
    }
}

/// Returns the bytes that an inode has in a store; `None` if it has none.
fn bytes_in(inode: &Inode, store: u16) -> Option<u64> {
    let extents = inode.file()?.extents();
    let there = extents.filter(|extent| DataPlace::from_number(extent.arena).store() == store);
    Some(there.map(|extent| extent.len).sum()).filter(|bytes| *bytes > 0)
}
