//! Requests about names and directories.
//!
//! The rules are in `namespace`. This module adds table slots, open files and limits.
//!
//! # Concurrency
//! As the dispatcher. A change of a name locks the directory and the inode of that name
//! exclusively.

use rfs_proto::{Attr, Errno, FileKind, MAX_FORGET, MAX_SYMLINK, Owner, RenameFlags, Reply, Request};
use seeded_faults::seeded;

use crate::{
    dispatch::{
        state::shards::place,
        transaction::{call::Call, locked_inodes::Stop, view::WriteView},
    },
    metadata::namespace::{
        inode::{Body, New},
        names::Place,
    },
};

/// The most inodes of a shard that one transaction forgets. Other requests for the shard wait
/// meanwhile.
const FORGOTTEN_AT_ONCE: usize = 64;

impl Call<'_> {
    pub(in crate::dispatch) fn answer_names(
        &self,
        session: u64,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
        match request {
            Request::Lookup { parent, name } => self.lookup(session, Place { parent, name }),
            Request::GetAttr { ino } => {
                self.look(&[ino], |look| look.visible_attrs(session, ino)).map(Reply::Attr)
            }
            Request::ReadDir { ino, cookie, max_entries } => {
                self.read_dir(session, ino, cookie, max_entries).map(Reply::Dir)
            }
            Request::LookupAhead { parent, name, max_entries } => {
                self.look_ahead(session, Place { parent, name }, max_entries).map(Reply::Dir)
            }
            Request::Readlink { ino } => self.look(&[ino], |look| match &look.namespace.get(ino)?.body {
                Body::Symlink(target) => Ok(Reply::Target(target.to_vec())),
                _ => Err(Errno::EINVAL),
            }),
            Request::Birth { ino } => {
                self.look(&[ino], |look| Ok(Reply::Birth(look.namespace.get(ino)?.birth.map(i64::from))))
            }
            Request::Forget { inos } => self.forget(session, inos),
            _ => self.change_names(session, request),
        }
    }

    /// Handles Forget: the session does not use these inodes any more if they are unlinked.
    fn forget(&self, session: u64, inos: &[u8]) -> Result<Reply, Errno> {
        let (inos, []) = inos.as_chunks::<8>() else { return Err(Errno::EINVAL) };
        if inos.len() > MAX_FORGET {
            return Err(Errno::EINVAL);
        }
        let mut inos: Vec<u64> = inos.iter().map(|ino| u64::from_le_bytes(*ino)).collect();
        inos.sort_unstable_by_key(|&ino| place(ino));
        for some in inos.chunk_by(|&one, &next| place(one) == place(next)) {
            for some in some.chunks(FORGOTTEN_AT_ONCE) {
                self.locked(&some[..1], |meta| some.iter().for_each(|&ino| meta.forget(session, ino)));
            }
        }
        Ok(Reply::Done)
    }

    fn change_names(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        let now = self.clock.now();
        match request {
            Request::Mknod { parent, name, mode, umask, rdev, uid, gid } => {
                let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
                if matches!(kind, FileKind::Directory | FileKind::Symlink) {
                    return Err(Errno::EINVAL);
                }
                let new = New { kind, perm: mode & 0o7777, umask, uid, gid, rdev, target: b"", slot: 0 };
                self.make(session, Place { parent, name }, new, now)
            }
            Request::Create { parent, name, perm, umask, uid, gid, exclusive } => {
                let (new, place) = (New::file(perm, umask, (uid, gid)), Place { parent, name });
                self.answered_changing(&[parent], |meta| create(meta, session, place, (new, exclusive), now))
            }
            Request::Tmpfile { parent, perm, umask, uid, gid } => {
                let new = New::file(perm, umask, (uid, gid));
                self.answered_changing(&[parent], |meta| create_unnamed(meta, session, parent, new, now))
            }
            Request::Mkdir { parent, name, perm, umask, uid, gid } => {
                let kind = FileKind::Directory;
                let new = New { kind, perm, umask, uid, gid, rdev: 0, target: b"", slot: 0 };
                self.make(session, Place { parent, name }, new, now)
            }
            Request::Symlink { parent, name, target, uid, gid } => {
                match target {
                    [] => return Err(Errno::ENOENT),
                    _ if target.len() > MAX_SYMLINK => return Err(Errno::ENAMETOOLONG),
                    _ if target.contains(&0) => return Err(Errno::EINVAL),
                    _ => {}
                }
                let kind = FileKind::Symlink;
                let new = New { kind, perm: 0o777, umask: 0, uid, gid, rdev: 0, target, slot: 0 };
                self.make(session, Place { parent, name }, new, now)
            }
            Request::Link { ino, parent, name } => self.answered(&[ino, parent], |meta| {
                meta.may_change(parent)?;
                meta.may_link(ino)?;
                let effects = meta.namespace.link(ino, parent, name, now)?;
                meta.got_name(ino);
                meta.settle(session, &effects, &[Place { parent, name }]);
                meta.cache_names(session, parent);
                meta.visible_attrs(session, ino).map(Reply::Attr)
            }),
            Request::Unlink { parent, name } => self.answered_changing(&[parent], |meta| {
                meta.may_remove(Place { parent, name })?;
                let effects = meta.namespace.unlink(parent, name, now)?;
                meta.settle(session, &effects, &[Place { parent, name }]);
                meta.cache_names(session, parent);
                Ok(meta.removed())
            }),
            Request::Rmdir { parent, name } => self.answered_changing(&[parent], |meta| {
                meta.may_remove(Place { parent, name })?;
                let effects = meta.namespace.rmdir(parent, name, now)?;
                meta.settle(session, &effects, &[Place { parent, name }]);
                meta.cache_names(session, parent);
                Ok(meta.removed())
            }),
            Request::Rename { parent, name, new_parent, new_name, flags, whiteout, moved, replaced } => {
                let from = Place { parent, name };
                let to = Place { parent: new_parent, name: new_name };
                self.answered_changing(&[parent, new_parent], |meta| {
                    rename(meta, session, ((from, moved), (to, replaced)), (flags, whiteout), now)
                })
            }
            // Other modules handle the other requests.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn lookup(&self, session: u64, Place { parent, name }: Place<'_>) -> Result<Reply, Errno> {
        self.looking(&[parent], |look| {
            look.may_search(parent)?;
            let found = look.namespace.lookup(parent, name);
            if let Ok(ino) = found {
                look.need(ino)?;
            }
            if matches!(found, Ok(_) | Err(Errno::ENOENT)) {
                look.cache_names(session, parent);
            }
            Ok(Reply::Attr(look.visible_attrs(session, found?)?))
        })
    }

    fn make(&self, session: u64, place: Place<'_>, new: New<'_>, now: i64) -> Result<Reply, Errno> {
        self.answered_changing(&[place.parent], |meta| make(meta, session, place, new, now).map(Reply::Attr))
    }
}

