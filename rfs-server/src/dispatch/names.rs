//! Requests about names and directories.
//!
//! Threading: as the dispatcher. Rules are in `namespace`; here they meet slots, leases and limits.

use rfs_proto::{Attr, DirEntry, DirPage, Errno, FileKind, MAX_MESSAGE, MAX_SYMLINK, Reply, Request};

use super::{call::Call, meta::Meta};
use crate::namespace::{Body, New, Place, check_name};

/// More than the encoded attributes and cookie of an entry can take, and the length before its name.
const ENTRY_BYTES: usize = 160;

/// More than the rest of a page can take.
const PAGE_BYTES: usize = 64;

impl Call<'_> {
    pub(super) fn answer_names(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        let now = self.clock.now();
        self.locked(|meta| answer(meta, session, request, now))
    }
}

fn answer(meta: &mut Meta, session: u64, request: Request<'_>, now: i64) -> Result<Reply, Errno> {
    match request {
        Request::Lookup { parent, name } => {
            let found = meta.namespace.lookup(parent, name);
            if matches!(found, Ok(_) | Err(Errno::ENOENT)) {
                meta.told_name(session, parent);
            }
            meta.told(session, found?).map(Reply::Attr)
        }
        Request::GetAttr { ino } => meta.told(session, ino).map(Reply::Attr),
        Request::Mknod { parent, name, mode, umask, rdev, uid, gid } => {
            let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
            if matches!(kind, FileKind::Directory | FileKind::Symlink) {
                return Err(Errno::EINVAL);
            }
            let new = New { kind, perm: mode & 0o7777, umask, uid, gid, rdev, target: b"", slot: 0 };
            make(meta, session, Place { parent, name }, new, now).map(Reply::Attr)
        }
        Request::Create { parent, name, perm, umask, uid, gid, exclusive } => {
            let ino = match meta.namespace.probe(parent, name)? {
                Some(_) if exclusive => return Err(Errno::EEXIST),
                Some(existing) => {
                    meta.told_name(session, parent);
                    existing
                }
                None => {
                    let kind = FileKind::Regular;
                    let new = New { kind, perm, umask, uid, gid, rdev: 0, target: b"", slot: 0 };
                    make(meta, session, Place { parent, name }, new, now)?.ino
                }
            };
            match meta.namespace.get(ino)?.kind {
                FileKind::Regular => meta.open(session, ino, true),
                FileKind::Directory => Err(Errno::EISDIR),
                _ => Err(Errno::EEXIST),
            }
        }
        Request::Mkdir { parent, name, perm, umask, uid, gid } => {
            let kind = FileKind::Directory;
            let new = New { kind, perm, umask, uid, gid, rdev: 0, target: b"", slot: 0 };
            make(meta, session, Place { parent, name }, new, now).map(Reply::Attr)
        }
        Request::Symlink { parent, name, target, uid, gid } => {
            match target {
                [] => return Err(Errno::ENOENT),
                _ if target.len() > MAX_SYMLINK => return Err(Errno::ENAMETOOLONG),
                _ if target.contains(&0) => return Err(Errno::EINVAL),
                _ => {}
            }
            let new =
                New { kind: FileKind::Symlink, perm: 0o777, umask: 0, uid, gid, rdev: 0, target, slot: 0 };
            make(meta, session, Place { parent, name }, new, now).map(Reply::Attr)
        }
        Request::Readlink { ino } => match &meta.namespace.get(ino)?.body {
            Body::Symlink(target) => Ok(Reply::Target(target.to_vec())),
            _ => Err(Errno::EINVAL),
        },
        Request::Link { ino, parent, name } => {
            let effects = meta.namespace.link(ino, parent, name, now)?;
            meta.settle(session, &effects, &[Place { parent, name }]);
            meta.told_name(session, parent);
            meta.told(session, ino).map(Reply::Attr)
        }
        Request::Unlink { parent, name } => {
            let effects = meta.namespace.unlink(parent, name, now)?;
            meta.settle(session, &effects, &[Place { parent, name }]);
            meta.told_name(session, parent);
            Ok(Reply::Done)
        }
        Request::Rmdir { parent, name } => {
            let effects = meta.namespace.rmdir(parent, name, now)?;
            meta.settle(session, &effects, &[Place { parent, name }]);
            meta.told_name(session, parent);
            Ok(Reply::Done)
        }
        Request::Rename { parent, name, new_parent, new_name, flags } => {
            let from = Place { parent, name };
            let to = Place { parent: new_parent, name: new_name };
            let effects = meta.namespace.rename(from, to, flags, now)?;
            // Of two names of one inode nothing changes.
            let names = if effects.touched.is_empty() { &[][..] } else { &[from, to] };
            meta.settle(session, &effects, names);
            meta.told_name(session, parent);
            meta.told_name(session, new_parent);
            Ok(Reply::Done)
        }
        Request::ReadDir { ino, cookie, max_entries } => {
            read_dir(meta, session, ino, cookie, max_entries).map(Reply::Dir)
        }
        Request::LookupAhead { parent, name, max_entries } => {
            check_name(name)?;
            let cookie = meta.namespace.directory(parent)?.cookie(name);
            if cookie.is_none() {
                meta.told_name(session, parent);
            }
            // Cookies are not 0; what follows the one before it begins with the name.
            let before = cookie.ok_or(Errno::ENOENT)? - 1;
            read_dir(meta, session, parent, before, max_entries).map(Reply::Dir)
        }
        // The others are handled before.
        _ => Err(Errno::ENOSYS),
    }
}

fn make(meta: &mut Meta, session: u64, place: Place<'_>, new: New<'_>, now: i64) -> Result<Attr, Errno> {
    let Place { parent, name } = place;
    meta.namespace.may_make(parent, name, new.kind)?;
    let slot = meta.table.take().ok_or(Errno::ENOSPC)?;
    let (ino, effects) = meta.namespace.make(parent, name, New { slot, ..new }, now)?;
    meta.xattr_bytes += meta.namespace.get(ino)?.xattr_bytes();
    meta.publish_new(ino);
    meta.settle(session, &effects, &[place]);
    meta.told_name(session, parent);
    meta.told(session, ino)
}

fn read_dir(
    meta: &mut Meta,
    session: u64,
    ino: u64,
    cookie: u64,
    max_entries: u32,
) -> Result<DirPage, Errno> {
    let directory = meta.namespace.directory(ino)?;
    let max_entries = usize::try_from(max_entries).unwrap_or(usize::MAX).max(1);
    let mut page = DirPage { entries: Vec::new(), parent: directory.parent, end: true };
    let mut bytes = PAGE_BYTES;
    for (cookie, name, child) in directory.after(cookie) {
        bytes += ENTRY_BYTES + name.len();
        if page.entries.len() >= max_entries || bytes > MAX_MESSAGE {
            page.end = false;
            break;
        }
        page.entries.push(DirEntry { cookie, name: name.to_vec(), attr: meta.attr(child)? });
    }
    meta.told_name(session, ino);
    for entry in &mut page.entries {
        meta.mark(session, &mut entry.attr);
    }
    Ok(page)
}
