//! State of an inode that its caller, for example the kernel, may cache, was told or holds. No I/O,
//! no locks, no clock.

use crate::{
    cache::{attr_caching::AttrCaching, listing::Listing, pages::LockVisits},
    inode::{access::LastRead, locks::held_locks::HeldLocks, visible_attrs::VisibleAttrs},
};

/// The state of one inode.
#[derive(Debug, Default)]
pub(crate) struct CallerState {
    /// Whether the caller may cache the attributes.
    pub(crate) attr_caching: AttrCaching,
    /// Whether the caller's listing of the directory is current.
    pub(crate) listing: Listing,
    /// Whether another client may have changed the file since this client's last lock.
    pub(crate) visits: LockVisits,
    /// Attributes that the caller was told last, unless it has dropped them.
    pub(crate) told: Option<VisibleAttrs>,
    /// Number of links that the caller counts, or more. It subtracts the names that it removes.
    pub(crate) told_links: u32,
    /// Last read that counts as an access.
    pub(crate) last_read: LastRead,
    /// File locks that this client may hold, and lost ones.
    pub(crate) locks: HeldLocks,
}
