//! Queries about the whole export.
//!
//! # Concurrency
//! Any thread. No locks.

use std::sync::Arc;

use rfs_proto::{Reply, Request, ServerStats, StatFs, Verified};

use crate::{
    error::ClientError,
    requests::calls::{Calls, wrong_kind},
};

/// Queries about the whole export.
#[derive(Debug)]
pub struct Export {
    pub(crate) calls: Arc<Calls>,
}

impl Export {
    /// Returns the totals of the export.
    pub fn statfs(&self) -> Result<StatFs, ClientError> {
        self.calls.remote.finish_calls()?;
        match self.calls.call(&Request::StatFs)? {
            Reply::StatFs(totals) => Ok(totals),
            _ => wrong_kind(),
        }
    }

    /// Has the server compare blocks with their checksums, beginning at an inode and offset.
    /// EOPNOTSUPP if the export has no checksums.
    pub fn verify(&self, (ino, offset): (u64, u64)) -> Result<Verified, ClientError> {
        match self.calls.call(&Request::Verify { ino, offset })? {
            Reply::Verified(verified) => Ok(verified),
            _ => wrong_kind(),
        }
    }

    /// Returns the server's counters.
    pub fn server_stats(&self) -> Result<ServerStats, ClientError> {
        match self.calls.call(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            _ => wrong_kind(),
        }
    }
}
