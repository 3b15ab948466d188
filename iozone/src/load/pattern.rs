//! The access patterns of the loads. No I/O, no locks, no clock.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The operations of a load, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Sequential writes in records of 1 MiB, and fsync.
    Write,
    /// Sequential reads in records of 1 MiB, with nothing in the page cache.
    Read,
    /// Random reads of 4 KiB blocks, with O_DIRECT.
    RandomRead,
    /// Random reads in records of 1 MiB, with O_DIRECT.
    RandomRecordRead,
    /// Random writes in records of 1 MiB, and fsync.
    RandomRecordWrite,
    /// `open` with `O_CREAT` and `O_EXCL`, and `close`.
    Create,
    /// `statx` with `AT_STATX_FORCE_SYNC`, which the kernel's cache may not answer.
    Stat,
    /// `unlink`.
    Unlink,
}

impl Pattern {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "sequential write",
            Self::Read => "uncached read",
            Self::RandomRead => "4 KiB random read, O_DIRECT",
            Self::RandomRecordRead => "1 MiB random read, O_DIRECT",
            Self::RandomRecordWrite => "1 MiB random write",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
        }
    }

    /// Returns the unit of the rate.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Write
            | Self::Read
            | Self::RandomRead
            | Self::RandomRecordRead
            | Self::RandomRecordWrite => "MiB/s",
            Self::Create | Self::Stat | Self::Unlink => "files/s",
        }
    }
}
