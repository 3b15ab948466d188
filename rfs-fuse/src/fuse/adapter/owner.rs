//! Changes that only the owner of a file may make.
//!
//! The kernel checks permissions with the owner and group that it saw last, which another mount
//! may have changed. It looks a name up again first, but not an open file, and the owner may
//! change during the check. So the adapter tells the server which owner a change assumes, and the
//! server refuses the change if the file belongs to another user. The caller may have the right
//! all the same, by a capability or as a member of a group. The adapter checks that here. It
//! cannot help a new owner if the kernel refuses the change because of old attributes of an open
//! file.
//!
//! Root counts as a user with all rights.
//!
//! # Concurrency
//! Session threads. Takes no locks.

use rfs_proto::{
    Attr, Errno, ExpectedOwner, FileKind, SetAttr, SetTime,
    mode::{SGID, lends_rights},
};

use super::{Adapter, in_group, is_privileged};
use crate::fuse::{
    process::{self, Capability},
    session::Request,
};
use rfs_client::ClientError;

/// Number of attempts to change a file whose owner keeps changing.
const TRIES: u32 = 4;

/// Returns true if only the owner may make these changes.
fn takes_owner(changes: &SetAttr) -> bool {
    let is_set = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let SetAttr { perm, uid, gid, atime, mtime, .. } = *changes;
    perm.is_some() || uid.is_some() || gid.is_some() || is_set(atime) || is_set(mtime)
}

/// Returns true if no attribute changes. The kernel sends this for chown(2) with neither owner
/// nor group. It also sends this for a write by a user without the right to leave suid, sgid or
/// capabilities; the write then says so, too.
fn is_empty(changes: &SetAttr) -> bool {
    *changes == SetAttr::default()
}

/// Rights of a caller that is not root.
trait Caller {
    fn uid(&self) -> u32;
    fn in_group(&self, group: u32) -> bool;
    fn has(&self, capability: Capability) -> bool;
}

impl Caller for Request {
    fn uid(&self) -> u32 {
        self.uid()
    }

    fn in_group(&self, group: u32) -> bool {
        in_group(self, group)
    }

    fn has(&self, capability: Capability) -> bool {
        process::has_capability(self.pid(), capability)
    }
}

/// Returns the owner and group that a file has, if the kernel's permission check was right.
fn presumed_owner(caller: &impl Caller, changes: &SetAttr) -> ExpectedOwner {
    let uid = caller.uid();
    // The owner may give the file to a group of its own. Another group has to be the file's
    // already.
    let gid = changes.gid.filter(|gid| !caller.in_group(*gid));
    ExpectedOwner { uid, gid }
}

/// Returns the changes that a caller may make to a file with these attributes.
///
/// # Errors
/// EPERM if the caller has no right to the changes.
fn permitted(caller: &impl Caller, attr: &Attr, changes: &SetAttr) -> Result<SetAttr, Errno> {
    let owns = caller.uid() == attr.uid;
    let as_owner = || owns || caller.has(Capability::Fowner);
    let gives = |to: Option<u32>, may: &dyn Fn(u32) -> bool| {
        to.is_none_or(|to| owns && may(to) || caller.has(Capability::Chown))
    };
    let may_give = gives(changes.uid, &|uid| uid == attr.uid)
        && gives(changes.gid, &|gid| gid == attr.gid || caller.in_group(gid));
    let rest = SetAttr { uid: None, gid: None, ..*changes };
    if !may_give || takes_owner(&rest) && !as_owner() {
        return Err(Errno::EPERM);
    }
    let may_set_gid = || caller.in_group(changes.gid.unwrap_or(attr.gid)) || caller.has(Capability::Fsetid);
    let perm = changes.perm.map(|perm| match perm & SGID != 0 && !may_set_gid() {
        true => perm & !SGID,
        false => perm,
    });
    Ok(SetAttr { perm, ..*changes })
}

impl Adapter {
    /// Changes attributes for a caller, if the caller has the right.
    pub(super) fn set_attr(
        &self,
        request: &Request,
        ino: u64,
        changes: &SetAttr,
    ) -> Result<Attr, ClientError> {
        // With `writeback` no other mount changes owners, and the kernel sets times as it writes
        // back.
        if is_privileged(request) || self.settings.writeback {
            return self.client.attributes.setattr(ino, changes);
        }
        if is_empty(changes) {
            return self.set_no_attribute(request, ino);
        }
        if !takes_owner(changes) {
            return self.client.attributes.setattr(ino, changes);
        }
        // Setting sgid requires membership in the file's group. Giving a file to a user requires a
        // capability.
        let is_plain = changes.perm.is_none_or(|perm| perm & SGID == 0) && changes.uid.is_none();
        if is_plain {
            let only_if = Some(presumed_owner(request, changes));
            match self.client.attributes.setattr(ino, &SetAttr { only_if, ..*changes }) {
                Err(ClientError::Errno(Errno::EPERM)) => {}
                done => return done,
            }
        }
        for _ in 0..TRIES {
            let attr = self.client.attributes.getattr(ino)?;
            let only_if = Some(ExpectedOwner { uid: attr.uid, gid: Some(attr.gid) });
            let permitted = SetAttr { only_if, ..permitted(request, &attr, changes)? };
            match self.client.attributes.setattr(ino, &permitted) {
                Err(ClientError::Errno(Errno::EPERM)) => {}
                done => return done,
            }
        }
        Err(Errno::EPERM.into())
    }

