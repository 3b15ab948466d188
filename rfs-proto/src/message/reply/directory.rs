//! Contents of replies about a directory.

use serde::{Deserialize, Serialize};

use crate::Attr;

/// A page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirPage {
    /// Entries in the order of their cookies, without `.` and `..`. Cookies stay valid while the
    /// directory changes.
    pub entries: Vec<DirEntry>,
    /// Parent of the directory, for `..`.
    pub parent: u64,
    /// True if no entries follow.
    pub end: bool,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Position after this entry, for the next `Request::ReadDir`; never 0.
    pub cookie: u64,
    /// Name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Attributes.
    pub attr: Attr,
}
