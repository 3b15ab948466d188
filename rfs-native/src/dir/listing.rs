//! Listings of directories.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    path::Path,
    vec,
};

use rfs_client::ClientError;
use rfs_proto::{DirEntry, MAX_NAME, mode::READ};

use super::Dir;
use crate::{
    attributes::stat::Stat,
    error::{Result, at, on},
};

/// Entries of one call to the server: about as many as fit into a reply.
const PAGE: u32 = 400;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    name: OsString,
    stat: Stat,
}

impl Entry {
    /// Returns the name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the attributes as of the listing. Those of a symbolic link are its own.
    pub fn stat(&self) -> Stat {
        self.stat
    }
}

/// The entries of a directory, in its order, without `.` and `..`. It reads 400 at a time.
///
/// An entry that stays during the listing is there once. An entry that comes or goes meanwhile may
/// be there or not.
#[derive(Debug)]
pub struct Entries {
    dir: Dir,
    page: vec::IntoIter<DirEntry>,
    cookie: u64,
    is_done: bool,
}

impl Dir {
    /// Returns the entries of this directory.
    ///
    /// # Errors
    /// EACCES without permission to read. Each entry can have the error of a call to the server.
    pub fn entries(&self) -> Result<Entries> {
        self.listing().map_err(on("entries", self.node.ino))
    }

    fn listing(&self) -> std::result::Result<Entries, ClientError> {
        self.node.check(&self.user, READ)?;
        let attr = self.core.client.attributes.getattr(self.node.ino)?;
        if self.core.client.access_times.reads_directory(&attr)? {
            self.node.changed();
        }
        Ok(Entries { dir: self.clone(), page: Vec::new().into_iter(), cookie: 0, is_done: false })
    }

    /// Returns the entries of a directory at a path, all at once.
    ///
    /// # Errors
    /// ENOTDIR if the path names a file, EACCES without permission to read.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<Entry>> {
        let path = path.as_ref();
        let list = || {
            let mut entries = self.dir_at(path)?.listing()?;
            let mut all = Vec::new();
            while let Some(entry) = entries.next_entry()? {
                all.push(entry);
            }
            Ok(all)
        };
        list().map_err(at("list", path))
    }
}

impl Entries {
    fn next_entry(&mut self) -> std::result::Result<Option<Entry>, ClientError> {
        loop {
            if let Some(DirEntry { cookie, name, attr }) = self.page.next() {
                self.cookie = cookie;
                if !is_name(&name) {
                    return Err(ClientError::Protocol("an invalid name in a directory"));
                }
                let name = OsString::from_vec(name);
                return Ok(Some(Entry { name, stat: Stat::of(&attr) }));
            }
            if self.is_done {
                return Ok(None);
            }
            let Dir { core, node, .. } = &self.dir;
            let page = core.client.directories.readdir(node.ino, self.cookie, PAGE)?;
            self.is_done = page.end || page.entries.is_empty();
            self.page = page.entries.into_iter();
        }
    }
}

/// Returns true if a name names an entry of its own directory. A program may join names to paths,
/// also to local ones.
fn is_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        let next = self.next_entry().map_err(on("entries", self.dir.node.ino));
        // After an error there is nothing more.
        self.is_done |= next.is_err();
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_leave_its_directory() {
        for name in [&b"a"[..], b"...", b".a", &[b'n'; 255]] {
            assert!(is_name(name), "{name:?}");
        }
        for name in [&b""[..], b".", b"..", b"a/b", b"../a", b"/", b"a\0", &[b'n'; 256]] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