fn make(
    meta: &mut WriteView<'_>,
    session: u64,
    place: Place<'_>,
    new: New<'_>,
    now: i64,
) -> Result<Attr, Stop> {
    let Place { parent, name } = place;
    meta.may_change(parent)?;
    let new = meta.new_inode(parent, new)?;
    meta.namespace.may_make(parent, name, new.kind)?;
    let slot = meta.table.take().ok_or(Errno::ENOSPC)?;
    let (ino, effects) = meta.namespace.make(parent, name, New { slot, ..new }, now)?;
    begin(meta, ino)?;
    meta.settle(session, &effects, &[place]);
    meta.cache_names(session, parent);
    Ok(meta.visible_attrs(session, ino)?)
}

/// Accounts for a new inode, and publishes its record.
fn begin(meta: &mut WriteView<'_>, ino: u64) -> Result<(), Errno> {
    meta.xattrs.add(meta.namespace.get(ino)?.xattr_bytes());
    meta.publish_new(ino);
    Ok(())
}

/// A name, and the inode that a client has cached under it.
type Cached<'a> = (Place<'a>, Option<u64>);

/// Checks that a name stands for no other inode than the one that a client has cached under it.
fn stands_for(meta: &WriteView<'_>, (place, cached): Cached<'_>) -> Result<(), Stop> {
    let Some(cached) = cached else { return Ok(()) };
    match meta.namespace.probe(place.parent, place.name)? {
        Some(found) if found != cached => Err(Errno::ESTALE.into()),
        _ => Ok(()),
    }
}

