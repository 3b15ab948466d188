//! Changes of contents: lengths, and the rights that each change ends.
//!
//! # Concurrency
//! The calling thread. No locks over a call.

use rfs_client::{ClientError, LentRights, Loss};
use rfs_proto::{Errno, SetAttr};

use crate::{
    access::credentials::Credentials, attributes::change::change_attr, cache::nodes::Node,
    session::core::Core,
};

/// Checks the length of a file.
///
/// # Errors
/// EINVAL beyond 2^63-1.
pub(crate) fn check_size(size: u64) -> Result<(), Errno> {
    if size <= rfs_proto::MAX_FILE_SIZE { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Returns the changes of a new length.
fn new_size(user: &Credentials, size: u64) -> SetAttr {
    SetAttr { size: Some(size), drop_privileges: !user.is_root(), ..SetAttr::default() }
}

/// Sets the length of a file that the user has open for writing, and ends the rights that the file
/// lends.
///
/// # Errors
/// The error of a call to the server.
pub(crate) fn set_size(core: &Core, user: &Credentials, node: &Node, size: u64) -> Result<(), ClientError> {
    let set = core.client.attributes.setattr(node.ino, &new_size(user, size));
    node.changed();
    let attr = set?;
    end(core, user, node, LentRights::new(attr.perm, attr.marks))
}

/// Sets the length as [`set_size`], of any file. `check` checks the permission to write, and may
/// run several times.
///
/// # Errors
/// The error of `check`, or of a call to the server.
pub(crate) fn set_size_if(
    core: &Core,
    user: &Credentials,
    node: &Node,
    size: u64,
    check: impl Fn() -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let attr = change_attr(core, user, node, |_| check().map(|()| new_size(user, size)))?;
    end(core, user, node, LentRights::new(attr.perm, attr.marks))
}

/// Ends the rights that a file lends, after a user has changed its contents. Asks for them if the
/// caller does not know them.
///
/// # Errors
/// The error of a call to the server.
pub(crate) fn end_rights(
    core: &Core,
    user: &Credentials,
    node: &Node,
    rights: Option<LentRights>,
) -> Result<(), ClientError> {
    let rights = rights.map_or_else(|| core.client.privileges.of(node.ino), Ok)?;
    end(core, user, node, rights)
}

fn end(core: &Core, user: &Credentials, node: &Node, rights: LentRights) -> Result<(), ClientError> {
    end_loss(core, node, rights.loss(user.is_root()), |group| user.in_group(group))
}

/// Ends rights that a file lends. `is_member` tells whether the user is in the file's group.
///
/// # Errors
/// The error of a call to the server.
pub(crate) fn end_loss(
    core: &Core,
    node: &Node,
    loss: Loss,
    is_member: impl FnOnce(u32) -> bool,
) -> Result<(), ClientError> {
    if loss.is_nothing() {
        return Ok(());
    }
    let ended = core.client.privileges.end(node.ino, loss, is_member);
    node.changed();
    ended.map(drop)
}
