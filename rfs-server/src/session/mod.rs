//! Sessions of an export, and their state: rights, open files, stored replies, room in the log.
//!
//! # Concurrency
//! [`registry`] is for any thread. The other values belong to a lock of their users.

pub mod access_mode;
pub mod client_table;
pub mod kept_reply;
pub mod log_quota;
pub mod mount_registry;
pub mod open_files;
pub mod registry;
pub mod reply_cache;
pub mod squash;

pub use registry::{AttachOptions, Credentials, Regions, Session, Sessions};
