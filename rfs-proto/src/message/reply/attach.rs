//! The reply to an attach.

use serde::{Deserialize, Serialize};

use crate::{Identity, RegionRef};

/// The sessions that exclude another session from an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Number of attached sessions; at least one.
    pub sessions: u64,
    /// True if the attached session is exclusive.
    pub alone: bool,
}

/// The regions and the state of an attached session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The arena. Extents are relative to its first byte.
    pub arena: RegionRef,
    /// The table of attribute [`record`](crate::record)s, indexed by slot.
    pub table: RegionRef,
    /// The words of the arena's blocks, if the memory has [`checksum`](crate::checksum)s. The arena
    /// is then read-only.
    pub sums: Option<RegionRef>,
    /// Time on the server's clock, in nanoseconds since 1970. Clients write times on this clock.
    pub now: i64,
    /// Number of the session, never 0, for [`record::appender`](crate::record::appender).
    pub session: u64,
    /// The session may not change anything: such requests get EROFS, and the regions are read-only.
    pub read_only: bool,
    /// Identity of the export's memory. If it differs from an earlier one, the file system is a new
    /// one, and all earlier knowledge is invalid.
    pub memory: Identity,
    /// Number of servers that were started on this memory, including this one.
    pub starts: u64,
    /// The server still has the state of the mount. If false, the mount has no open files, locks or
    /// cached data.
    pub resumed: bool,
    /// The regions are read-only: the server writes data (`Request::Write`), sizes and times, and
    /// checks permissions.
    pub confined: bool,
}
