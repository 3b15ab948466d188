//! Extended attributes and ACLs of an inode. No I/O, no locks, no clock.
//!
//! Clients' kernels check access to the attribute namespaces. The server checks only whether the
//! kind of the inode permits an attribute.
//!
//! # Concurrency
//! None; the caller holds the inode.

use std::collections::BTreeMap;

use rfs_proto::{
    Errno, FileKind, MAX_XATTR_NAME, MAX_XATTR_VALUE, Marks, XattrSet,
    acl::Acl,
    xattr::{ACCESS_ACL, CAPABILITY, DEFAULT_ACL, SECURITY, TRUSTED, USER},
};
use seeded_faults::seeded;

/// Attribute of a directory or file that eviction leaves alone, with everything below it.
pub const PIN: &[u8] = b"user.rfs.pin";

/// Bytes of memory of an attribute besides its name and value.
const OVERHEAD: u64 = 64;

/// Name of an extended attribute, as a client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrName<'a> {
    /// Attribute of the namespace user., trusted. or security.
    Plain(&'a [u8]),
    /// Access ACL.
    Access,
    /// Default ACL.
    Default,
}

impl XattrName<'_> {
    /// Checks a name.
    ///
    /// # Errors
    /// ERANGE if it is empty or too long, EOPNOTSUPP for an unknown namespace, EINVAL for an empty
    /// or invalid name in a namespace.
    pub fn parse(name: &[u8]) -> Result<XattrName<'_>, Errno> {
        if name.is_empty() || name.len() > MAX_XATTR_NAME {
            return Err(Errno::ERANGE);
        }
        match name {
            ACCESS_ACL => return Ok(XattrName::Access),
            DEFAULT_ACL => return Ok(XattrName::Default),
            _ => {}
        }
        match [USER, TRUSTED, SECURITY].into_iter().find_map(|space| name.strip_prefix(space)) {
            Some(b"") => Err(Errno::EINVAL),
            Some(rest) if rest.contains(&0) => Err(Errno::EINVAL),
            Some(_) => Ok(XattrName::Plain(name)),
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Checks that inodes of this kind can have the attribute.
    ///
    /// # Errors
    /// EPERM, EACCES or EOPNOTSUPP.
    pub fn check_kind(self, kind: FileKind) -> Result<(), Errno> {
        match self {
            XattrName::Plain(name)
                if name.starts_with(USER) && !matches!(kind, FileKind::Regular | FileKind::Directory) =>
            {
                Err(Errno::EPERM)
            }
            XattrName::Access | XattrName::Default if kind == FileKind::Symlink => Err(Errno::EOPNOTSUPP),
            XattrName::Default if kind != FileKind::Directory => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }
}

/// The extended attributes of an inode.
#[derive(Clone, Debug, Default)]
pub struct Xattrs {
    plain: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Access ACL; `None` if the permission bits say everything.
    pub access: Option<Acl>,
    /// Default ACL for new entries of this directory.
    pub default: Option<Acl>,
    version: u64,
    /// Names that changed since the last [`Xattrs::take_touched`].
    touched: Vec<Box<[u8]>>,
}

impl Xattrs {
    /// Returns the marks that the attributes of the inode show.
    pub fn marks(&self) -> Marks {
        let any = !self.plain.is_empty() || self.access.is_some() || self.default.is_some();
        let mut marks = Marks::empty();
        marks.set(Marks::XATTRS, any);
        marks.set(Marks::CAPABILITY, self.plain.contains_key(CAPABILITY));
        marks
    }

    /// Returns a number that changes whenever the attributes do.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the value of an attribute.
    pub fn get(&self, name: XattrName<'_>) -> Result<Vec<u8>, Errno> {
        let value = match name {
            XattrName::Plain(name) => self.plain.get(name).map(|value| value.to_vec()),
            XattrName::Access => self.access.as_ref().map(Acl::encode),
            XattrName::Default => self.default.as_ref().map(Acl::encode),
        };
        value.ok_or(Errno::ENODATA)
    }

    /// Returns all names, each followed by a NUL.
    pub fn names(&self) -> Vec<u8> {
        let plain = self.plain.keys().map(|name| &**name);
        let lists = [self.access.as_ref().map(|_| ACCESS_ACL), self.default.as_ref().map(|_| DEFAULT_ACL)];
        let mut names = Vec::new();
        for name in lists.into_iter().flatten().chain(plain) {
            names.extend_from_slice(name);
            names.push(0);
        }
        names
    }

    /// Checks that an attribute can be set in this way.
    ///
    /// # Errors
    /// E2BIG if the value is too long, ENOSPC if the list of names would be, EEXIST or ENODATA by
    /// `how`.
    pub fn may_set(&self, name: XattrName<'_>, len: usize, how: XattrSet) -> Result<(), Errno> {
        if len > MAX_XATTR_VALUE {
            return Err(Errno::E2BIG);
        }
        let there = match name {
            XattrName::Plain(name) => self.plain.contains_key(name),
            XattrName::Access => self.access.is_some(),
            XattrName::Default => self.default.is_some(),
        };
        match how {
            XattrSet::Create if there && !seeded!(XattrCreateIgnored) => Err(Errno::EEXIST),
            XattrSet::Replace if !there => Err(Errno::ENODATA),
            _ => match name {
                XattrName::Plain(name) if !there && self.names_len() + name.len() >= MAX_XATTR_VALUE => {
                    Err(Errno::ENOSPC)
                }
                _ => Ok(()),
            },
        }
    }

    /// Returns the length of the list of names, including both ACLs, so that an ACL can always be
    /// set.
    fn names_len(&self) -> usize {
        let plain: usize = self.plain.keys().map(|name| name.len() + 1).sum();
        plain + ACCESS_ACL.len() + DEFAULT_ACL.len() + 2
    }

    /// Returns the names that were added, changed or removed since the last call.
    pub fn take_touched(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.touched)
    }

    fn touch(&mut self, name: &[u8]) {
        if !self.touched.iter().any(|touched| **touched == *name) {
            self.touched.push(name.into());
        }
    }

    /// Restores the value of an attribute; `None` removes the attribute.
    pub fn restore(&mut self, name: XattrName<'_>, value: Option<Vec<u8>>) -> Result<(), Errno> {
        match (name, value) {
            (XattrName::Plain(name), Some(value)) => drop(self.plain.insert(name.into(), value.into())),
            (XattrName::Plain(name), None) => drop(self.plain.remove(name)),
            (XattrName::Access, value) => {
                self.access = value.map_or(Ok(None), |value| Acl::decode(&value))?
            }
            (XattrName::Default, value) => {
                self.default = value.map_or(Ok(None), |value| Acl::decode(&value))?
            }
        }
        Ok(())
    }

    /// Restores the version.
    pub fn restore_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Adjusts the access ACL to the permission bits.
    pub fn change_mode(&mut self, perm: u32) {
        if let Some(access) = &mut self.access {
            access.change_mode(perm);
            self.touch(ACCESS_ACL);
        }
    }

    /// Sets an attribute that is no ACL.
    pub fn set(&mut self, name: &[u8], mut value: Vec<u8>) {
        seeded!(XattrShortened => if value.len() > 4096 { value.pop(); });
        self.version += 1;
        self.touch(name);
        self.plain.insert(name.into(), value.into());
    }

    /// Sets or removes an ACL.
    pub fn set_acl(&mut self, name: XattrName<'_>, acl: Option<Acl>) {
        self.version += 1;
        match name {
            XattrName::Plain(_) => {}
            XattrName::Access => {
                self.access = acl;
                self.touch(ACCESS_ACL);
            }
            XattrName::Default => {
                self.default = acl;
                self.touch(DEFAULT_ACL);
            }
        }
    }

    /// Removes an attribute.
    pub fn remove(&mut self, name: XattrName<'_>) -> Result<(), Errno> {
        let there = match name {
            XattrName::Plain(name) => self.plain.remove(name).is_some(),
            XattrName::Access => self.access.take().is_some(),
            XattrName::Default => self.default.take().is_some(),
        };
        self.version += u64::from(there);
        if !there {
            return Err(Errno::ENODATA);
        }
        match name {
            XattrName::Plain(name) => self.touch(name),
            XattrName::Access => self.touch(ACCESS_ACL),
            XattrName::Default => self.touch(DEFAULT_ACL),
        }
        Ok(())
    }

    /// Removes the capabilities of a program.
    pub fn drop_capabilities(&mut self) {
        if self.plain.remove(CAPABILITY).is_some() {
            self.version += 1;
            self.touch(CAPABILITY);
        }
    }

    /// Returns the bytes of memory that the attributes take.
    pub fn bytes(&self) -> u64 {
        let plain: u64 = self.plain.iter().map(|(n, v)| (n.len() + v.len()) as u64 + OVERHEAD).sum();
        let lists = [&self.access, &self.default].into_iter().flatten();
        plain + lists.map(|acl| acl.encode().len() as u64 + OVERHEAD).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: XattrName<'static> = XattrName::Plain(b"user.a");

    #[test]
    fn names() {
        for (name, parsed) in [
            (&b"user.x"[..], Ok(XattrName::Plain(b"user.x"))),
            (b"trusted.x", Ok(XattrName::Plain(b"trusted.x"))),
            (b"security.capability", Ok(XattrName::Plain(b"security.capability"))),
            (ACCESS_ACL, Ok(XattrName::Access)),
            (DEFAULT_ACL, Ok(XattrName::Default)),
            (b"user.", Err(Errno::EINVAL)),
            (b"user.a\0b", Err(Errno::EINVAL)),
            (b"user", Err(Errno::EOPNOTSUPP)),
            (b"system.other", Err(Errno::EOPNOTSUPP)),
            (b"", Err(Errno::ERANGE)),
        ] {
            assert_eq!(XattrName::parse(name), parsed, "{}", String::from_utf8_lossy(name));
        }
        let long = [&b"user."[..], &[b'x'; 251]].concat();
        assert_eq!(XattrName::parse(&long), Err(Errno::ERANGE));
        assert!(XattrName::parse(&long[..255]).is_ok());
    }

    #[test]
    fn kinds() {
        let user = XattrName::Plain(b"user.a");
        assert_eq!(user.check_kind(FileKind::Fifo), Err(Errno::EPERM));
        assert_eq!(XattrName::Plain(b"trusted.a").check_kind(FileKind::Symlink), Ok(()));
        assert_eq!(XattrName::Access.check_kind(FileKind::Symlink), Err(Errno::EOPNOTSUPP));
        assert_eq!(XattrName::Default.check_kind(FileKind::Regular), Err(Errno::EACCES));
        assert_eq!(XattrName::Default.check_kind(FileKind::Directory), Ok(()));
    }

    #[test]
    fn set_get_remove() {
        let mut xattrs = Xattrs::default();
        assert_eq!(xattrs.get(A), Err(Errno::ENODATA));
        assert_eq!(xattrs.may_set(A, 1, XattrSet::Replace), Err(Errno::ENODATA));
        assert_eq!(xattrs.may_set(A, 1, XattrSet::Create), Ok(()));
        xattrs.set(b"user.a", b"1".to_vec());
        xattrs.set(CAPABILITY, b"c".to_vec());
        assert_eq!(xattrs.may_set(A, 1, XattrSet::Create), Err(Errno::EEXIST));
        assert_eq!(xattrs.may_set(A, MAX_XATTR_VALUE, XattrSet::Replace), Ok(()));
        assert_eq!(xattrs.may_set(A, MAX_XATTR_VALUE + 1, XattrSet::Any), Err(Errno::E2BIG));
        assert_eq!(xattrs.names(), b"security.capability\0user.a\0");
        assert_eq!(xattrs.bytes(), 6 + 1 + 19 + 1 + 2 * OVERHEAD);
        assert_eq!(xattrs.marks(), Marks::XATTRS | Marks::CAPABILITY);
        let before = xattrs.version();
        xattrs.drop_capabilities();
        xattrs.drop_capabilities();
        assert_eq!((xattrs.names(), xattrs.version()), (b"user.a\0".to_vec(), before + 1));
        assert_eq!((xattrs.remove(A), xattrs.remove(A)), (Ok(()), Err(Errno::ENODATA)));
        assert_eq!(xattrs.marks(), Marks::empty());
    }

    #[test]
    fn the_list_of_names_fits_into_a_reply() {
        let mut xattrs = Xattrs::default();
        let mut made = 0;
        loop {
            let name = format!("user.{made:0250}").into_bytes();
            match xattrs.may_set(XattrName::Plain(&name), 0, XattrSet::Any) {
                Ok(()) => xattrs.set(&name, Vec::new()),
                Err(e) => break assert_eq!(e, Errno::ENOSPC),
            }
            made += 1;
        }
        xattrs.set_acl(XattrName::Access, Acl::decode(&[2, 0, 0, 0]).unwrap());
        assert!(made > 250 && xattrs.names().len() <= MAX_XATTR_VALUE);
    }
}
