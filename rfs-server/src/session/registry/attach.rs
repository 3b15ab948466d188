//! The terms on which a session attaches.

use rdmabox::KeyId;
use rfs_proto::{Identity, InUse, RegionRef};

use crate::session::access_mode::AccessMode;

/// References to the server's memory, as a session uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// The arena.
    pub arena: RegionRef,
    /// The table of records.
    pub table: RegionRef,
    /// The checksums, for an export with checksums.
    pub sums: Option<RegionRef>,
}

/// Reason why a session cannot attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The session is attached or has ended.
    OutOfTurn,
    /// Other sessions are attached, and one side demands to be alone.
    InUse(InUse),
}

/// Identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Key of the client; `None` without keys.
    pub key: Option<KeyId>,
    /// Access that the key permits.
    pub rights: AccessMode,
}

/// Options of an attach request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// The session caches and receives recalls.
    pub keeps: bool,
    /// The session demands to be alone.
    pub alone: bool,
    /// The mount of the session, if the mount reconnects.
    pub mount: Option<Identity>,
}
