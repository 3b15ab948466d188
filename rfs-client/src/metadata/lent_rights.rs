//! Rights that a file lends to users of it, and the rule that ends them. No I/O, no locks, no
//! clock.
//!
//! A program with set-user-ID, set-group-ID or security.capability lends rights to each user that
//! runs it. A write or a truncation ends the rights, as it does on a file system of a kernel.

use rfs_proto::{
    Marks,
    mode::{GROUP_EXEC, SGID, lends_rights},
};

/// Rights that a file lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentRights {
    perm: u32,
    /// True if the file has the attribute security.capability.
    pub has_capability: bool,
}

/// Rights that a change of contents ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Set-user-ID, and set-group-ID if the group may execute.
    pub ids: bool,
    /// Set-group-ID of a group that may not execute, unless the user is in the group.
    pub foreign_group: bool,
    /// The attribute security.capability.
    pub capability: bool,
}

impl LentRights {
    /// Returns the rights of a file with these permission bits and marks.
    pub fn new(perm: u32, marks: Marks) -> LentRights {
        LentRights { perm: perm & 0o7777, has_capability: marks.contains(Marks::CAPABILITY) }
    }

    /// Returns the rights that a change of contents ends. A user with the right to leave
    /// set-user-ID and set-group-ID (CAP_FSETID) ends only the capability.
    pub fn loss(self, may_leave_ids: bool) -> Loss {
        Loss {
            ids: !may_leave_ids && lends_rights(self.perm),
            foreign_group: !may_leave_ids && self.perm & (SGID | GROUP_EXEC) == SGID,
            capability: self.has_capability,
        }
    }
}

impl Loss {
    /// Returns true if nothing ends.
    pub fn is_nothing(self) -> bool {
        self == Loss::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_contents_ends_rights_as_on_linux() {
        let loss = |ids, foreign_group, capability| Loss { ids, foreign_group, capability };
        let (none, capability) = (Marks::XATTRS, Marks::CAPABILITY);
        for (perm, marks, of_user, of_root) in [
            (0o755, none, loss(false, false, false), loss(false, false, false)),
            (0o755, capability, loss(false, false, true), loss(false, false, true)),
            (0o4644, none, loss(true, false, false), loss(false, false, false)),
            (0o2755, none, loss(true, false, false), loss(false, false, false)),
            (0o2745, none, loss(false, true, false), loss(false, false, false)),
            (0o6745, none, loss(true, true, false), loss(false, false, false)),
            (0o6755, capability, loss(true, false, true), loss(false, false, true)),
        ] {
            let rights = LentRights::new(perm, marks);
            assert_eq!((rights.loss(false), rights.loss(true)), (of_user, of_root), "{perm:o} {marks:?}");
            assert_eq!(rights.loss(true).is_nothing(), !of_root.capability);
        }
    }
}
