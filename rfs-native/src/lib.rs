//! Files in the memory of an rfs-server, for programs: no FUSE, no mount point, no root.
//!
//! A [`Mount`] is one session with one server. Its calls take paths, as those of [`std::fs`], and
//! its [`File`]s read and write the server's memory one-sidedly. A read or write of allocated space
//! makes no call to the server. On the server's host it makes no system call either.
//!
//! ```no_run
//! use rfs_native::{Mount, MountOptions};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mount = Mount::connect("10.0.0.1:7440", &MountOptions::default())?;
//!     mount.make_dirs("results")?;
//!     let file = mount.create("results/first")?;
//!     file.write_all_at(b"bytes", 0)?;
//!     let mut out = [0; 5];
//!     file.read_exact_at(&mut out, 0)?;
//!     assert_eq!(&out, b"bytes");
//!     for entry in mount.list("results")? {
//!         println!("{} {}", entry.name().display(), entry.stat().size);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Semantics
//!
//! A native mount and a FUSE mount of one server see each other as two FUSE mounts do. A call sees
//! the effect of every call of any mount that returned before it began. The following is different
//! from a FUSE mount:
//!
//! - The library caches no file data. Each read reaches the server's memory.
//! - Permission checks use the [`Credentials`] of the mount, by default the effective user of the
//!   process. User 0 has all rights; capabilities of the process do not count. The server trusts
//!   its clients, unless their key has a squash.
//! - A path begins at the root of the export, with or without a slash. So does the target of a
//!   symbolic link that begins with a slash. At most 40 links are followed.
//! - Only regular files can be opened. Fifos, sockets and device nodes exist, but connect nothing.
//! - An append of any length is one piece.
//! - Locks belong to the open file, as those of F_OFD_SETLK.
//!
//! # Failures
//!
//! An [`Error`] has the error number that a system call on a mount would set. If the session is
//! lost, the mount reconnects by itself: calls wait, and go on with their files open. After the
//! lease they fail: EIO if a lock was lost, ESTALE if the file is gone, EHOSTDOWN without a server.
//! No wait lasts longer than twice [`MountOptions::timeout`] plus once
//! [`MountOptions::connect_timeout`], except for locks and for views.
//!
//! # End
//!
//! The session ends when the mount, its directories and its files are dropped.
//! [`Mount::disconnect`] ends it at once. A child process that was forked must not use a mount of
//! its parent.
//!
//! # Concurrency
//!
//! Every type can be used by any number of threads. A mount has a thread that obeys recalls, and
//! one that reconnects.
#![forbid(unsafe_code)]

mod access;
mod attributes;
mod cache;
mod dir;
mod error;
mod file;
mod mount;
mod path;
mod session;

pub use access::credentials::Credentials;
pub use attributes::stat::Stat;
pub use dir::{Dir, Entries, Entry, RenameMode, SetTime, Times};
pub use error::{ConnectError, Error, Result};
pub use file::{Cursor, File, LockMode, OpenOptions, Started, View};
pub use mount::{Mount, Space, Usage};
pub use rdmabox::{Address, Memory, ProviderKind, tls::TlsClientFiles};
pub use rfs_client::{AccessTimes, ClientError};
pub use rfs_proto::{Errno, FileKind, Identity};
pub use session::options::MountOptions;
