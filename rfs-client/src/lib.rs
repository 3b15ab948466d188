//! The client of an rfs-server, without FUSE.
//!
//! A [`Client`] is one session with one server, and has a field for each of its jobs. Lookups,
//! opens and allocation are calls to the server. Data, sizes and times move one-sidedly: reads and
//! writes of an open file with allocated space run no server code. If the export has checksums,
//! the client sends written data to the server in calls.
//!
//! The client caches no file data and checks no permissions. It reconnects by itself if
//! [`AttachOptions::reconnects`] is set. [`CacheRules::hold_recalls`] says which replies the caller
//! may cache; a [`RecallHandler`] hears of recalls.
//!
//! # Concurrency
//! Any number of threads call every method. Reads and writes of one inode run in parallel; a
//! change of its size excludes them. Every wait ends within the session's timeouts. An inode is
//! referenced until its last [`Lookups::forget`], and open until its last [`OpenFiles::close`].

mod cache;
mod client;
mod error;
mod inode;
mod io;
mod metadata;
mod recalls;
mod remote;
mod requests;
mod session;
#[cfg(test)]
mod tests;
mod transfers;

pub use cache::{
    changes::{Changes, ChangesInFlight},
    listing::ListingUse,
    recall_log::RequestTime,
    uses::{CacheUse, StripedCounts},
};
pub use client::Client;
pub use error::{ClientError, errno_of_completion, errno_of_request};
pub use inode::{access::AccessTimes, table::aliases::CachedName, table::arrival::Arrival};
pub use io::{
    append::Appends,
    async_io::{AsyncIo, PreparedRead, PreparedWrite},
    read::{ReadData, Reads},
    space::{Seek, Space},
    view::View,
    write::{Writes, Written},
    writeback::WriteBack,
};
pub use metadata::{
    access_times::AccessReports,
    attributes::Attributes,
    export::Export,
    lent_rights::{LentRights, Loss},
    locks::{LockOutcome, LockRequest, Locks},
    lookup::Lookups,
    names::{Creator, NameRemoval, Names},
    open_files::OpenFiles,
    privileges::Privileges,
    readdir::Directories,
    xattr::Xattrs,
};
pub use recalls::{RecallHandler, Recalls, pages::PageHolds};
pub use remote::kept_state::{
    Counter, InScope, KEPT_FORMAT, KeptState, KeptStateError, RequestScope, is_repeated_request,
};
pub use remote::{
    CallOptions, Epochs, Remote, ReplyWait, Status,
    address::{Epoch, Place, Region},
    operation::{Access, Extend, ExtendDone, Op, ReadDone, Transfer, WriteDone},
    receive_buffer::announce_receive_buffer,
};
pub use requests::{cache_rules::CacheRules, recall_guard::RecallGuard};
pub use session::{
    detach::DetachParams,
    options::{AttachError, AttachOptions},
};
pub use transfers::in_flight::QueueHint;

// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