    /// Handles a change of no attribute, by which only the owner clears suid. For other users it is
    /// no error, because it may belong to a write, which clears suid itself. A write by root leaves
    /// suid, so root does not clear it here either.
    fn set_no_attribute(&self, request: &Request, ino: u64) -> Result<Attr, ClientError> {
        let attr = self.client.attributes.getattr(ino)?;
        let nothing = SetAttr::default();
        let has_privileges = attr.kind != FileKind::Directory && lends_rights(attr.perm);
        if has_privileges && request.uid() == attr.uid {
            let only_if = Some(ExpectedOwner { uid: attr.uid, gid: None });
            match self.client.attributes.setattr(ino, &SetAttr { drop_privileges: true, only_if, ..nothing })
            {
                Err(ClientError::Errno(Errno::EPERM)) => {}
                done => return done,
            }
        }
        self.client.attributes.setattr(ino, &nothing)
    }

    /// Changes an ACL, which only the owner may do.
    pub(super) fn change_acl(
        &self,
        request: &Request,
        change: impl Fn(Option<ExpectedOwner>) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        if is_privileged(request) || self.settings.writeback {
            return change(None);
        }
        match change(Some(ExpectedOwner { uid: request.uid(), gid: None })) {
            Err(ClientError::Errno(Errno::EPERM)) if request.has(Capability::Fowner) => change(None),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::kernel_cache::lifetimes::nothing;

    struct TestCaller {
        uid: u32,
        groups: &'static [u32],
        capabilities: &'static [Capability],
    }

    impl Caller for TestCaller {
        fn uid(&self) -> u32 {
            self.uid
        }

        fn in_group(&self, group: u32) -> bool {
            self.groups.contains(&group)
        }

        fn has(&self, capability: Capability) -> bool {
            self.capabilities.contains(&capability)
        }
    }

    /// Returns a file of user 1 and group 2.
    fn file() -> Attr {
        Attr { perm: 0o644, uid: 1, gid: 2, ..nothing() }
    }

    #[test]
    fn mode_owner_group_and_given_times_need_the_owner() {
        let none = SetAttr::default();
        assert!(is_empty(&none) && !takes_owner(&none));
        for changes in [
            SetAttr { perm: Some(0), ..none },
            SetAttr { uid: Some(1), ..none },
            SetAttr { gid: Some(1), ..none },
            SetAttr { atime: Some(SetTime::At(1)), ..none },
            SetAttr { mtime: Some(SetTime::At(1)), ..none },
        ] {
            assert!(takes_owner(&changes) && !is_empty(&changes), "{changes:?}");
        }
        for changes in [
            SetAttr { size: Some(0), ..none },
            SetAttr { mtime: Some(SetTime::Now), ..none },
            SetAttr { ctime: Some(0), ..none },
            SetAttr { drop_privileges: true, ..none },
        ] {
            assert!(!takes_owner(&changes) && !is_empty(&changes), "{changes:?}");
        }
    }

    #[test]
    fn rights_come_from_ownership_groups_and_capabilities() {
        let none = SetAttr::default();
        use Capability::{Chown, Fowner, Fsetid};
        let chmod = |perm| SetAttr { perm: Some(perm), ..none };
        let [to_user, to_group] = [SetAttr { uid: Some(7), ..none }, SetAttr { gid: Some(7), ..none }];
        let same = SetAttr { uid: Some(1), gid: Some(2), ..none };
        let (no, yes) = (Err(Errno::EPERM), |changes: SetAttr| Ok(changes));
        let test_caller = |uid, groups, capabilities| TestCaller { uid, groups, capabilities };
        let owner = test_caller(1, &[2, 7], &[]);
        let outsider = test_caller(1, &[], &[]);
        let stranger = test_caller(5, &[2, 7], &[]);
        let fowner = test_caller(5, &[], &[Fowner]);
        let chowner = test_caller(5, &[], &[Chown]);
        let both = test_caller(5, &[], &[Fowner, Fsetid]);
        for (caller, changes, expected) in [
            (&owner, chmod(0o600), yes(chmod(0o600))),
            (&owner, chmod(0o2755), yes(chmod(0o2755))),
            (&owner, to_group, yes(to_group)),
            (&owner, to_user, no),
            (&owner, same, yes(same)),
            (&outsider, chmod(0o2755), yes(chmod(0o755))),
            (&outsider, to_group, no),
            (&outsider, same, yes(same)),
            (&stranger, chmod(0o600), no),
            (&stranger, to_group, no),
            (&stranger, same, no),
            (&fowner, chmod(0o600), yes(chmod(0o600))),
            (&fowner, chmod(0o2755), yes(chmod(0o755))),
            (&fowner, to_user, no),
            (&fowner, same, no),
            (&chowner, to_user, yes(to_user)),
            (&chowner, to_group, yes(to_group)),
            (&chowner, chmod(0o600), no),
            (&both, chmod(0o2755), yes(chmod(0o2755))),
        ] {
            let found = permitted(caller, &file(), &changes);
            assert_eq!(found, expected, "{} in {:?}: {changes:?}", caller.uid, caller.groups);
        }
    }

    #[test]
    fn the_presumed_owner_is_the_caller() {
        let none = SetAttr::default();
        let caller = TestCaller { uid: 5, groups: &[7], capabilities: &[] };
        let presumed = |changes: SetAttr| presumed_owner(&caller, &changes);
        let any = ExpectedOwner { uid: 5, gid: None };
        assert_eq!(presumed(SetAttr { perm: Some(0o600), ..none }), any);
        assert_eq!(presumed(SetAttr { gid: Some(7), ..none }), any);
        assert_eq!(presumed(SetAttr { gid: Some(8), ..none }), ExpectedOwner { gid: Some(8), ..any });
    }
}
