//! Running programs of rfs: at most one server with its stores, and its mounts.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use measure::network::Network;

use super::{Process, Running, WorkDir, interface::with_dead, mount};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};

/// Time limit for a server or a mount to become ready.
pub(super) const START: Duration = Duration::from_secs(20);
/// Time for a mount's process to end after the unmount, before it gets a signal.
const UNMOUNTED: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Mount {
    fuse: Option<Guarded>,
    point: PathBuf,
    command: Invocation,
}

impl Mount {
    fn mount(&mut self, dir: &Path, interrupt: &Interrupt) -> Result<()> {
        let fuse = self.fuse.insert(Guarded::spawn(&self.command, dir)?);
        // rfs-fuse prints this line after the mount has responded and the read-ahead is set.
        fuse.wait_output(interrupt, START, |text| text.contains(" is mounted on ").then_some(()))?;
        match mount::is_mounted(&self.point)? {
            true => Ok(()),
            false => Err(fuse.failure("says that it is mounted, but nothing is")),
        }
    }

    /// Unmounts and ends the process of the mount. Returns the result of the unmount, the result of
    /// the process, and its output.
    fn unmount(&mut self) -> (Result<()>, Result<()>, String) {
        let unmounted = mount::unmount(&self.point);
        let mut said = String::new();
        let fuse = self.fuse.take().map_or(Ok(()), |mut fuse| {
            let ended = fuse.wait_end(UNMOUNTED);
            let stopped = fuse.stop();
            said = fuse.stdout.text();
            ended.map(|_| ()).and(stopped)
        });
        (unmounted, fuse, said)
    }
}

/// Mounts and their server. Drop order is the order of the fields.
#[derive(Debug)]
pub(super) struct Started {
    mounts: Vec<Mount>,
    server: Option<Guarded>,
    stores: Vec<Guarded>,
    /// Network of all programs, if it is not that of this program.
    network: Option<Network>,
    /// Address of the server. Without a server, the client processes hold the files.
    address: Option<String>,
    work: WorkDir,
    commands: Vec<String>,
}

impl Started {
    /// Returns a value without mounts; `address` is the address of an external server, if given.
    pub(super) fn new(work: WorkDir, address: Option<String>) -> Self {
        let (mounts, stores, commands) = (Vec::new(), Vec::new(), Vec::new());
        Self { mounts, server: None, stores, network: None, address, work, commands }
    }

    /// Returns the working directory.
    pub(super) fn work(&self) -> &WorkDir {
        &self.work
    }

    /// Adds a server with its address and its command line.
    pub(super) fn serve(&mut self, server: Guarded, address: String, command: String) {
        self.server = Some(server);
        self.address = Some(address);
        self.commands.push(command);
    }

    /// Adds a store with its command line.
    pub(super) fn lend(&mut self, store: Guarded, command: String) {
        self.stores.push(store);
        self.commands.push(command);
    }

    /// Keeps the network of the programs until they have ended.
    pub(super) fn keep(&mut self, network: Network) {
        self.network = Some(network);
    }

    /// Returns the network of the programs, if it is not that of this program.
    pub(super) fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Mounts on a directory.
    pub(super) fn mount(&mut self, command: Invocation, point: PathBuf, interrupt: &Interrupt) -> Result<()> {
        self.commands.push(command.line());
        self.mounts.push(Mount { fuse: None, point, command });
        let mount = self.mounts.last_mut().map(|mount| mount.mount(self.work.path(), interrupt));
        mount.unwrap_or(Ok(()))
    }

    /// Unmounts, ends all processes, and removes the directory. Continues after a failure and
    /// returns the first error. Otherwise returns the output of all `rfs-fuse` processes, with
    /// their counters.
    fn shut_down(&mut self) -> Result<String> {
        let (mut unmounted, mut ended, mut said) = (Ok(()), Ok(()), String::new());
        for mount in &mut self.mounts {
            let (gone, stopped, text) = mount.unmount();
            unmounted = unmounted.and(gone);
            ended = ended.and(stopped);
            said.push_str(&text);
        }
        let server = self.server.take().map_or(Ok(()), |mut server| server.stop());
        let mut lent = Ok(());
        for store in &mut self.stores {
            lent = lent.and(store.stop());
        }
        let removed = self.work.remove();
        // A mount of a process that hung disappears with the process, so the removal checks again.
        let unmounted = if removed.is_ok() { Ok(()) } else { unmounted };
        unmounted.and(ended).and(server).and(lent).and(removed).map(|()| said)
    }
}

impl Running for Started {
    fn mountpoint(&self) -> &Path {
        self.mounts.first().map_or(self.work.path(), |mount| &mount.point)
    }

    fn mountpoints(&self) -> Vec<&Path> {
        self.mounts.iter().map(|mount| mount.point.as_path()).collect()
    }

    fn commands(&self) -> Vec<String> {
        self.commands.clone()
    }

    fn processes(&self) -> Vec<Process> {
        let clients = self.mounts.iter().filter_map(|mount| mount.fuse.as_ref());
        let servers = self.server.iter().chain(&self.stores).map(|server| Process::Server(server.id()));
        clients.map(|fuse| Process::Client(fuse.id())).chain(servers).collect()
    }

    fn remount(&mut self, interrupt: &Interrupt) -> Result<bool> {
        if self.address.is_none() {
            return Ok(false);
        }
        for mount in &mut self.mounts {
            let (unmounted, ended, _) = mount.unmount();
            unmounted.and(ended)?;
            mount.mount(self.work.path(), interrupt)?;
        }
        Ok(true)
    }

    fn server(&self) -> Option<&str> {
        self.address.as_deref()
    }

    fn explain(&mut self, error: Error) -> Error {
        let clients = self.mounts.iter_mut().filter_map(|mount| mount.fuse.as_mut());
        with_dead(error, clients.chain(&mut self.server).chain(&mut self.stores))
    }

    fn stop(mut self: Box<Self>) -> Result<String> {
        self.shut_down()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(err) = self.shut_down() {
            eprintln!("{err}");
        }
    }
}
