//! Looking names up: from memory where that is known to be right, else at the server.

use rfs_proto::{Attr, DirPage, Errno, Reply, Request};

use super::{
    Client, ClientError,
    keeping::{ListingId, Mark, Since},
    names::{check_name, wrong_kind},
};

/// Entries of a directory that are asked for at once to know its names; about what fits into a message.
const PAGE: u32 = 700;

impl Client {
    /// A name's attributes. Takes a reference. Asks nobody if it is known that there is no such name, or
    /// if they came with those of another one.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attr, ClientError> {
        check_name(name)?;
        let _arrival = self.arrival();
        let since = self.since();
        if !self.keeping.is_on() {
            return self.ask(parent, name, since);
        }
        if self.inodes.get(parent).is_some_and(|directory| directory.is_unlinked()) {
            // A removed directory, of which it is known that it is empty: the caller is not to
            // remember the absence of names in it.
            return Err(Errno::ESTALE.into());
        }
        if let Some(known) = self.remembered(parent, name) {
            return known;
        }
        if self.keeping.directories.lock().is_new(parent) {
            self.list(parent)?;
            if let Some(known) = self.remembered(parent, name) {
                return known;
            }
        }
        let mark = self.keeping.directories.lock().mark();
        let since = self.since();
        let ahead = self.keeping.ahead.lock().wanted(parent);
        let asked = match ahead {
            0 => self.ask(parent, name, since),
            more => self.ask_ahead((parent, name), more, (since, mark)),
        };
        match asked {
            Err(ClientError::Errno(Errno::ENOENT)) => {
                let due = {
                    let telling = self.telling();
                    let recalled = telling.lost(since, parent, Some(name));
                    self.keeping.directories.lock().missed(parent, name, mark, recalled)
                };
                if due {
                    // That there is no such name is true in any case.
                    self.list(parent).ok();
                }
                Err(Errno::ENOENT.into())
            }
            found => found,
        }
    }

    /// The attributes of an inode that is known by its number only. Takes a reference. ENOENT if it has no name any more.
    pub fn lookup_number(&self, ino: u64) -> Result<Attr, ClientError> {
        let _arrival = self.arrival();
        let since = self.since();
        let attr = self.call_attr(&Request::GetAttr { ino })?;
        if attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(self.referenced(since, attr))
    }

    /// The directory above one that is known by its number only. Takes a reference.
    pub fn lookup_parent(&self, dir: u64) -> Result<Attr, ClientError> {
        match self.call(&Request::ReadDir { ino: dir, cookie: 0, max_entries: 1 })? {
            Reply::Dir(page) => self.lookup_number(page.parent),
            _ => wrong_kind(),
        }
    }

    /// What is known of a name without asking.
    fn remembered(&self, parent: u64, name: &[u8]) -> Option<Result<Attr, ClientError>> {
        if self.keeping.directories.lock().is_absent(parent, name) {
            return Some(Err(Errno::ENOENT.into()));
        }
        // Until the inode is known here, and so told of recalls.
        let telling = self.telling();
        let attr = self.keeping.ahead.lock().take(parent, name)?;
        telling.reference(telling.now(), &attr);
        Some(Ok(attr))
    }

    /// Asks for a name.
    fn ask(&self, parent: u64, name: &[u8], since: Since) -> Result<Attr, ClientError> {
        Ok(self.referenced(since, self.call_attr(&Request::Lookup { parent, name })?))
    }

    /// Asks for a name and some of those that follow it.
    fn ask_ahead(
        &self,
        (parent, name): (u64, &[u8]),
        max_entries: u32,
        (since, mark): (Since, Mark),
    ) -> Result<Attr, ClientError> {
        let forgotten = self.inodes.forgotten();
        let page = match self.call(&Request::LookupAhead { parent, name, max_entries })? {
            Reply::Dir(page) => page,
            _ => return wrong_kind(),
        };
        let mut entries = page.entries.into_iter();
        let attr = match entries.next() {
            Some(first) if *first.name == *name => first.attr,
            _ => return Err(ClientError::Protocol("a page that does not begin with the name asked for")),
        };
        let telling = self.telling();
        // An inode that was known meanwhile, and is no longer, may have been changed here; and names, too.
        let calm =
            self.inodes.forgotten() == forgotten && self.keeping.directories.lock().is_calm(parent, mark);
        let fresh: Vec<_> = entries
            .filter(|entry| calm && telling.is_fresh(since, parent, &entry.name, &entry.attr))
            .map(|entry| (entry.name.into(), entry.attr))
            .collect();
        self.keeping.ahead.lock().came(parent, fresh.into_iter());
        drop(telling);
        Ok(self.referenced(since, attr))
    }

    /// Asks for a page of a directory, so that it becomes known.
    fn list(&self, dir: u64) -> Result<(), ClientError> {
        let listing = self.keeping.directories.lock().lists(dir, 0);
        let Some((id, from)) = listing else { return Ok(()) };
        match self.call(&Request::ReadDir { ino: dir, cookie: from, max_entries: PAGE })? {
            Reply::Dir(page) => {
                self.listed(Some(id), dir, from, &page);
                Ok(())
            }
            _ => wrong_kind(),
        }
    }

    /// Entries behind `cookie` are about to be asked for: the listing that they belong to, if it is of use to know the directory.
    pub(crate) fn lists(&self, dir: u64, cookie: u64) -> Option<ListingId> {
        if !self.keeping.is_on() {
            return None;
        }
        Some(self.keeping.directories.lock().lists(dir, cookie)?.0)
    }

    /// They came.
    pub(crate) fn listed(&self, listing: Option<ListingId>, dir: u64, cookie: u64, page: &DirPage) {
        let Some(id) = listing else { return };
        let to = page.entries.last().map_or(cookie, |entry| entry.cookie);
        let names = page.entries.iter().map(|entry| &entry.name[..]);
        self.keeping.directories.lock().listed((dir, id), (cookie, to), names, page.end);
    }
}
