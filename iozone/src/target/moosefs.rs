//! MooseFS as Debian has it, for comparison: a master and one chunk server on a tmpfs, on loopback.
//!
//! Its chunk server refuses the addresses 127.x: all of it runs in a network namespace of its own, whose loopback device has one
//! more address, and which ends with the process that made it. Mounts are seen outside of it all the same.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use super::{
    Running, Target,
    peer::{self, Peer, START, invocation},
};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};

/// Of its loopback device. From a range that nobody has (RFC 5737).
const ADDRESS: &str = "192.0.2.1";
/// What an empty file system begins with.
const EMPTY: &str = "MFSM NEW";

/// MooseFS with its chunks below `tmpfs_dir`.
#[derive(Debug)]
pub struct Moosefs {
    tmpfs_dir: PathBuf,
}

impl Moosefs {
    /// With its chunks below that directory, which should be on a tmpfs.
    pub fn new(tmpfs_dir: PathBuf) -> Self {
        Self { tmpfs_dir }
    }
}

impl Target for Moosefs {
    fn name(&self) -> &str {
        "moosefs"
    }

    fn title(&self) -> &str {
        "MooseFS, one chunk server on a tmpfs, over TCP on loopback"
    }

    fn is_ceiling(&self) -> bool {
        false
    }

    fn missing(&self) -> Option<String> {
        peer::missing(&["mfsmaster", "mfschunkserver", "mfsmount", "mfssettrashtime"], PACKAGES)
            .or_else(|| peer::missing(&["unshare", "nsenter", "ip"], "util-linux, iproute2"))
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        let mut peer = Peer::new(&self.tmpfs_dir)?;
        let work = peer.work().path().to_owned();
        let (master, chunks) = (peer.work().subdir("master")?, peer.work().subdir("chunks")?);
        let write =
            |path: PathBuf, text: String| fs::write(&path, text).map_err(Error::io(&path)).map(|()| path);
        write(master.join("metadata.mfs"), EMPTY.into())?;
        let exports = write(work.join("exports.cfg"), format!("{ADDRESS} / rw,alldirs,maproot=0\n"))?;
        let topology = write(work.join("topology.cfg"), String::new())?;
        let disks = write(work.join("hdd.cfg"), format!("{}\n", peer.store().path().display()))?;
        let of_mount = write(work.join("mount.cfg"), String::new())?;
        let of_master = write(work.join("master.cfg"), master_config(&master, &exports, &topology))?;
        let of_chunks = write(work.join("chunkserver.cfg"), chunk_server_config(&chunks, &disks))?;

        let script = format!(
            "ip link set lo up && ip address add {ADDRESS}/32 dev lo && echo up && exec sleep infinity"
        );
        let namespace = invocation("unshare").args(["--net", "sh", "-c"]).arg(script);
        peer.start(&namespace, interrupt, "makes no network", |process| {
            process.stdout.text().contains("up")
        })?;
        let inside = Inside(peer.last_server().unwrap_or_default());
        let started = |process: &Guarded| process.stderr.text().contains("initialized properly");
        for (program, config) in [("mfsmaster", &of_master), ("mfschunkserver", &of_chunks)] {
            let server = inside.invocation(program).args(["-f", "-c"]).arg(config).arg("start");
            peer.start(&server, interrupt, "does not start", started)?;
        }
        let client = inside.invocation("mfsmount").args(["-f", "-c"]).arg(of_mount).args(["-H", ADDRESS]);
        peer.mount(client, interrupt)?;
        // By default what is removed stays for a day, and takes space.
        let empty_trash = inside.invocation("mfssettrashtime").args(["-r", "0"]).arg(peer.point());
        Guarded::spawn(&empty_trash, &work)?.wait_success(interrupt, START, |_| ())?;
        Ok(Box::new(peer))
    }
}

const PACKAGES: &str = "moosefs-master, moosefs-chunkserver, moosefs-client";

/// The network namespace of a process.
struct Inside(u32);

impl Inside {
    /// A program there.
    fn invocation(&self, program: &str) -> Invocation {
        let path = peer::find(program).unwrap_or_else(|| program.into());
        let mut invocation = invocation("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.0))
            .args([OsStr::new("--"), path.as_os_str()]);
        invocation.name = program.to_owned();
        invocation
    }
}

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
