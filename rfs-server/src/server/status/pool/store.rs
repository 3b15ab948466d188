//! The status of a store. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

/// A store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Number of the store.
    pub number: u16,
    /// Its address; empty for the server's own memory.
    pub address: String,
    /// Whether the server can use it.
    pub state: StoreState,
    /// Bytes that it lends.
    pub size_bytes: u64,
    /// Bytes without data, also those that have to be zeroed.
    pub free_bytes: u64,
    /// Bytes that files have there.
    pub used_bytes: u64,
    /// Freed bytes that a client may still reach.
    pub quarantined_bytes: u64,
    /// Sessions of clients at the store.
    pub sessions: u64,
    /// Freed bytes that are not zero yet.
    pub dirty_bytes: u64,
    /// Whether the store is registered; none if stores do not register.
    pub registered: Option<bool>,
    /// Progress of a drain that was begun.
    pub drain: Option<DrainStatus>,
    /// The files that have lost data, if the store has lost its memory.
    pub lost: Option<LostStatus>,
}

/// Progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainStatus {
    /// Bytes that were moved since the server started.
    pub moved_bytes: u64,
    /// Bytes that are still in use, or that a client may still reach.
    pub left_bytes: u64,
    /// Why it does not go on at the moment.
    pub waits_for: Option<String>,
}

/// Whether a server can use a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreState {
    /// It is used.
    #[default]
    Up,
    /// It does not answer. Its data gives errors until it does.
    Unreachable,
    /// It was restarted: its data is lost.
    Lost,
    /// Its data moves away.
    Draining,
    /// It has no data, and gets none.
    Empty,
}

impl StoreStatus {
    /// Returns the progress of a drain in words.
    pub fn drain_line(&self) -> String {
        let Some(drain) = &self.drain else { return "does not drain".into() };
        let (moved, left) = (byte_size::show(drain.moved_bytes), byte_size::show(drain.left_bytes));
        match (&drain.waits_for, drain.left_bytes) {
            (_, 0) => format!("{moved} moved, empty"),
            (Some(reason), _) => format!("{moved} moved, {left} left, waits: {reason}"),
            (None, _) => format!("{moved} moved, {left} left"),
        }
    }
}

impl StoreState {
    pub(super) fn name(self) -> &'static str {
        match self {
            StoreState::Up => "up",
            StoreState::Unreachable => "unreachable",
            StoreState::Lost => "lost",
            StoreState::Draining => "draining",
            StoreState::Empty => "empty",
        }
    }
}

/// Files with lost data, as of the loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostStatus {
    /// Number of files.
    pub files: u64,
    /// Bytes of their space that are lost.
    pub bytes: u64,
    /// The files with the lowest inode numbers, at most a thousand.
    pub listed: Vec<LostFileStatus>,
}

/// A file with lost data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostFileStatus {
    /// Inode number.
    pub inode: u64,
    /// Bytes of its space that are lost.
    pub bytes: u64,
    /// A path from the root directory on, or its end; none for a file without a name.
    pub path: Option<String>,
}
