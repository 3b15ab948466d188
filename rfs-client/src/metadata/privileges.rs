//! Ends the rights that a file lends, after its contents have changed.
//!
//! [`LentRights::loss`] is the rule. In one step the server clears set-user-ID, set-group-ID of a
//! group that may execute, and the capability. The other set-group-ID depends on the file's group,
//! so it takes another step.
//!
//! # Concurrency
//! Session threads. All locks are held briefly.

use std::sync::Arc;

use rfs_proto::{
    Attr, Errno, Request, SetAttr,
    mode::{GROUP_EXEC, SGID},
    xattr,
};

use crate::{
    error::ClientError,
    metadata::{
        attributes::Attributes,
        lent_rights::{LentRights, Loss},
    },
    requests::calls::Calls,
};

/// Knows and ends the rights that files lend.
#[derive(Debug)]
pub struct Privileges {
    calls: Arc<Calls>,
    attributes: Arc<Attributes>,
}

impl Privileges {
    pub(crate) fn new(calls: &Arc<Calls>, attributes: &Arc<Attributes>) -> Privileges {
        Privileges { calls: Arc::clone(calls), attributes: Arc::clone(attributes) }
    }

    /// Returns the rights that a file lends now. Makes no request if the record is mapped, or while
    /// the server would recall the attributes.
    pub fn of(&self, ino: u64) -> Result<LentRights, ClientError> {
        self.attributes.bits(ino).map(|(perm, marks)| LentRights::new(perm, marks))
    }

    /// Ends rights. `is_member` tells whether the user of the change is in a group. Returns the new
    /// attributes if permission bits have changed.
    pub fn end(
        &self,
        ino: u64,
        loss: Loss,
        is_member: impl FnOnce(u32) -> bool,
    ) -> Result<Option<Attr>, ClientError> {
        let mut changed = None;
        if loss.ids {
            let changes = SetAttr { drop_privileges: true, ..SetAttr::default() };
            changed = Some(self.attributes.setattr(ino, &changes)?);
        } else if loss.capability {
            self.drop_capability(ino)?;
        }
        if loss.foreign_group {
            let attr = changed.map_or_else(|| self.attributes.getattr(ino), Ok)?;
            changed = self.drop_foreign_group(&attr, is_member)?.or(changed);
        }
        Ok(changed)
    }

    /// Clears set-group-ID of a file whose group may not execute it, unless the user is a member.
    /// Returns the new attributes if they have changed.
    pub fn drop_foreign_group(
        &self,
        attr: &Attr,
        is_member: impl FnOnce(u32) -> bool,
    ) -> Result<Option<Attr>, ClientError> {
        if attr.perm & (SGID | GROUP_EXEC) != SGID || is_member(attr.gid) {
            return Ok(None);
        }
        let changes = SetAttr { perm: Some(attr.perm & !SGID), ..SetAttr::default() };
        self.attributes.setattr(attr.ino, &changes).map(Some)
    }

    /// Removes the capabilities of a program that was written.
    fn drop_capability(&self, ino: u64) -> Result<(), ClientError> {
        let removed =
            self.calls.call_done(&Request::RemoveXattr { ino, name: xattr::CAPABILITY, only_if: None });
        self.attributes.forget_told(ino);
        match removed {
            Err(ClientError::Errno(Errno::ENODATA)) => Ok(()),
            outcome => outcome,
        }
    }
}
