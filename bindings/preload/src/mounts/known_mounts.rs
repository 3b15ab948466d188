//! Which mounts are of rfs-fuse.
//!
//! # Concurrency
//! Any thread. One lock, which is held over the first look at a mount.

use std::sync::Arc;

use parking_lot::Mutex;
use rfs_status::mounts::{sockets, table};

use super::{id::MountId, site::Site};
use crate::counts::{COUNTS, Reason};

/// Maximum number of mounts of other file systems to remember.
const OTHERS: usize = 64;

/// The mounts that this process has opened files of.
#[derive(Default)]
pub(crate) struct KnownMounts(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    sites: Vec<Arc<Site>>,
    others: Vec<MountId>,
}

impl KnownMounts {
    /// Returns the site of a mount, or `None` if the mount is not of rfs-fuse.
    pub(crate) fn site(&self, id: MountId) -> Option<Arc<Site>> {
        let mut inner = self.0.lock();
        if inner.others.contains(&id) {
            return None;
        }
        if let Some(site) = inner.sites.iter().find(|site| site.id == id) {
            return Some(Arc::clone(site));
        }
        let site = find(id).map(Arc::new);
        match &site {
            Some(site) => inner.sites.push(Arc::clone(site)),
            None => {
                if inner.others.len() >= OTHERS {
                    inner.others.clear();
                }
                inner.others.push(id);
            }
        }
        site
    }

    /// Returns all sites.
    pub(crate) fn sites(&self) -> Vec<Arc<Site>> {
        self.0.lock().sites.clone()
    }
}

/// Finds the control socket of a mount.
fn find(id: MountId) -> Option<Site> {
    let device = id.device();
    let entry = table::all().into_iter().find(|entry| entry.device == device)?;
    if !entry.fs_type.starts_with("fuse.") {
        return None;
    }
    let paths = sockets::paths(entry.user.unwrap_or(0), &device);
    let socket = paths.into_iter().find(|path| path.exists())?;
    if id.number == 0 {
        // A later mount could have the same numbers.
        COUNTS.handed_back(Reason::OldKernel);
        return None;
    }
    Some(Site::new(id, socket))
}
