//! Targets: systems that provide a directory to measure.
//!
//! A [`Target`] is a description that can be started. [`Target::start`] returns a [`Running`],
//! which stops on drop at the latest. A further file system needs one more implementation.

mod gluster;
mod interface;
mod moosefs;
pub mod mount;
mod peer;
mod pool;
mod rfs;
mod running_mounts;
mod sshfs;
mod tmpfs;
mod workdir;

pub use interface::{Process, Running, Setup, Side, Target};
use peer::PeerTarget;
pub use pool::{Pool, PoolSetup};
pub use rfs::{Provider, Rfs};
pub use tmpfs::Tmpfs;
pub use workdir::WorkDir;

use crate::{Result, cli::Kind};

/// Returns a target of this kind. With external servers, each rfs target needs one. `None` has no
/// target.
pub fn of(kind: Kind, setup: &Setup) -> Result<Option<Box<dyn Target>>> {
    let rfs = |provider| -> Result<Box<dyn Target>> { Ok(Box::new(Rfs::new(provider, setup.clone())?)) };
    let dir = || setup.tmpfs_dir.clone();
    let peer = |system| Box::new(PeerTarget { system, tmpfs_dir: dir() });
    Ok(Some(match kind {
        Kind::Shm => rfs(Provider::Shm)?,
        Kind::Tcp => rfs(Provider::Tcp)?,
        Kind::Rdma => rfs(Provider::Rdma)?,
        Kind::Null => rfs(Provider::Null)?,
        Kind::Tmpfs => Box::new(Tmpfs::new(setup.files, dir())),
        Kind::Glusterfs => peer(gluster::GLUSTER),
        Kind::Moosefs => peer(moosefs::MOOSEFS),
        Kind::Sshfs => peer(sshfs::SSHFS),
        Kind::None => return Ok(None),
    }))
}
