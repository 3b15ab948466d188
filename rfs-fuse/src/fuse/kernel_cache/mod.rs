//! The kernel's cache of a mount: how long, which pages, and how it drops them.
//!
//! [`lifetimes`] has the cache times in replies. [`handles`] has the open files, with the
//! [`page_ranges`] that the kernel may have read. [`recalls`] passes the server's recalls on,
//! [`pages`] has the kernel drop pages before a reply, and [`remote_pages`] has other mounts drop
//! theirs. [`losses`] counts cached writes that failed. [`inherited_inodes`] forgets the inodes
//! that the kernel does not know any more after a takeover.

pub(super) mod handles;
pub(super) mod inherited_inodes;
pub(super) mod lifetimes;
pub(super) mod losses;
mod page_ranges;
pub(super) mod pages;
pub(super) mod recalls;
pub(super) mod remote_pages;
