//! Common code for peers: servers and a mount, all in the foreground, in private directories.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Process, Running, Side, Target, WorkDir, interface::with_dead, mount};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};

/// Time limit for a program to become ready.
pub(super) const START: Duration = Duration::from_secs(30);

/// Returns a free port.
pub(super) fn free_port(address: Ipv4Addr) -> Result<u16> {
    let free = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
    free.map(|address| address.port()).map_err(Error::io("a free port"))
}

/// Waits until `ready`. Returns an error if the program ends.
pub(super) fn wait_for(
    program: &mut Guarded,
    interrupt: &Interrupt,
    what: &str,
    mut ready: impl FnMut(&Guarded) -> bool,
) -> Result<()> {
    let found = interrupt.wait(START, || {
        if program.ended()?.is_some() {
            return Err(program.failure("ended"));
        }
        Ok(ready(program).then_some(()))
    })?;
    found.ok_or_else(|| program.failure(what))
}

/// Finds a program in `PATH` or in the directories for root.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin", "/usr/lib/openssh"].map(PathBuf::from);
    env::split_paths(&path).chain(also).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Returns the reason why a peer that needs these programs and root cannot start here.
pub(super) fn missing(programs: &[&str], package: &str) -> Option<String> {
    match programs.iter().find(|program| find(program).is_none()) {
        Some(program) => Some(format!("there is no {program} (packages: {package})")),
        None if !rustix::process::geteuid().is_root() => Some("it takes root".into()),
        None => None,
    }
}

/// Returns an invocation of a program, located with [`find`].
pub(super) fn invocation(program: &str) -> Invocation {
    Invocation::new(find(program).unwrap_or_else(|| program.into()))
}

/// A file system that rfs is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSystem {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Returns the reason why it cannot start on this machine.
    pub(super) missing: fn() -> Option<String>,
    /// Starts it with its files below a directory.
    pub(super) start: fn(&Path, &Interrupt) -> Result<Peer>,
}

/// A file system that rfs is compared with, and a directory for its files, which should be on a
/// tmpfs.
#[derive(Debug)]
pub(super) struct PeerTarget {
    pub(super) system: PeerSystem,
    pub(super) tmpfs_dir: PathBuf,
}

impl Target for PeerTarget {
    fn name(&self) -> &str {
        self.system.name
    }

    fn title(&self) -> &str {
        self.system.title
    }

    fn side(&self) -> Side {
        Side::Peer
    }

    fn missing(&self) -> Option<String> {
        (self.system.missing)()
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        Ok(Box::new((self.system.start)(&self.tmpfs_dir, interrupt)?))
    }
}

/// A mount and its servers. Drop order is the order of the fields.
pub(super) struct Peer {
    mount: Option<Guarded>,
    servers: Vec<Guarded>,
    client: Option<Invocation>,
    point: PathBuf,
    work: WorkDir,
    store: WorkDir,
    /// A directory elsewhere that this peer has created and must remove.
    made: Option<PathBuf>,
    commands: Vec<String>,
}

impl Peer {
    /// Creates the directories of a peer: a private directory, and a directory for its files below
    /// `tmpfs_dir`.
    pub(super) fn new(tmpfs_dir: &Path) -> Result<Self> {
        let (work, store) = (WorkDir::new(&env::temp_dir())?, WorkDir::new(tmpfs_dir)?);
        let point = work.subdir("mnt")?;
        Ok(Self {
            mount: None,
            servers: Vec::new(),
            client: None,
            point,
            work,
            store,
            made: None,
            commands: Vec::new(),
        })
    }

    /// Returns the directory of its own files.
    pub(super) fn work(&self) -> &WorkDir {
        &self.work
    }

    /// Returns the directory for user files, on the tmpfs.
    pub(super) fn store(&self) -> &WorkDir {
        &self.store
    }

    /// Creates an empty directory that its programs require at a fixed path, unless it exists. Drop
    /// removes it.
    pub(super) fn make(&mut self, path: &Path) -> Result<()> {
        if !path.exists() {
            fs::DirBuilder::new().mode(0o755).create(path).map_err(Error::io(path))?;
            self.made = Some(path.to_owned());
        }
        Ok(())
    }

