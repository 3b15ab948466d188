//! GlusterFS as Debian has it, for comparison: a volume of one brick on a tmpfs, on loopback.
//!
//! Its management daemon makes the volume, for the volume files with their default options, and ends. The brick and the
//! mount are then ordinary children in the foreground, on those files, so that nothing outlives the harness. All their
//! files are in private directories. It takes root, for the brick's trusted attributes.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Running, Target, with_dead};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    mount,
    process::{Guarded, Invocation},
    workdir::WorkDir,
};

/// How long one of its programs may take to become ready.
const START: Duration = Duration::from_secs(30);
const VOLUME: &str = "bench";
/// An address of the loopback device that its command line does not refuse, as it does 127.0.0.1.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// GlusterFS with a brick below `tmpfs_dir`.
#[derive(Debug)]
pub struct Gluster {
    tmpfs_dir: PathBuf,
}

impl Gluster {
    /// With its brick below that directory, which should be on a tmpfs.
    pub fn new(tmpfs_dir: PathBuf) -> Self {
        Self { tmpfs_dir }
    }
}

impl Target for Gluster {
    fn name(&self) -> &str {
        "glusterfs"
    }

    fn title(&self) -> &str {
        "GlusterFS, one brick on a tmpfs, over TCP on loopback"
    }

    fn is_ceiling(&self) -> bool {
        false
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        let work = WorkDir::new(&env::temp_dir())?;
        let brick = WorkDir::new(&self.tmpfs_dir)?;
        let point = work.subdir("mnt")?;
        let volume = make_volume(&work, brick.path(), interrupt)?;
        let port = free_port()?;
        let path = |path: &Path| path.display().to_string();
        let server = Invocation::new("glusterfsd")
            .args(["--no-daemon", "--volfile"])
            .arg(&volume.brick)
            .args(["--brick-name", &path(brick.path())])
            .args(["--log-file".to_owned(), path(&work.path().join("brick.log"))])
            .args(["--pid-file".to_owned(), path(&work.path().join("brick.pid"))])
            .args(["--xlator-option".to_owned(), format!("{VOLUME}-server.listen-port={port}")]);
        let client = Invocation::new("glusterfs")
            .args(["--no-daemon", "--volfile"])
            .arg(&volume.client)
            .args(["--log-file".to_owned(), path(&work.path().join("mount.log"))])
            .args(["--xlator-option".to_owned(), format!("{VOLUME}-client-0.remote-port={port}")])
            .arg(&point);
        let commands = vec![server.line(), client.line()];
        let mut running = Started { mount: None, brick_process: None, client, point, work, brick, commands };
        let process = running.brick_process.insert(Guarded::spawn(&server, running.work.path())?);
        let address = SocketAddr::from((ADDRESS, port));
        wait_for(process, interrupt, "does not listen", || TcpStream::connect(address).is_ok())?;
        running.mount(interrupt)?;
        Ok(Box::new(running))
    }
}

/// The volume files that its daemon has made.
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
        port = free_port()?,
    );
    let volfile = own.join("glusterd.vol");
    fs::write(&volfile, config).map_err(Error::io(&volfile))?;
    let log = |name: &str| work.path().join(name);
    let daemon = Invocation::new("glusterd")
        .args(["--no-daemon", "--volfile"])
        .arg(&volfile)
        .arg("--log-file")
        .arg(log("glusterd.log"))
        .arg("--pid-file")
        .arg(own.join("pid"));
    let mut daemon = Guarded::spawn(&daemon, work.path())?;
    let create = Invocation::new("gluster")
        .arg("--mode=script")
        .arg(format!("--glusterd-sock={}", socket.display()))
        .arg(format!("--log-file={}", log("cli.log").display()))
        .args(["volume", "create", VOLUME])
        .arg(format!("{ADDRESS}:{}", brick.display()))
        .arg("force");
    // The daemon takes requests some time after its socket is there.
    let mut last = None;
    let made = wait_for(&mut daemon, interrupt, "takes no requests", || {
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

fn free_port() -> Result<u16> {
    let free = TcpListener::bind((ADDRESS, 0)).and_then(|listener| listener.local_addr());
    free.map(|address| address.port()).map_err(Error::io("a free port"))
}

/// Waits until `ready`. The end of the program is an error.
fn wait_for(
    program: &mut Guarded,
    interrupt: &Interrupt,
    what: &str,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let found = interrupt.wait(START, || {
        if program.ended()?.is_some() {
            return Err(program.failure("ended"));
        }
        Ok(ready().then_some(()))
    })?;
    found.ok_or_else(|| program.failure(what))
}

/// A mount and its brick. Fields are in the order in which they must go.
struct Started {
    mount: Option<Guarded>,
    brick_process: Option<Guarded>,
    client: Invocation,
    point: PathBuf,
    work: WorkDir,
    brick: WorkDir,
    commands: Vec<String>,
}

impl Started {
    fn mount(&mut self, interrupt: &Interrupt) -> Result<()> {
        let mount = self.mount.insert(Guarded::spawn(&self.client, self.work.path())?);
        let point = &self.point;
        // Mounted before it is connected: until then it refuses what it is asked.
        wait_for(mount, interrupt, "does not mount", || {
            mount::is_mounted(point).unwrap_or(false) && fs::symlink_metadata(point).is_ok()
        })
    }

    fn unmount(&mut self) -> Result<()> {
        let unmounted = mount::unmount(&self.point);
        let stopped = self.mount.take().map_or(Ok(()), |mut mount| {
            // It ends by itself.
            let ended = mount.wait_end(Duration::from_secs(5));
            ended.map(|_| ()).and(mount.stop())
        });
        unmounted.and(stopped)
    }

    fn shut_down(&mut self) -> Result<()> {
        let unmounted = self.unmount();
        let stopped = self.brick_process.take().map_or(Ok(()), |mut brick| brick.stop());
        unmounted.and(stopped).and(self.brick.remove()).and(self.work.remove())
    }
}

impl Running for Started {
    fn mountpoint(&self) -> &Path {
        &self.point
    }

    fn commands(&self) -> Vec<String> {
        self.commands.clone()
    }

    fn remount(&mut self, interrupt: &Interrupt) -> Result<bool> {
        self.unmount()?;
        self.mount(interrupt).map(|()| true)
    }

    fn explain(&mut self, error: Error) -> Error {
        with_dead(error, [&mut self.mount, &mut self.brick_process])
    }

    fn stop(mut self: Box<Self>) -> Result<String> {
        self.shut_down().map(|()| String::new())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(err) = self.shut_down() {
            eprintln!("{err}");
        }
    }
}
