//! Directory listings.
//!
//! A page reads the names in one transaction, and the attributes of a few entries in each later
//! transaction. So no lock is held for long. The session becomes a cache holder of the names and of
//! each entry's attributes when they are read. So a change in between is recalled from it.
//!
//! # Concurrency
//! As the dispatcher.

use rfs_proto::{DirEntry, DirPage, Errno, MAX_MESSAGE};

use crate::{
    dispatch::transaction::call::Call,
    metadata::namespace::{
        directory::Directory,
        names::{Place, check_name},
    },
};

/// An upper bound in bytes of an entry's encoded attributes, cookie and name length.
const ENTRY_BYTES: usize = 160;

/// An upper bound in bytes of the rest of a page.
const PAGE_BYTES: usize = 64;

/// The number of entries whose attributes one transaction reads.
const AT_ONCE: usize = 4;

/// An entry without attributes: cookie, name, inode.
type Named = (u64, Vec<u8>, u64);

/// The names of a page.
struct Names {
    entries: Vec<Named>,
    parent: u64,
    end: bool,
}

impl Call<'_> {
    /// Returns the page that follows a cookie.
    pub(in crate::dispatch) fn read_dir(
        &self,
        session: u64,
        ino: u64,
        cookie: u64,
        max_entries: u32,
    ) -> Result<DirPage, Errno> {
        self.page(session, || {
            self.look(&[ino], |look| {
                look.may_list(ino)?;
                let names = names(look.namespace.directory(ino)?, cookie, max_entries);
                look.cache_names(session, ino);
                Ok(names)
            })
        })
    }

    /// Returns the page that begins with a name.
    pub(in crate::dispatch) fn look_ahead(
        &self,
        session: u64,
        Place { parent, name }: Place<'_>,
        max_entries: u32,
    ) -> Result<DirPage, Errno> {
        check_name(name)?;
        self.page(session, || {
            self.look(&[parent], |look| {
                look.may_search(parent)?;
                // Without permission to list the directory, the page has only the requested name.
                let max_entries = if look.may_list(parent).is_ok() { max_entries } else { 1 };
                let directory = look.namespace.directory(parent)?;
                if look.namespace.get(parent)?.nlink == 0 {
                    return Err(Errno::ESTALE);
                }
                look.cache_names(session, parent);
                // Cookies are not 0. The page after the previous cookie begins with the name.
                let before = directory.cookie(name).ok_or(Errno::ENOENT)? - 1;
                Ok(names(directory, before, max_entries))
            })
        })
    }

    /// Adds the attributes to the names. An entry that is gone meanwhile is left out, except for
    /// the first entry: then the page is read again. So a page is never empty while there are
    /// entries, and begins with the requested entry.
    fn page(&self, session: u64, names: impl Fn() -> Result<Names, Errno>) -> Result<DirPage, Errno> {
        loop {
            let Names { entries: mut named, parent, end } = names()?;
            let mut page = DirPage { entries: Vec::with_capacity(named.len()), parent, end };
            for chunk in named.chunks_mut(AT_ONCE) {
                let mut inos = [0; AT_ONCE];
                inos.iter_mut().zip(&*chunk).for_each(|(ino, named)| *ino = named.2);
                self.look(&inos[..chunk.len()], |look| {
                    page.entries.extend(chunk.iter_mut().filter_map(|(cookie, name, ino)| {
                        let attr = look.visible_attrs(session, *ino).ok()?;
                        Some(DirEntry { cookie: *cookie, name: std::mem::take(name), attr })
                    }));
                });
            }
            let first = named.first().map(|&(cookie, ..)| cookie);
            if page.entries.first().map(|entry| entry.cookie) == first {
                return Ok(page);
            }
        }
    }
}

fn names(directory: &Directory, cookie: u64, max_entries: u32) -> Names {
    let max_entries = usize::try_from(max_entries).unwrap_or(usize::MAX).max(1);
    let mut names = Names { entries: Vec::new(), parent: directory.parent, end: true };
    let mut bytes = PAGE_BYTES;
    for (cookie, name, child) in directory.after(cookie) {
        bytes += ENTRY_BYTES + name.len();
        if names.entries.len() >= max_entries || bytes > MAX_MESSAGE {
            names.end = false;
            break;
        }
        names.entries.push((cookie, name.to_vec(), child));
    }
    names
}
