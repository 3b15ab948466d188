//! Entries of a directory: by name, and in the order of cookies, which stay valid while the
//! directory changes.
//!
//! # Concurrency
//! None; the caller holds the inode of the directory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use seeded_faults::seeded;

#[derive(Clone, Copy, Debug)]
struct Entry {
    ino: u64,
    cookie: u64,
}

/// The entries of a directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Parent directory; the root is its own parent.
    pub parent: u64,
    by_name: HashMap<Arc<[u8]>, Entry>,
    by_cookie: BTreeMap<u64, Arc<[u8]>>,
    last_cookie: u64,
}

impl Directory {
    /// Returns an empty directory.
    pub fn new(parent: u64) -> Directory {
        Directory { parent, by_name: HashMap::new(), by_cookie: BTreeMap::new(), last_cookie: 0 }
    }

    /// Returns the inode of a name.
    pub fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|entry| entry.ino)
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Sets a name. An existing name keeps its cookie.
    pub fn set(&mut self, name: &[u8], ino: u64) {
        if let Some(entry) = self.by_name.get_mut(name) {
            entry.ino = ino;
            return;
        }
        let name: Arc<[u8]> = name.into();
        self.last_cookie += 1;
        self.by_cookie.insert(self.last_cookie, Arc::clone(&name));
        self.by_name.insert(name, Entry { ino, cookie: self.last_cookie });
    }

    /// Restores a name with its cookie.
    pub fn restore(&mut self, name: &[u8], ino: u64, cookie: u64) {
        self.remove(name);
        let name: Arc<[u8]> = name.into();
        self.last_cookie = self.last_cookie.max(cookie);
        self.by_cookie.insert(cookie, Arc::clone(&name));
        self.by_name.insert(name, Entry { ino, cookie });
    }

    /// Returns the highest cookie that was ever assigned.
    pub fn last_cookie(&self) -> u64 {
        self.last_cookie
    }

    /// Restores the highest cookie, so that no name gets a cookie up to this one again.
    pub fn restore_last_cookie(&mut self, cookie: u64) {
        self.last_cookie = self.last_cookie.max(cookie);
    }

    /// Renames an entry, and replaces the entry at the new name. An existing new name keeps its
    /// cookie, so that a concurrent listing shows it once. Otherwise the old cookie moves to the
    /// new name, so that a listing ends even if entries are renamed again and again.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some(entry) = self.by_name.remove(from) else { return };
        if let Some(replaced) = self.by_name.get_mut(to) {
            replaced.ino = entry.ino;
            self.by_cookie.remove(&entry.cookie);
            return;
        }
        let to: Arc<[u8]> = to.into();
        self.by_cookie.insert(entry.cookie, Arc::clone(&to));
        self.by_name.insert(to, entry);
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some(entry) = self.by_name.remove(name) {
            self.by_cookie.remove(&entry.cookie);
        }
    }

    /// Returns the cookie of a name.
    pub fn cookie(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|entry| entry.cookie)
    }

    /// Returns the entries behind a cookie, in order: cookie, name, inode.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], u64)> + '_ {
        let from = match cookie {
            1.. if seeded!(EntryDoubled) => Some(cookie),
            1.. if seeded!(EntrySkipped) => cookie.checked_add(2),
            _ => cookie.checked_add(1),
        };
        from.into_iter()
            .flat_map(|from| self.by_cookie.range(from..))
            .filter_map(|(&cookie, name)| self.by_name.get(name).map(|entry| (cookie, &**name, entry.ino)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(directory: &Directory, cookie: u64) -> Vec<(u64, &[u8], u64)> {
        directory.after(cookie).collect()
    }

    #[test]
    fn cookies_stay() {
        let mut directory = Directory::new(1);
        for (name, ino) in [(&b"a"[..], 10), (b"b", 11), (b"c", 12)] {
            directory.set(name, ino);
        }
        assert_eq!(list(&directory, 0), [(1, &b"a"[..], 10), (2, b"b", 11), (3, b"c", 12)]);
        directory.remove(b"b");
        directory.remove(b"b");
        directory.set(b"a", 20);
        directory.set(b"b", 21);
        assert_eq!(list(&directory, 1), [(3, &b"c"[..], 12), (4, b"b", 21)]);
        assert_eq!(list(&directory, 0)[0], (1, &b"a"[..], 20));
        assert_eq!((directory.cookie(b"b"), directory.cookie(b"x")), (Some(4), None));
        assert_eq!(list(&directory, 2).len(), 2);
        assert_eq!(list(&directory, 4), []);
        assert_eq!(list(&directory, u64::MAX), []);
        let mut again = Directory::new(1);
        for (cookie, name, ino) in directory.after(0) {
            again.restore(name, ino, cookie);
        }
        again.restore_last_cookie(directory.last_cookie() + 1);
        assert_eq!(list(&again, 0), list(&directory, 0));
        again.set(b"d", 30);
        assert_eq!(again.cookie(b"d"), Some(6));
    }

    #[test]
    fn a_renamed_entry_keeps_its_place() {
        let mut directory = Directory::new(1);
        for (name, ino) in [(&b"a"[..], 10), (b"b", 11), (b"c", 12)] {
            directory.set(name, ino);
        }
        directory.rename(b"a", b"z");
        assert_eq!(list(&directory, 0), [(1, &b"z"[..], 10), (2, b"b", 11), (3, b"c", 12)]);
        directory.rename(b"c", b"b");
        directory.rename(b"nothing", b"z");
        assert_eq!(list(&directory, 0), [(1, &b"z"[..], 10), (2, b"b", 12)]);
        assert_eq!((directory.get(b"a"), directory.get(b"c"), directory.cookie(b"b")), (None, None, Some(2)));
        directory.set(b"a", 13);
        assert_eq!(list(&directory, 2), [(4, &b"a"[..], 13)]);
        directory.rename(b"a", b"a");
        assert_eq!(list(&directory, 2), [(4, &b"a"[..], 13)]);
    }

    #[test]
    fn a_name_that_is_replaced_is_listed_once() {
        for (from, to) in [(&b"a"[..], &b"c"[..]), (b"c", b"a")] {
            let mut directory = Directory::new(1);
            for (name, ino) in [(&b"a"[..], 10), (b"b", 11), (b"c", 12)] {
                directory.set(name, ino);
            }
            // A page ends behind each of them.
            for page in 0..=3 {
                let mut directory = directory.clone();
                let mut listed: Vec<Vec<u8>> =
                    list(&directory, 0)[..page].iter().map(|(_, name, _)| name.to_vec()).collect();
                directory.rename(from, to);
                listed.extend(list(&directory, page as u64).iter().map(|(_, name, _)| name.to_vec()));
                let times = |name: &[u8]| listed.iter().filter(|listed| *listed == name).count();
                assert_eq!((times(to), times(b"b")), (1, 1), "{listed:?}");
                assert!(times(from) <= 1, "{listed:?}");
            }
        }
    }

    #[test]
    fn empties() {
        let mut directory = Directory::new(1);
        assert!(directory.is_empty());
        directory.set(b"x", 2);
        assert_eq!((directory.is_empty(), directory.get(b"x")), (false, Some(2)));
        directory.remove(b"x");
        assert_eq!((directory.is_empty(), directory.get(b"x")), (true, None));
    }
}
