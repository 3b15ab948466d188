//! Snapshots: copies of an export in files that outlive its memory.
//! docs/design/server/persistence.md has the format and the guarantees.
//!
//! A snapshot describes all names, attributes and extents as of one moment, as log operations,
//! followed by the bytes of the extents. Requests go on meanwhile: their changes are added to the
//! description. While the bytes are copied, space that a file had at that moment is not reused. So
//! a file has its own bytes, of that moment or later, and never those of another file.
//!
//! Bottom up: [`mod@format`] has checksummed frames, [`mod@write`] copies a running dispatcher, and
//! [`read`] verifies a snapshot. [`restore`] fills new memory from it, [`directory`] manages the
//! files, and [`snapshotter`] makes snapshots on its own thread.
//!
//! # Concurrency
//! One thread makes the snapshots of all exports; see [`snapshotter`].

pub mod directory;
pub mod format;
pub mod read;
pub mod record;
pub mod restore;
pub mod snapshotter;
pub mod write;

pub use directory::{PersistError, SnapshotDirectory};
pub use format::ReadError;
pub use read::Contents;
