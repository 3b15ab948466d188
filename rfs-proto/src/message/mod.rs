//! Requests and replies.

mod options;
mod recall;
mod reply;
mod request;

pub use options::{FallocateFlags, Growth, RenameFlags, XattrSet};
pub use recall::{Recall, Recalls};
pub use reply::{
    Attached, BadBlock, Copied, DirEntry, DirPage, InUse, Layout, Opened, Reply, ServerStats, StoreAccess,
    Value, Verified,
};
pub use request::Request;
