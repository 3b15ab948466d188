//! GlusterFS, as packaged by Debian, for comparison: a volume with one brick on a tmpfs, on
//! loopback.
//!
//! Its management daemon creates the volume and the volume files with their default options, and
//! then ends. The brick and the mount are ordinary foreground children that use these files, so no
//! process outlives the harness. All files are in private directories. The brick needs root for its
//! trusted attributes.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use super::{
    WorkDir,
    peer::{self, Peer, PeerSystem, START, free_port, invocation, wait_for},
};
use crate::{Error, Result, interrupt::Interrupt, process::Guarded};

const VOLUME: &str = "bench";
/// A loopback address that its command line accepts, unlike 127.0.0.1.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// GlusterFS with a brick below the directory on a tmpfs.
pub(super) const GLUSTER: PeerSystem = PeerSystem {
    name: "glusterfs",
    title: "GlusterFS, one brick on a tmpfs, over TCP on loopback",
    missing,
    start,
};

fn missing() -> Option<String> {
    peer::missing(&["glusterd", "gluster", "glusterfsd", "glusterfs"], "glusterfs-server")
}

fn start(tmpfs_dir: &Path, interrupt: &Interrupt) -> Result<Peer> {
    let mut peer = Peer::new(tmpfs_dir)?;
    let (work, brick) = (peer.work(), peer.store().path());
    let volume = make_volume(work, brick, interrupt)?;
    let port = free_port(ADDRESS)?;
    let path = |path: &Path| path.display().to_string();
    let server = invocation("glusterfsd")
        .args(["--no-daemon", "--volfile"])
        .arg(&volume.brick)
        .args(["--brick-name", &path(brick)])
        .args(["--log-file".to_owned(), path(&work.path().join("brick.log"))])
        .args(["--pid-file".to_owned(), path(&work.path().join("brick.pid"))])
        .args(["--xlator-option".to_owned(), format!("{VOLUME}-server.listen-port={port}")]);
    let client = invocation("glusterfs")
        .args(["--no-daemon", "--volfile"])
        .arg(&volume.client)
        .args(["--log-file".to_owned(), path(&work.path().join("mount.log"))])
        .args(["--xlator-option".to_owned(), format!("{VOLUME}-client-0.remote-port={port}")]);
    peer.serve(&server, (ADDRESS, port), interrupt)?;
    peer.mount(client, interrupt)?;
    Ok(peer)
}

/// The volume files of the daemon.
struct Volume {
    brick: PathBuf,
    client: PathBuf,
}

fn make_volume(work: &WorkDir, brick: &Path, interrupt: &Interrupt) -> Result<Volume> {
    let own = work.subdir("glusterd")?;
    let socket = own.join("sock");
    let config = format!(
        "volume management\n\
         type mgmt/glusterd\n\
         option working-directory {dir}\n\
         option run-directory {dir}/run\n\
         option glusterd-sockfile {socket}\n\
         option transport-type socket\n\
         option transport.address-family inet\n\
         option transport.socket.bind-address {ADDRESS}\n\
         option transport.socket.listen-port {port}\n\
         end-volume\n",
        dir = own.display(),
        socket = socket.display(),
        port = free_port(ADDRESS)?,
    );
    let volfile = own.join("glusterd.vol");
    fs::write(&volfile, config).map_err(Error::io(&volfile))?;
    let log = |name: &str| work.path().join(name);
    let daemon = invocation("glusterd")
        .args(["--no-daemon", "--volfile"])
        .arg(&volfile)
        .arg("--log-file")
        .arg(log("glusterd.log"))
        .arg("--pid-file")
        .arg(own.join("pid"));
    let mut daemon = Guarded::spawn(&daemon, work.path())?;
    let create = invocation("gluster")
        .arg("--mode=script")
        .arg(format!("--glusterd-sock={}", socket.display()))
        .arg(format!("--log-file={}", log("cli.log").display()))
        .args(["volume", "create", VOLUME])
        .arg(format!("{ADDRESS}:{}", brick.display()))
        .arg("force");
    // The daemon accepts requests some time after it has created its socket.
    let mut last = None;
    let made = wait_for(&mut daemon, interrupt, "takes no requests", |_| {
        socket.exists()
            && Guarded::spawn(&create, work.path())
                .and_then(|mut create| create.wait_success(interrupt, START, |_| ()))
                .map_err(|error| last = Some(error))
                .is_ok()
    });
    made.map_err(|error| last.unwrap_or(error))?;
    daemon.stop()?;
    let files = own.join("vols").join(VOLUME);
    let brick = format!("{VOLUME}.{ADDRESS}{}.vol", brick.display().to_string().replace('/', "-"));
    Ok(Volume {
        brick: files.join(brick.replacen("-", ".", 1)),
        client: files.join(format!("trusted-{VOLUME}.tcp-fuse.vol")),
    })
}
