//! Flags and options of requests.

use serde::{Deserialize, Serialize};

bitflags::bitflags! {
    /// Flags of a rename, with the values of `renameat2`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST if the new name exists.
        const NOREPLACE = 1;
        /// Swap the two names, which must both exist.
        const EXCHANGE = 2;
    }
}

bitflags::bitflags! {
    /// Flags of a fallocate, with the values of `fallocate`. Without flags the server allocates
    /// space and extends the file to the end of the range.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct FallocateFlags: u32 {
        /// The size does not change.
        const KEEP_SIZE = 1;
        /// Frees whole blocks of the range and zeroes the rest. Requires KEEP_SIZE.
        const PUNCH_HOLE = 2;
        /// Allocates the range and zeroes it.
        const ZERO_RANGE = 16;
    }
}

/// The effect of a write on the size of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// The size does not change. The write is part of a longer write, whose last part sets the
    /// size.
    Stay,
    /// The size grows to the end of the written data if it is smaller.
    Reach,
    /// As `Reach`, if the size equals this value. Otherwise the server writes nothing and replies
    /// EAGAIN.
    From(u64),
}

/// The condition on an existing extended attribute of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrSet {
    /// No condition.
    Any,
    /// EEXIST if the attribute exists.
    Create,
    /// ENODATA if the attribute does not exist.
    Replace,
}
