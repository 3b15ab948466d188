//! Tests of sessions that reconnect, of recovery and of snapshots.

mod exactly_once;
mod log_quota;
mod reconnect;
mod recovery;
mod snapshots;
mod unlinked;
mod versions;

use super::*;
