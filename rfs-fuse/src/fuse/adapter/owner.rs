//! What only the owner of a file may do to it, where the kernel cannot have decided that.
//!
//! It decides by the owner that it saw last. A file that another mount has given away is looked up anew before it decides by
//! its name; through a file that is open it decides at once. So whoever
//! may have been taken for the owner by mistake is looked at here once more. That the kernel refuses the new owner, until somebody has looked at
//! the file, is nothing that can be helped from here.

use fuser::Request;
use rfs_proto::{Attr, Errno, FileKind, Marks, SetAttr, SetTime};

use super::{Adapter, is_privileged};
use crate::{client::ClientError, fuse::process};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// True if it takes the owner to make these changes.
fn takes_owner(changes: &SetAttr) -> bool {
    let is_set = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let SetAttr { perm, uid, gid, atime, mtime, .. } = *changes;
    perm.is_some() || uid.is_some() || gid.is_some() || is_set(atime) || is_set(mtime)
}

/// True if nothing is asked for: what the kernel makes of a chown(2) with neither an owner nor a group, and of a write by somebody who
/// has no right to leave suid, sgid or capabilities, where the write itself says so, too.
fn is_empty(changes: &SetAttr) -> bool {
    *changes == SetAttr::default()
}

/// True if there is something that a change of owner takes away, and nothing that root's write does.
fn has_privileges(attr: &Attr) -> bool {
    attr.kind != FileKind::Directory
        && !attr.marks.contains(Marks::CAPABILITY)
        && (attr.perm & SET_UID != 0 || attr.perm & (SET_GID | GROUP_EXECUTES) == SET_GID | GROUP_EXECUTES)
}

fn owns(request: &Request, attr: &Attr) -> bool {
    is_privileged(request) || request.uid() == attr.uid || process::may_as_owner(request.pid())
}

impl Adapter {
    /// What is to be changed, if the caller may.
    ///
    /// # Errors
    /// EPERM: it takes the owner, and he is not.
    pub(super) fn allowed(
        &self,
        request: &Request,
        ino: u64,
        changes: SetAttr,
    ) -> Result<SetAttr, ClientError> {
        if is_empty(&changes) {
            let attr = self.client.getattr(ino)?;
            // Nobody who is not the owner may take away by asking for nothing what he could by writing; that there is nothing is no error, as he
            // may be writing. With capabilities, it may be a write by root, which leaves suid and sgid.
            let drop_privileges = has_privileges(&attr) && owns(request, &attr);
            return Ok(SetAttr { drop_privileges, ..changes });
        }
        if takes_owner(&changes) {
            self.check_owner(request, ino)?;
        }
        Ok(changes)
    }

    /// # Errors
    /// EPERM: the file belongs to somebody else by now.
    pub(super) fn check_owner(&self, request: &Request, ino: u64) -> Result<(), ClientError> {
        if is_privileged(request) || !self.client.may_have_changed_hands(ino) {
            return Ok(());
        }
        match owns(request, &self.client.getattr(ino)?) {
            true => Ok(()),
            false => Err(Errno::EPERM.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_the_owner() {
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
}
