//! Listings of directories.
//!
//! Threading: as the dispatcher. The names of a page are told at one moment, the attributes of each entry at a later one, a few at a
//! time, so that nothing is held for long. What changes in between is recalled from whoever keeps it: he became a keeper of the
//! names with them, and of each entry's attributes with those.

use rfs_proto::{DirEntry, DirPage, Errno, MAX_MESSAGE};

use super::call::Call;
use crate::namespace::{Directory, Place, check_name};

/// More than the encoded attributes and cookie of an entry can take, and the length before its name.
const ENTRY_BYTES: usize = 160;

/// More than the rest of a page can take.
const PAGE_BYTES: usize = 64;

/// How many entries' attributes are told at once.
const AT_ONCE: usize = 4;

/// An entry whose attributes are not known yet: cookie, name, inode.
type Named = (u64, Vec<u8>, u64);

/// The names of a page.
struct Names {
    entries: Vec<Named>,
    parent: u64,
    end: bool,
}

impl Call<'_> {
    /// The page behind a cookie.
    pub(super) fn read_dir(
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
                look.told_name(session, ino);
                Ok(names)
            })
        })
    }

    /// The page that begins with a name.
    pub(super) fn look_ahead(
        &self,
        session: u64,
        Place { parent, name }: Place<'_>,
        max_entries: u32,
    ) -> Result<DirPage, Errno> {
        check_name(name)?;
        self.page(session, || {
            self.look(&[parent], |look| {
                look.may_search(parent)?;
                // Names that follow are those of a listing.
                let max_entries = if look.may_list(parent).is_ok() { max_entries } else { 1 };
                let directory = look.namespace.directory(parent)?;
                if look.namespace.get(parent)?.nlink == 0 {
                    return Err(Errno::ESTALE);
                }
                look.told_name(session, parent);
                // Cookies are not 0; what follows the one before it begins with the name.
                let before = directory.cookie(name).ok_or(Errno::ENOENT)? - 1;
                Ok(names(directory, before, max_entries))
            })
        })
    }

    /// Adds the attributes. An entry that is gone meanwhile is left out, but for the first one: a page has at least one entry if
    /// there are any, and begins with what was asked for; without that one it is taken anew.
    fn page(&self, session: u64, names: impl Fn() -> Result<Names, Errno>) -> Result<DirPage, Errno> {
        loop {
            let Names { entries: mut named, parent, end } = names()?;
            let mut page = DirPage { entries: Vec::with_capacity(named.len()), parent, end };
            for chunk in named.chunks_mut(AT_ONCE) {
                let mut inos = [0; AT_ONCE];
                inos.iter_mut().zip(&*chunk).for_each(|(ino, named)| *ino = named.2);
                self.look(&inos[..chunk.len()], |look| {
                    page.entries.extend(chunk.iter_mut().filter_map(|(cookie, name, ino)| {
                        let attr = look.told(session, *ino).ok()?;
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