    /// Starts a server and waits until it listens on an address.
    pub(super) fn serve(
        &mut self,
        server: &Invocation,
        address: impl Into<SocketAddr>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let address = address.into();
        self.start(server, interrupt, "does not listen", |_| TcpStream::connect(address).is_ok())
    }

    /// Starts a server and waits until it is `ready`. `what` describes the failure if it never is.
    pub(super) fn start(
        &mut self,
        server: &Invocation,
        interrupt: &Interrupt,
        what: &str,
        ready: impl Fn(&Guarded) -> bool,
    ) -> Result<()> {
        self.commands.push(server.line());
        let mut process = Guarded::spawn(server, self.work.path())?;
        let waited = wait_for(&mut process, interrupt, what, |process| ready(process));
        self.servers.push(process);
        waited
    }

    /// Mounts with a program that stays in the foreground. The mount point is its last argument.
    pub(super) fn mount(&mut self, client: Invocation, interrupt: &Interrupt) -> Result<()> {
        let client = client.arg(&self.point);
        self.commands.push(client.line());
        self.client = Some(client);
        self.mount_again(interrupt)
    }

    /// Returns the mount point.
    pub(super) fn point(&self) -> &Path {
        &self.point
    }

    fn mount_again(&mut self, interrupt: &Interrupt) -> Result<()> {
        let Some(client) = &self.client else { return Ok(()) };
        let mount = self.mount.insert(Guarded::spawn(client, self.work.path())?);
        let point = &self.point;
        // The mount appears before the client is connected, and the client connects before it knows
        // the free space.
        wait_for(mount, interrupt, "does not mount", |_| {
            mount::is_mounted(point).unwrap_or(false)
                && fs::symlink_metadata(point).is_ok()
                && rustix::fs::statvfs(point).is_ok_and(|stat| stat.f_bavail > 0)
        })
    }

    fn unmount(&mut self) -> Result<()> {
        let unmounted = mount::unmount(&self.point);
        let stopped = self.mount.take().map_or(Ok(()), |mut mount| {
            // The client ends by itself after the unmount.
            let ended = mount.wait_end(Duration::from_secs(5));
            ended.map(|_| ()).and(mount.stop())
        });
        unmounted.and(stopped)
    }

    fn shut_down(&mut self) -> Result<()> {
        let unmounted = self.unmount();
        // Servers stop in reverse order of their start.
        let stopped = std::iter::from_fn(|| self.servers.pop()).map(|mut server| server.stop());
        let stopped = stopped.fold(Ok(()), Result::and);
        let made = self.made.take().map_or(Ok(()), |path| fs::remove_dir(&path).map_err(Error::io(path)));
        unmounted.and(stopped).and(made).and(self.store.remove()).and(self.work.remove())
    }
}

impl Running for Peer {
    fn mountpoint(&self) -> &Path {
        &self.point
    }

    fn commands(&self) -> Vec<String> {
        self.commands.clone()
    }

    fn processes(&self) -> Vec<Process> {
        let servers = self.servers.iter().map(|server| Process::Server(server.id()));
        self.mount.iter().map(|mount| Process::Client(mount.id())).chain(servers).collect()
    }

    fn remount(&mut self, interrupt: &Interrupt) -> Result<bool> {
        self.unmount()?;
        self.mount_again(interrupt).map(|()| true)
    }

    fn explain(&mut self, error: Error) -> Error {
        with_dead(error, self.mount.iter_mut().chain(&mut self.servers))
    }

    fn stop(mut self: Box<Self>) -> Result<String> {
        self.shut_down().map(|()| String::new())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Err(err) = self.shut_down() {
            eprintln!("{err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named() {
        assert_eq!(
            missing(&["sh", "no-such-program"], "some, more").as_deref(),
            Some("there is no no-such-program (packages: some, more)")
        );
        let root = rustix::process::geteuid().is_root();
        assert_eq!(missing(&["sh"], "dash").is_none(), root);
    }
}
