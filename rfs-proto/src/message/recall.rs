//! Recalls: data that a session may no longer cache.

use serde::{Deserialize, Serialize};

/// Data that a session may no longer cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalls {
    /// Number of the reply, for `Request::Recalls`. It grows by one with each reply.
    pub number: u64,
    /// Recalls in the order of the changes. Only the first reply of a session that attached without
    /// `keeps` can be empty.
    pub recalls: Vec<Recall>,
}

/// A recall: the data concerned changed or is about to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recall {
    /// The inode of a name in a directory, or the absence of the name, and the attributes of the
    /// directory. Other cached names of the directory stay valid.
    Name {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// All cached names of a directory, and its attributes.
    Names {
        /// Directory.
        ino: u64,
    },
    /// The attributes and extended attributes of an inode.
    Attr {
        /// Inode.
        ino: u64,
    },
    /// The attributes and pages of an inode: another session may write to it, or has changed its
    /// contents.
    Pages {
        /// Inode.
        ino: u64,
    },
    /// All cached data: the server restarted and has no list of the cached data. The
    /// acknowledgement states that the session no longer uses layouts of the previous server.
    All,
    /// The layouts of an inode before a generation: the file has freed some of their space. The
    /// acknowledgement states that no one-sided operation by such a layout is outstanding.
    Layout {
        /// Inode.
        ino: u64,
        /// The first generation that stays valid.
        generation: u64,
    },
    /// The owner and the other attributes of an inode. Every session that knows the inode gets it,
    /// even without cached attributes. Names of the inode stay valid.
    Owner {
        /// Inode.
        ino: u64,
    },
    /// No cached data. The acknowledgement states that the session has released all locks of an
    /// inode whose files were closed before the recall.
    Locks {
        /// Inode.
        ino: u64,
    },
    /// No cached data: an inode lost its last name. The session may use the inode until it sends
    /// `Request::Forget`. No request waits for the acknowledgement.
    Unlinked {
        /// Inode.
        ino: u64,
    },
    /// The pages of an inode that the session has open: another session has written to it. The
    /// session drops all pages before it acknowledges, and sends `Request::HoldPages` before it
    /// caches pages of the inode again.
    Written {
        /// Inode.
        ino: u64,
    },
}

impl Recall {
    /// Returns true if the recall invalidates the attributes of an inode.
    pub fn concerns(&self, inode: u64) -> bool {
        match self {
            Recall::All => true,
            Recall::Layout { .. } => false,
            kept => kept.inode() == Some(inode),
        }
    }

    /// Returns true if the recall invalidates a name in a directory.
    pub fn concerns_name(&self, directory: u64, of: &[u8]) -> bool {
        match self {
            Recall::Name { parent, name } => (*parent, &name[..]) == (directory, of),
            Recall::Names { ino } => *ino == directory,
            Recall::Attr { .. }
            | Recall::Pages { .. }
            | Recall::Owner { .. }
            | Recall::Unlinked { .. }
            | Recall::Written { .. }
            | Recall::Layout { .. }
            | Recall::Locks { .. } => false,
            Recall::All => true,
        }
    }

    /// Returns true if the recall invalidates pages of an inode.
    pub fn concerns_pages(&self, inode: u64) -> bool {
        match self {
            Recall::Pages { ino } | Recall::Written { ino } => *ino == inode,
            Recall::All => true,
            _ => false,
        }
    }

    /// Returns the inode whose cached data the recall concerns; `None` for `All` and `Locks`.
    pub fn inode(&self) -> Option<u64> {
        match self {
            Recall::Name { parent, .. } => Some(*parent),
            Recall::Names { ino }
            | Recall::Attr { ino }
            | Recall::Pages { ino }
            | Recall::Owner { ino }
            | Recall::Unlinked { ino }
            | Recall::Written { ino }
            | Recall::Layout { ino, .. } => Some(*ino),
            Recall::All | Recall::Locks { .. } => None,
        }
    }
}
