//! A file system with its memory, as the service exports it.

use std::{collections::HashMap, sync::Arc};

use rdmabox::{Export, Peer, RemoteAddr};
use rfs_proto::RegionRef;

use crate::{
    dispatch::Dispatcher,
    session::{access_mode::AccessMode, registry::Regions},
};

/// The memory of a file system, as exported to one protection domain.
#[derive(Debug)]
pub struct ExportRegions {
    /// File data.
    pub arena: Export,
    /// Attribute records.
    pub table: Export,
    /// Checksums, if the export has them.
    pub sums: Option<Export>,
}

impl ExportRegions {
    fn regions(&self, peer: &Peer) -> Regions {
        let region = |export: &Export| {
            let RemoteAddr { addr, rkey } = peer.remote_addr(export);
            RegionRef { addr, len: export.memory().len() as u64, rkey }
        };
        Regions {
            arena: region(&self.arena),
            table: region(&self.table),
            sums: self.sums.as_ref().map(region),
        }
    }
}

/// A file system with its memory, as sessions reach it.
///
/// With keys, each export has two protection domains: one for sessions that may write, and one
/// with read-only regions. So no request of a session can access another export's memory, or
/// write without the right to write.
///
/// Sessions without a key share one domain. Each learns the regions of its own export only. That
/// does not stop a malicious client: a client that maps memory gets the memory of all exports.
#[derive(Debug)]
pub struct ServedExport {
    /// Name of the export.
    pub name: String,
    /// The dispatcher of its sessions.
    pub dispatcher: Arc<Dispatcher>,
    /// The memory for sessions without a key.
    pub open: ExportRegions,
    /// The memory for sessions with a key, by their rights.
    pub keyed: HashMap<AccessMode, ExportRegions>,
}

impl ServedExport {
    /// Returns the regions of the memory for a peer with these rights.
    pub(super) fn regions(&self, peer: &Peer, rights: AccessMode) -> Regions {
        let reach = match peer.key() {
            // Each export with keys has both.
            Some(_) => self.keyed.get(&rights).unwrap_or(&self.open),
            None => &self.open,
        };
        reach.regions(peer)
    }
}
