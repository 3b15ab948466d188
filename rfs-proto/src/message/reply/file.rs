//! Contents of replies about a file: its extents, and parts of its values.

use serde::{Deserialize, Serialize};

use crate::{Attr, Extent};

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Number of copied bytes.
    pub bytes: u64,
    /// Attributes of the destination after the copy.
    pub attr: Attr,
}

/// Part of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Version of the inode's extended attributes. Parts of different versions do not belong
    /// together.
    pub version: u64,
    /// Length of the whole value, in bytes.
    pub len: u32,
    /// Bytes from the requested offset on, up to [`XATTR_PART`](crate::XATTR_PART).
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Attributes after the open.
    pub attr: Attr,
    /// Extents from the first byte on.
    pub layout: Layout,
}

/// Part of the extents of a file, sorted by file offset and without overlap. A gap is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Layout generation of the inode.
    pub generation: u64,
    /// The first extent that ends after the requested offset, and the extents after it.
    pub extents: Vec<Extent>,
    /// True if the file has no extents after these.
    pub complete: bool,
}
