//! Changes of attributes that a user is permitted to make.
//!
//! Only the owner may make some changes. The server checks that the owner is still the one that the
//! permission check saw.
//!
//! # Concurrency
//! The calling thread. No locks over a call.

use rfs_client::ClientError;
use rfs_proto::{Attr, Errno, ExpectedOwner, SetAttr};

use crate::{access::credentials::Credentials, cache::nodes::Node, session::core::Core};

/// Number of attempts to change an inode whose owner keeps changing.
const TRIES: u32 = 10;

/// Changes attributes of an inode for a user. `permitted` checks the change against the current
/// attributes, and returns it.
///
/// # Errors
/// The error of `permitted`, or EPERM if the owner keeps changing.
pub(crate) fn change_attr(
    core: &Core,
    user: &Credentials,
    node: &Node,
    permitted: impl Fn(&Attr) -> Result<SetAttr, ClientError>,
) -> Result<Attr, ClientError> {
    for _ in 0..TRIES {
        let attr = node.attr()?;
        let changes = permitted(&attr)?;
        let owner = ExpectedOwner { uid: attr.uid, gid: Some(attr.gid) };
        let only_if = (!user.is_root()).then_some(owner);
        let changed = core.client.attributes.setattr(node.ino, &SetAttr { only_if, ..changes });
        node.changed();
        match changed {
            Err(ClientError::Errno(Errno::EPERM)) if !user.is_root() => {}
            changed => return changed,
        }
    }
    Err(Errno::EPERM.into())
}
