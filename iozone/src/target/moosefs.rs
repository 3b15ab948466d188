//! MooseFS, as packaged by Debian, for comparison: a master and one chunk server on a tmpfs, on
//! loopback.
//!
//! Its chunk server refuses addresses 127.x. It listens on the additional address that
//! `ci/with-network` assigns to loopback.

use std::{
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
};

use super::peer::{self, Peer, PeerSystem, START, invocation};
use crate::{Error, Result, interrupt::Interrupt, process::Guarded};

/// Additional loopback address, from a documentation range (RFC 5737).
const ADDRESS: &str = "192.0.2.1";
/// Initial metadata of an empty file system.
const EMPTY: &str = "MFSM NEW";

/// MooseFS with its chunks below the directory on a tmpfs.
pub(super) const MOOSEFS: PeerSystem = PeerSystem {
    name: "moosefs",
    title: "MooseFS, one chunk server on a tmpfs, over TCP on loopback",
    missing,
    start,
};

fn missing() -> Option<String> {
    peer::missing(&["mfsmaster", "mfschunkserver", "mfsmount", "mfssettrashtime"], PACKAGES)
        .or_else(|| UdpSocket::bind((ADDRESS, 0)).err().map(|_| NO_ADDRESS.into()))
}

fn start(tmpfs_dir: &Path, interrupt: &Interrupt) -> Result<Peer> {
    let mut peer = Peer::new(tmpfs_dir)?;
    let work = peer.work().path().to_owned();
    let (master, chunks) = (peer.work().subdir("master")?, peer.work().subdir("chunks")?);
    let write = |path: PathBuf, text: String| fs::write(&path, text).map_err(Error::io(&path)).map(|()| path);
    write(master.join("metadata.mfs"), EMPTY.into())?;
    let exports = write(work.join("exports.cfg"), format!("{ADDRESS} / rw,alldirs,maproot=0\n"))?;
    let topology = write(work.join("topology.cfg"), String::new())?;
    let disks = write(work.join("hdd.cfg"), format!("{}\n", peer.store().path().display()))?;
    let of_mount = write(work.join("mount.cfg"), String::new())?;
    let of_master = write(work.join("master.cfg"), master_config(&master, &exports, &topology))?;
    let of_chunks = write(work.join("chunkserver.cfg"), chunk_server_config(&chunks, &disks))?;

    let started = |process: &Guarded| process.stderr.text().contains("initialized properly");
    for (program, config) in [("mfsmaster", &of_master), ("mfschunkserver", &of_chunks)] {
        let server = invocation(program).args(["-f", "-c"]).arg(config).arg("start");
        peer.start(&server, interrupt, "does not start", started)?;
    }
    let client = invocation("mfsmount").args(["-f", "-c"]).arg(of_mount).args(["-H", ADDRESS]);
    peer.mount(client, interrupt)?;
    // By default removed files keep their space for a day.
    let empty_trash = invocation("mfssettrashtime").args(["-r", "0"]).arg(peer.point());
    Guarded::spawn(&empty_trash, &work)?.wait_success(interrupt, START, |_| ())?;
    Ok(peer)
}

const PACKAGES: &str = "moosefs-master, moosefs-chunkserver, moosefs-client";

const NO_ADDRESS: &str =
    "loopback has no address 192.0.2.1: run iozone/run as root, or this program by ci/with-network";

fn master_config(data: &Path, exports: &Path, topology: &Path) -> String {
    format!(
        "WORKING_USER = root\n\
         WORKING_GROUP = root\n\
         DATA_PATH = {}\n\
         EXPORTS_FILENAME = {}\n\
         TOPOLOGY_FILENAME = {}\n",
        data.display(),
        exports.display(),
        topology.display()
    )
}

fn chunk_server_config(data: &Path, disks: &Path) -> String {
    format!(
        "WORKING_USER = root\n\
         WORKING_GROUP = root\n\
         DATA_PATH = {}\n\
         HDD_CONF_FILENAME = {}\n\
         HDD_LEAVE_SPACE_DEFAULT = 0\n\
         MASTER_HOST = {ADDRESS}\n\
         MASTER_RECONNECTION_DELAY = 1\n",
        data.display(),
        disks.display()
    )
}
