//! Options of snapshots.
//!
//! # Concurrency
//! Plain values.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::server::config::Persist;

/// Where snapshots are kept, and when they are made.
#[derive(Clone, Debug, Args)]
pub struct SnapshotArguments {
    /// Keep snapshots in this directory, on a disk. If the memory is lost, the next server with
    /// this option starts from the newest complete snapshot. The server makes a snapshot every
    /// --persist-every seconds, on SIGUSR1, and when it stops; clients continue meanwhile. Memory
    /// in a --memory-dir that a server has used takes precedence over snapshots
    #[arg(long, value_name = "DIR")]
    pub persist: Option<PathBuf>,

    /// Seconds from the end of a snapshot to the start of the next, or none: only on SIGUSR1 and
    /// when the server stops. Each snapshot writes all data of all files. Skipped if no client
    /// connected since the last snapshot
    #[arg(long, value_name = "SECS|none", value_parser = parse_every, default_value = "300", requires = "persist")]
    pub persist_every: Every,

    /// Number of snapshots to keep. The oldest is removed when a new one is complete and on the
    /// disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000), default_value = "2",
        requires = "persist")]
    pub persist_keep: u16,
}

impl SnapshotArguments {
    /// Returns the settings of snapshots; `None` for a server without.
    pub(super) fn settings(self) -> Option<Persist> {
        let (every, keep) = (self.persist_every.0, self.persist_keep.into());
        self.persist.map(|dir| Persist { dir, every, keep })
    }
}

/// Interval between snapshots; `None` for no periodic snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(Option<Duration>);

impl Every {
    /// Returns the interval; `None` for no periodic snapshots.
    pub(in crate::program) fn interval(self) -> Option<Duration> {
        self.0
    }
}

fn parse_every(text: &str) -> Result<Every, String> {
    let seconds = |seconds: u32| Every(Some(Duration::from_secs(seconds.into())));
    match (text, text.parse()) {
        ("none", _) => Ok(Every(None)),
        (_, Ok(1..)) => text.parse().map(seconds).map_err(|e: std::num::ParseIntError| e.to_string()),
        _ => Err("give a number of seconds from 1 on, or none".into()),
    }
}
