//! Targets: systems that provide a directory to measure.
//!
//! A [`Target`] is a description that can be started. [`Target::start`] returns a [`Running`],
//! which stops on drop at the latest. A further file system needs one more implementation.

mod gluster;
mod interface;
mod moosefs;
pub mod mount;
mod mounted;
mod peer;
mod rfs;
mod sshfs;
mod tmpfs;
mod workdir;

pub use gluster::Gluster;
pub use interface::{Process, Running, Setup, Side, Target};
pub use moosefs::Moosefs;
pub use rfs::{Provider, Rfs};
pub use sshfs::Sshfs;
pub use tmpfs::Tmpfs;
pub use workdir::WorkDir;

use crate::{Result, cli::Kind};

/// Returns a target of this kind. With external servers, each rfs target needs one. `None` has no
/// target.
pub fn of(kind: Kind, setup: &Setup) -> Result<Option<Box<dyn Target>>> {
    let provider = match kind {
        Kind::Shm => Provider::Shm,
        Kind::Tcp => Provider::Tcp,
        Kind::Rdma => Provider::Rdma,
        Kind::Null => Provider::Null,
        Kind::Tmpfs => return Ok(Some(Box::new(Tmpfs::new(setup.files, setup.tmpfs_dir.clone())))),
        Kind::Glusterfs => return Ok(Some(Box::new(Gluster::new(setup.tmpfs_dir.clone())))),
        Kind::None => return Ok(None),
    };
    Ok(Some(Box::new(Rfs::new(provider, setup.clone())?)))
}
