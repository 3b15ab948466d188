//! Permission checks, as a kernel makes them for a mount.
//!
//! The server trusts its clients, unless their key has a squash. So this library checks mode,
//! owner and ACL. No I/O, no locks, no clock.

use rfs_proto::{
    Attr, Errno, FileKind,
    acl::Acl,
    mode::{SEARCH, SGID, STICKY, lends_group, lends_rights},
};

use super::credentials::Credentials;

/// Returns true if a user has all of the `wanted` permissions of an inode.
pub(crate) fn permits(user: &Credentials, attr: &Attr, acl: Option<&Acl>, wanted: u32) -> bool {
    if user.is_root() {
        let is_file = attr.kind != FileKind::Directory;
        return !(is_file && wanted & SEARCH != 0 && attr.perm & 0o111 == 0);
    }
    let has = |shift: u32| attr.perm >> shift & wanted == wanted;
    match acl {
        _ if user.uid == attr.uid => has(6),
        // Without permissions of the group there is no mask that permits anything.
        Some(acl) if attr.perm & 0o070 != 0 => {
            acl.permits(user.uid, |gid| user.in_group(gid), attr.gid, wanted)
        }
        _ if user.in_group(attr.gid) => has(3),
        _ => has(0),
    }
}

/// Checks that only the owner of an inode, or root, changes it.
///
/// # Errors
/// EPERM for another user.
pub(crate) fn check_owner(user: &Credentials, attr: &Attr) -> Result<(), Errno> {
    if user.is_root() || user.uid == attr.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Checks the sticky bit of a directory before a name of `attr` is removed or replaced.
///
/// # Errors
/// EPERM if the user owns neither the directory nor the inode.
pub(crate) fn check_sticky(user: &Credentials, dir: &Attr, attr: &Attr) -> Result<(), Errno> {
    let may = user.is_root() || dir.perm & STICKY == 0 || user.uid == dir.uid || user.uid == attr.uid;
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Returns true if a user may make a hard link to an inode, given whether the user may read and
/// write it. The rule is that of a kernel with `fs.protected_hardlinks`.
pub(crate) fn may_link(user: &Credentials, attr: &Attr, may_read_and_write: bool) -> bool {
    let is_plain = attr.kind == FileKind::Regular && !lends_rights(attr.perm);
    user.is_root() || user.uid == attr.uid || is_plain && may_read_and_write
}

/// Returns the permission bits that a user may give to an inode of group `gid`: only members of
/// the group keep set-group-ID.
pub(crate) fn permitted_mode(user: &Credentials, perm: u32, gid: u32) -> u32 {
    if user.is_root() || user.in_group(gid) { perm } else { perm & !SGID }
}

/// Returns the permission bits of a new file. In a directory that passes its group on, only members
/// of the group make an executable set-group-ID file. The rule is that of kernels.
pub(crate) fn new_file_mode(user: &Credentials, perm: u32, dir: &Attr) -> u32 {
    if lends_group(perm) && dir.perm & SGID != 0 { permitted_mode(user, perm, dir.gid) } else { perm }
}

/// Checks a change of owner and group.
///
/// # Errors
/// EPERM if the user is neither root nor the owner that gives the file to an own group.
pub(crate) fn check_chown(
    user: &Credentials,
    attr: &Attr,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), Errno> {
    let owns = user.uid == attr.uid;
    let same_user = uid.is_none_or(|uid| owns && uid == attr.uid);
    let own_group = gid.is_none_or(|gid| owns && (gid == attr.gid || user.in_group(gid)));
    if user.is_root() || same_user && own_group { Ok(()) } else { Err(Errno::EPERM) }
}

#[cfg(test)]
pub(crate) mod tests {
    use rfs_proto::{
        Marks,
        mode::{READ, WRITE},
    };

    use super::*;

    pub(crate) fn attr(kind: FileKind, perm: u32, uid: u32, gid: u32) -> Attr {
        Attr {
            ino: 5,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            layout_generation: 0,
            slot: 0,
            marks: Marks::empty(),
        }
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let file = attr(FileKind::Regular, 0o640, 1, 2);
        let may = |uid, gid, wanted| permits(&Credentials::new(uid, gid), &file, None, wanted);
        assert!(may(1, 9, READ | WRITE) && !may(1, 9, SEARCH));
        assert!(may(3, 2, READ) && !may(3, 2, WRITE));
        assert!(!may(3, 9, READ));
        let closed = attr(FileKind::Regular, 0o077, 1, 2);
        assert!(!permits(&Credentials::new(1, 2), &closed, None, READ), "the owner is no other");
    }

    #[test]
    fn only_members_make_executables_of_the_group_of_a_directory() {
        let dir = attr(FileKind::Directory, 0o2777, 0, 7);
        let mode = |user: &Credentials, perm| new_file_mode(user, perm, &dir);
        let (stranger, member) = (Credentials::new(5, 5), Credentials::new(5, 7));
        assert_eq!(
            [mode(&stranger, 0o2755), mode(&stranger, 0o2745), mode(&stranger, 0o755)],
            [0o755, 0o2745, 0o755]
        );
        assert_eq!([mode(&member, 0o2755), mode(&Credentials::new(0, 0), 0o2755)], [0o2755; 2]);
        let plain = attr(FileKind::Directory, 0o777, 0, 7);
        assert_eq!(new_file_mode(&stranger, 0o2755, &plain), 0o2755, "the file gets the user's group");
    }

    #[test]
    fn root_may_all_but_execute_a_file_without_the_bit() {
        let root = Credentials::new(0, 0);
        let may = |kind, perm, wanted| permits(&root, &attr(kind, perm, 1, 1), None, wanted);
        assert!(may(FileKind::Directory, 0, READ | WRITE | SEARCH));
        assert!(may(FileKind::Regular, 0, READ | WRITE));
        assert!(!may(FileKind::Regular, 0o666, SEARCH) && may(FileKind::Regular, 0o001, SEARCH));
    }

    #[test]
    fn sticky_directories_protect_names() {
        let dir = attr(FileKind::Directory, 0o1777, 1, 1);
        let file = attr(FileKind::Regular, 0o666, 2, 2);
        let check = |uid| check_sticky(&Credentials::new(uid, 9), &dir, &file);
        assert_eq!((check(0), check(1), check(2)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(check(3), Err(Errno::EPERM));
    }

    #[test]
    fn owners_give_files_to_their_groups_only() {
        let file = attr(FileKind::Regular, 0o644, 1, 2);
        let owner = Credentials { groups: vec![7], ..Credentials::new(1, 2) };
        assert_eq!(check_chown(&owner, &file, None, Some(7)), Ok(()));
        assert_eq!(check_chown(&owner, &file, Some(1), Some(2)), Ok(()));
        assert_eq!(check_chown(&owner, &file, None, Some(8)), Err(Errno::EPERM));
        assert_eq!(check_chown(&owner, &file, Some(3), None), Err(Errno::EPERM));
        assert_eq!(check_chown(&Credentials::new(3, 7), &file, None, Some(7)), Err(Errno::EPERM));
        assert_eq!(check_chown(&Credentials::new(0, 0), &file, Some(3), Some(8)), Ok(()));
    }

    #[test]
    fn links_to_files_of_others_need_rights() {
        let plain = attr(FileKind::Regular, 0o666, 1, 1);
        let other = Credentials::new(3, 3);
        assert!(may_link(&other, &plain, true) && !may_link(&other, &plain, false));
        let program = attr(FileKind::Regular, 0o4777, 1, 1);
        assert!(!may_link(&other, &program, true));
        assert!(!may_link(&other, &attr(FileKind::Fifo, 0o666, 1, 1), true));
        assert!(may_link(&Credentials::new(1, 1), &program, false));
        assert_eq!(permitted_mode(&other, 0o2755, 1), 0o755);
        assert_eq!(permitted_mode(&other, 0o2755, 3), 0o2755);
    }
}
