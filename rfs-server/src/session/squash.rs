//! User mapping and permission checks of keys with `squash`. No I/O, no locks, no clock.
//!
//! A client's kernel checks permissions, but its root passes every check. For a key with `squash`
//! the server checks again: as one user (`all`), or as some user that is not root (`root`).
//! Requests do not name their user. So `root` permits the accesses of any user but root: files of
//! root are protected, and files of other users are not told apart.
//!
//! # Concurrency
//! Plain values.

use std::fmt;

use rfs_proto::{Errno, Owner, mode::SGID};

use crate::metadata::namespace::inode::Inode;

/// The user that takes the place of root if the key names none.
pub const NOBODY: Owner = Owner { uid: 65534, gid: 65534 };

/// Mapping of the users of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// No mapping.
    #[default]
    None,
    /// Root becomes this user; others stay themselves.
    Root(Owner),
    /// All users become this user.
    All(Owner),
}

impl fmt::Display for Squash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, Owner { uid, gid }) = match self {
            Squash::None => return Ok(()),
            Squash::Root(owner) => ("root", owner),
            Squash::All(owner) => ("all", owner),
        };
        write!(f, " squash={word} uid={uid} gid={gid}")
    }
}

/// The words of a key line that describe the mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SquashWords {
    all: Option<bool>,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl SquashWords {
    /// Takes one word. Returns false if the word is about something else.
    ///
    /// # Errors
    /// A message for the user about an invalid word.
    pub fn take(&mut self, word: &str) -> Result<bool, String> {
        let Some((name, value)) = word.split_once('=') else { return Ok(false) };
        let id = || match value.parse() {
            Ok(0) => Err(format!("{name}=0 is root: leave squash out instead")),
            Ok(u32::MAX) | Err(_) => Err(format!("{}: {name} is a number", rdmabox::shown(word))),
            Ok(id) => Ok(Some(id)),
        };
        match name {
            "squash" => {
                self.all = Some(match value {
                    "root" => false,
                    "all" => true,
                    _ => {
                        return Err(format!(
                            "invalid {}: expected squash=root or squash=all",
                            rdmabox::shown(word)
                        ));
                    }
                });
            }
            "uid" => self.uid = id()?,
            "gid" => self.gid = id()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the mapping that the words describe.
    ///
    /// # Errors
    /// uid or gid without squash.
    pub fn squash(self) -> Result<Squash, String> {
        let owner = Owner { uid: self.uid.unwrap_or(NOBODY.uid), gid: self.gid.unwrap_or(NOBODY.gid) };
        match self.all {
            Some(true) => Ok(Squash::All(owner)),
            Some(false) => Ok(Squash::Root(owner)),
            None if self == SquashWords::default() => Ok(Squash::None),
            None => Err("uid and gid are for squash=root and squash=all".into()),
        }
    }
}

impl Squash {
    /// Returns true if there is no mapping, and nothing to check.
    pub fn is_none(self) -> bool {
        self == Squash::None
    }

    /// Returns the owner of an inode that the session makes for `asked`.
    pub fn owner(self, asked: Owner) -> Owner {
        match self {
            Squash::None => asked,
            Squash::All(owner) => owner,
            Squash::Root(owner) => Owner {
                uid: if asked.uid == 0 { owner.uid } else { asked.uid },
                gid: if asked.gid == 0 { owner.gid } else { asked.gid },
            },
        }
    }

    /// Returns true if the session can act as the owner of the inode.
    pub fn owns(self, inode: &Inode) -> bool {
        match self {
            Squash::None => true,
            Squash::Root(_) => inode.uid != 0,
            Squash::All(owner) => inode.uid == owner.uid,
        }
    }

    /// Returns true if the session can act as a member of the group.
    pub fn is_in(self, gid: u32) -> bool {
        match self {
            Squash::None => true,
            Squash::Root(_) => gid != 0,
            Squash::All(owner) => gid == owner.gid,
        }
    }

    /// Checks permissions of an inode: [`READ`](rfs_proto::mode::READ) and sums of such
    /// bits.
    pub fn permits(self, inode: &Inode, wanted: u32) -> bool {
        let acl = inode.xattrs.as_ref().and_then(|xattrs| xattrs.access.as_ref());
        let class = |shift: u32| inode.perm >> shift & wanted == wanted;
        match (self, acl) {
            (Squash::None, _) => true,
            // The owner could give itself the permissions that it lacks.
            (Squash::Root(_), _) if inode.uid != 0 => true,
            (Squash::Root(_), None) => class(0) || (self.is_in(inode.gid) && class(3)),
            (Squash::Root(_), Some(acl)) => acl.permits_some_user(inode.gid, wanted),
            (Squash::All(owner), _) if inode.uid == owner.uid => class(6),
            (Squash::All(owner), Some(acl)) => {
                acl.permits(owner.uid, |gid| gid == owner.gid, inode.gid, wanted)
            }
            (Squash::All(owner), None) if inode.gid == owner.gid => class(3),
            (Squash::All(_), None) => class(0),
        }
    }

    /// Returns the permission bits that the session may give to an inode of this group.
    pub fn permissions(self, perm: u32, gid: u32, is_directory: bool) -> u32 {
        if is_directory || self.is_in(gid) { perm } else { perm & !SGID }
    }

    /// Checks a change of owner. An owner may give away only the group.
    ///
    /// # Errors
    /// EPERM.
    pub fn may_give(self, inode: &Inode, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        if self.is_none() {
            return Ok(());
        }
        let uid_stays = uid.is_none_or(|uid| uid == inode.uid);
        let gid_stays = gid.is_none_or(|gid| gid == inode.gid || self.is_in(gid));
        if self.owns(inode) && uid_stays && gid_stays { Ok(()) } else { Err(Errno::EPERM) }
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::{
        FileKind,
        mode::{READ, SEARCH, WRITE},
    };

    use super::*;
    use crate::metadata::namespace::inode::New;

    const USER: Owner = Owner { uid: 7, gid: 8 };
    const ROOT: Squash = Squash::Root(USER);
    const ALL: Squash = Squash::All(USER);

    fn inode(uid: u32, gid: u32, perm: u32) -> Inode {
        let kind = FileKind::Regular;
        Inode::new(New { kind, perm, umask: 0, uid, gid, rdev: 0, target: b"", slot: 0 }, 2, 0)
    }

    fn parsed(words: &str) -> Result<Squash, String> {
        let mut taken = SquashWords::default();
        for word in words.split_whitespace() {
            assert!(taken.take(word)?, "{word}");
        }
        taken.squash()
    }

    #[test]
    fn squashes_survive_display_and_parse() {
        for (words, squash) in [
            ("", Squash::None),
            ("squash=root", Squash::Root(NOBODY)),
            ("gid=8 squash=all uid=7", ALL),
            ("uid=7 gid=8 squash=root", ROOT),
        ] {
            assert_eq!(parsed(words), Ok(squash));
            assert_eq!(parsed(&squash.to_string()), Ok(squash));
        }
        for wrong in
            ["squash=none", "uid=1", "squash=all uid=0", "squash=all gid=x", "squash=all uid=4294967295"]
        {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert_eq!(SquashWords::default().take("rw"), Ok(false));
    }

    #[test]
    fn squashed_root_has_the_permissions_of_any_other_user() {
        // Of others than root everything, as their owners could allow it.
        assert!(ROOT.permits(&inode(1000, 0, 0), READ | WRITE) && ROOT.owns(&inode(1000, 0, 0)));
        for (gid, perm, wanted, allowed) in [
            (0, 0o777, READ | WRITE | SEARCH, true),
            (0, 0o755, READ | SEARCH, true),
            (0, 0o755, WRITE, false),
            (0, 0o770, READ, false),
            (5, 0o770, READ | WRITE, true),
            (5, 0o740, WRITE, false),
            // Read by one class and written by the other, by no user both.
            (5, 0o742, READ | WRITE, false),
        ] {
            assert_eq!(ROOT.permits(&inode(0, gid, perm), wanted), allowed, "{gid} {perm:o} {wanted}");
        }
        assert!(!ROOT.owns(&inode(0, 5, 0o777)));
        assert_eq!(ROOT.owner(Owner { uid: 0, gid: 3 }), Owner { uid: 7, gid: 3 });
        assert_eq!(ROOT.may_give(&inode(3, 3, 0), None, Some(0)), Err(Errno::EPERM));
        assert_eq!(ROOT.may_give(&inode(3, 3, 0), Some(4), None), Err(Errno::EPERM));
        assert_eq!(ROOT.may_give(&inode(3, 0, 0), Some(3), Some(0)), Ok(()));
        assert_eq!(ROOT.may_give(&inode(0, 4, 0), None, Some(4)), Err(Errno::EPERM));
        assert_eq!(ROOT.permissions(0o6755, 0, false), 0o4755);
    }

    #[test]
    fn squash_all_gives_the_permissions_of_one_user() {
        for (uid, gid, perm, wanted, allowed) in [
            (7, 1, 0o400, READ, true),
            (7, 1, 0o077, READ, false),
            (1, 8, 0o040, READ, true),
            (1, 8, 0o407, READ, false),
            (1, 1, 0o006, READ | WRITE, true),
            (1, 1, 0o770, READ, false),
        ] {
            assert_eq!(ALL.permits(&inode(uid, gid, perm), wanted), allowed, "{uid} {gid} {perm:o}");
        }
        assert_eq!(ALL.owner(Owner { uid: 0, gid: 0 }), USER);
        assert_eq!(ALL.owner(Owner { uid: 1000, gid: 1000 }), USER);
    }
}