/// Renames, and leaves a whiteout at the old name if the request asks for it.
fn rename(
    meta: &mut WriteView<'_>,
    session: u64,
    (from, to): (Cached<'_>, Cached<'_>),
    (flags, whiteout): (RenameFlags, Option<Owner>),
    now: i64,
) -> Result<Reply, Stop> {
    meta.may_rename(from.0, to.0)?;
    stands_for(meta, from)?;
    stands_for(meta, to)?;
    let (from, to) = (from.0, to.0);
    let left = match whiteout.map(|owner| meta.owner(owner)) {
        Some(owner) if meta.namespace.may_rename(from, to, flags, true)? && !seeded!(WhiteoutForgotten) => {
            let slot = meta.table.take().ok_or(Errno::ENOSPC)?;
            Some(New::whiteout(owner, slot))
        }
        _ => None,
    };
    let effects = meta.namespace.rename(from, to, flags, left, now)?;
    if let Some(ino) = effects.made {
        begin(meta, ino)?;
    }
    // A rename between two names of the same inode changes nothing.
    let names = if effects.touched.is_empty() { &[][..] } else { &[from, to] };
    meta.settle(session, &effects, names);
    meta.cache_names(session, from.parent);
    meta.cache_names(session, to.parent);
    Ok(meta.removed())
}

/// Makes a file without a name, and opens it.
fn create_unnamed(
    meta: &mut WriteView<'_>,
    session: u64,
    parent: u64,
    new: New<'_>,
    now: i64,
) -> Result<Reply, Stop> {
    meta.may_change(parent)?;
    let new = meta.new_inode(parent, new)?;
    meta.namespace.may_make_nameable(parent)?;
    meta.may_open_one_more()?;
    let slot = meta.table.take().ok_or(Errno::ENOSPC)?;
    let ino = meta.namespace.make_nameable(parent, New { slot, ..new }, now)?;
    begin(meta, ino)?;
    // The session learns of the number while the file counts as linked, so it holds the number.
    let opened = meta.open_made(session, ino, true);
    let effects = meta.namespace.unname(ino, now)?;
    meta.settle(session, &effects, &[]);
    match opened {
        Ok(Reply::Opened(mut opened)) => {
            opened.attr.nlink = 0;
            Ok(Reply::Opened(opened))
        }
        // The session has ended. No other session knows the file, which `settle` has removed.
        other => Ok(other?),
    }
}

/// Makes a file, or opens the file of that name.
fn create(
    meta: &mut WriteView<'_>,
    session: u64,
    place: Place<'_>,
    (new, exclusive): (New<'_>, bool),
    now: i64,
) -> Result<Reply, Stop> {
    meta.may_search(place.parent)?;
    let ino = match meta.namespace.probe(place.parent, place.name)? {
        Some(_) if exclusive && !seeded!(ExclusiveIgnored) => return Err(Errno::EEXIST.into()),
        Some(existing) => {
            meta.need(existing)?;
            meta.cache_names(session, place.parent);
            existing
        }
        None => {
            meta.may_open_one_more()?;
            let ino = make(meta, session, place, new, now)?.ino;
            return Ok(meta.open_made(session, ino, true)?);
        }
    };
    match meta.namespace.get(ino)?.kind {
        FileKind::Regular => {
            meta.may_open(ino, true)?;
            Ok(meta.open(session, ino, true)?)
        }
        FileKind::Directory => Err(Errno::EISDIR.into()),
        _ => Err(Errno::EEXIST.into()),
    }
}
