//! The processes of a trial: a server and mounts of it, in a temporary directory.
//!
//! # Concurrency
//! Only the main thread starts processes, because the kernel kills them when the thread that
//! started them ends.

mod memory;
mod network;
mod pool;
mod prestarted_programs;
mod processes;

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use measure::{
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};
use rustix::process::Signal;
use tempfile::TempDir;

pub(crate) use memory::{Memory, growth};
pub(crate) use network::{Host, Network};
pub(crate) use processes::{stuck, time_until};

use crate::error::{Error, Result};
use pool::Stores;
use prestarted_programs::{CommandShell, PrestartedProgram};
use processes::{START, kill, send, succeed};

/// Options of a trial.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Directory of the programs.
    pub(crate) bin_dir: PathBuf,
    /// Provider of the mounts.
    pub(crate) provider: String,
    /// Memory of the server in bytes.
    pub(crate) memory: u64,
    /// Number of stores whose memory the server uses, too.
    pub(crate) stores: usize,
    /// True if the trial is too short to check growth of memory.
    pub(crate) short: bool,
    /// Ends the trial early.
    pub(crate) interrupt: Interrupt,
}

impl Plan {
    /// Returns the memory of the server and of its stores, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.memory * (1 + self.stores as u64)
    }
}

/// Options of a server whose memory outlives it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerOptions {
    /// Keep checksums.
    pub(crate) checksum: bool,
    /// Make snapshots.
    pub(crate) persist: bool,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Testbed<'a> {
    plan: &'a Plan,
    /// Network of the server and its mounts; `None` if they use this host's network.
    network: Option<&'a Network>,
    server: Guarded,
    /// The process that will be the next server.
    next: Option<PrestartedProgram>,
    shell: CommandShell,
    address: String,
    mounts: u32,
    /// The stores of the server, if it has some.
    stores: Option<Stores<'a>>,
    /// Additional arguments of the server.
    more: Vec<String>,
    /// Directory of the server's memory, if the memory outlives the server.
    kept: Option<TempDir>,
    dir: Option<TempDir>,
}

/// A mount. Drop kills its process; [`Mount::unmount`] unmounts it.
#[derive(Debug)]
pub(crate) struct Mount {
    fuse: Guarded,
    /// Mount point.
    pub(crate) point: PathBuf,
}

/// Returns the command that starts a server.
fn server(plan: &Plan, kept: Option<&TempDir>, listen: &str) -> Invocation {
    let (memory, program) = (plan.memory.to_string(), plan.bin_dir.join("rfs-server"));
    let command = Invocation::new(program).args(["--memory", &memory, "--listen", listen]);
    let command = command.args((!listen.starts_with("unix:")).then_some("--allow-without-keys"));
    match kept {
        Some(kept) => command.arg("--memory-dir").arg(kept.path()),
        None => command.arg("--prefault"),
    }
}

/// Name of the directory of snapshots.
const SNAPSHOTS: &str = "snapshots";

/// Returns the arguments of a server that spreads small files over its stores, too.
fn small_pieces(plan: &Plan) -> Vec<String> {
    if plan.stores == 0 { Vec::new() } else { vec!["--stripe-unit".into(), "8k".into()] }
}

/// Returns the arguments for these options.
fn option_arguments(options: ServerOptions, dir: &Path) -> Vec<String> {
    let mut more = Vec::new();
    more.extend(options.checksum.then(|| "--checksum".to_owned()));
    if options.persist {
        let snapshots = dir.join(SNAPSHOTS).display().to_string();
        more.extend(["--persist".to_owned(), snapshots, "--persist-every".into(), "1".into()]);
    }
    more
}

/// Waits until a server is ready. Returns its address with the assigned port.
fn address(plan: &Plan, server: &mut Guarded) -> Result<String> {
    Ok(server.wait_output(&plan.interrupt, START, |output| {
        output.lines().find(|line| line.starts_with("ready:"))?;
        output.lines().find_map(|line| line.strip_prefix("listening on ")).map(str::to_owned)
    })?)
}

/// Creates the working directory of a trial's programs, which also contains the mount points.
fn directory() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("rfs-reliability-").tempdir();
    let dir = dir.map_err(Error::io("temporary directory"))?;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir.path(), open).map_err(Error::io("temporary directory"))?;
    Ok(dir)
}

/// Returns the listen address of a server in this host's network.
fn listen(plan: &Plan, dir: &Path) -> String {
    match plan.provider.as_str() {
        "shm" => format!("unix:{}", dir.join("socket").display()),
        other => format!("{other}:127.0.0.1:0"),
    }
}

impl Testbed<'_> {
    /// Starts a server with prefaulted memory. Its resident memory then grows only by its own
    /// state. It has the stores of the plan.
    pub(crate) fn start(plan: &Plan) -> Result<Testbed<'_>> {
        Testbed::start_pool(plan, None, plan.stores, &small_pieces(plan))
    }

    /// Starts a server at one end of a simulated network, for mounts over TCP. `more` are arguments
    /// of the server. The stores of the plan are at the same end.
    pub(crate) fn start_at<'a>(plan: &'a Plan, network: &'a Network, more: &[String]) -> Result<Testbed<'a>> {
        let more = [small_pieces(plan), more.to_vec()].concat();
        Testbed::start_pool(plan, Some(network), plan.stores, &more)
    }

    /// Starts a server whose memory outlives it.
    pub(crate) fn start_kept(plan: &Plan, options: ServerOptions) -> Result<Testbed<'_>> {
        if plan.stores > 0 {
            return Err(Error::Missing("the memory of a server with stores does not outlive it".into()));
        }
        let kept = tempfile::Builder::new().prefix("rfs-reliability-").tempdir_in("/dev/shm");
        let kept = kept.map_err(Error::io("a directory in memory"))?;
        let dir = directory()?;
        let listen = listen(plan, dir.path());
        let more = option_arguments(options, dir.path());
        let mut testbed = Testbed::start_with(plan, dir, &server(plan, Some(&kept), &listen).args(&more))?;
        (testbed.kept, testbed.more) = (Some(kept), more);
        Ok(testbed)
    }

    fn start_with<'a>(plan: &'a Plan, dir: TempDir, command: &Invocation) -> Result<Testbed<'a>> {
        let mut server = Guarded::spawn(command, dir.path())?;
        let address = address(plan, &mut server)?;
        let shell = CommandShell::start(dir.path())?;
        let dir = Some(dir);
        let (more, kept) = (Vec::new(), None);
        let (network, stores) = (None, None);
        Ok(Testbed { plan, network, server, next: None, shell, address, mounts: 0, stores, more, kept, dir })
    }

    /// Returns the process ID of the server.
    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// Returns an error if the trial is to end early.
    pub(crate) fn interrupted(&self) -> Result<()> {
        Ok(self.plan.interrupt.check()?)
    }

    /// Sends a signal to the server.
    pub(crate) fn signal_server(&self, signal: Signal) -> Result<()> {
        send(&self.server, signal)
    }

    /// Runs a shell command. Works even while mounts do not respond.
    pub(crate) fn run(&mut self, line: &str) -> Result<()> {
        self.shell.run(line)
    }

    /// Kills the server. Starts the next server's process before the kill: a process that is
    /// started later would block on mounts that wait for the server.
    pub(crate) fn kill_server(&mut self) -> Result<()> {
        self.next = Some(self.prestart("next")?);
        kill(&mut self.server)
    }

    /// Kills the server, then starts the next server and kills it after `after`, possibly during
    /// its takeover.
    pub(crate) fn kill_two_servers(&mut self, after: Duration) -> Result<()> {
        let (second, third) = (self.prestart("second")?, self.prestart("next")?);
        kill(&mut self.server)?;
        second.go_and_be_killed(after)?;
        self.next = Some(third);
        Ok(())
    }

    fn prestart(&self, name: &str) -> Result<PrestartedProgram> {
        let command = server(self.plan, self.kept.as_ref(), &self.address).args(&self.more);
        PrestartedProgram::start(self.directory()?, name, &command)
    }

    /// Starts the next server at the address of the killed server.
    pub(crate) fn serve_again(&mut self) -> Result<()> {
        let next = self.next.take().ok_or_else(|| Error::Wrong("no server was killed".into()))?;
        (self.server, self.address) = next.go(|server| address(self.plan, server))?;
        Ok(())
    }

    /// Removes the memory of the killed server.
    pub(crate) fn lose_memory(&self) -> Result<()> {
        let kept = self.kept.as_ref().map_or_else(|| Path::new(""), TempDir::path);
        let lose = || {
            fs::read_dir(kept)?.try_for_each(|entry| {
                let path = entry?.path();
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            })
        };
        lose().map_err(Error::io("losing the memory"))
    }

    /// Returns the name of the newest complete snapshot, and true if there is an incomplete
    /// snapshot.
    pub(crate) fn snapshots(&self) -> Result<(Option<OsString>, bool)> {
        let dir = self.directory()?.join(SNAPSHOTS).join("rfs");
        let names = fs::read_dir(dir).and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<_> = names.map_err(Error::io("snapshots"))?;
        let (begun, whole): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.to_string_lossy().ends_with(".new"));
        // Numbers are not padded, so a longer name is a larger number.
        Ok((whole.into_iter().max_by_key(|name| (name.len(), name.clone())), !begun.is_empty()))
    }

    fn directory(&self) -> Result<&Path> {
        self.dir.as_ref().map(TempDir::path).ok_or_else(|| Error::Wrong("the testbed has ended".into()))
    }

    /// Creates a mount.
    pub(crate) fn mount(&mut self) -> Result<Mount> {
        self.mount_at(Host::Server, &[])
    }

    /// Creates a mount at one end of the simulated network, if there is one. `more` are arguments
    /// of rfs-fuse.
    pub(crate) fn mount_at(&mut self, host: Host, more: &[String]) -> Result<Mount> {
        self.mounts += 1;
        let dir = self.directory()?;
        let point = dir.join(format!("mount{}", self.mounts));
        fs::create_dir(&point).map_err(Error::io("mount point"))?;
        let provider = if self.network.is_some() { "tcp" } else { &self.plan.provider };
        let mut command = Invocation::new(self.plan.bin_dir.join("rfs-fuse"))
            .arg(&self.address)
            .arg(&point)
            .args(["--provider", provider])
            .args(more);
        if let Some(network) = self.network {
            command = network.at(host, &command);
        }
        let mut fuse = Guarded::spawn(&command, dir)?;
        let ready = |output: &str| output.contains(" is mounted on ").then_some(());
        fuse.wait_output(&self.plan.interrupt, START, ready)?;
        Ok(Mount { fuse, point })
    }

    /// Returns the memory usage of the server, or an error if it has ended.
    pub(crate) fn memory(&mut self) -> Result<Memory> {
        match self.server.ended()? {
            Some(_) => Err(self.server.failure("ended").into()),
            None => Memory::of(self.server.id()),
        }
    }

    /// Stops the server. Returns an error if it does not end cleanly.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.memory()?;
        Ok(self.server.stop()?)
    }
}

impl Drop for Testbed<'_> {
    fn drop(&mut self) {
        self.server.stop().ok();
        let Some(dir) = self.dir.take() else { return };
        // A failed trial may have left mounts. The directory must not be removed while it contains
        // mounts.
        for point in mounts_in(dir.path()) {
            unmount(&point).ok();
        }
        if !mounts_in(dir.path()).is_empty() {
            eprintln!("rfs-reliability: cannot remove {}: it contains mounts", dir.keep().display());
        }
    }
}

impl Mount {
    /// Returns the process ID of the mount's client.
    pub(crate) fn process(&self) -> u32 {
        self.fuse.id()
    }

    /// Returns the last lines of the client's error output.
    pub(crate) fn last_words(&self) -> String {
        self.fuse.stderr.tail()
    }

    /// Kills the client and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        kill(&mut self.fuse)
    }

    /// Unmounts, and checks that the client ends successfully.
    pub(crate) fn unmount(self) -> Result<()> {
        unmount(&self.point)?;
        self.ends()
    }

    /// Unmounts with the shell of `testbed`, which works even while mounts do not respond. The
    /// mount must not be busy.
    pub(crate) fn unmount_by(self, testbed: &mut Testbed<'_>) -> Result<()> {
        testbed.run(&format!("fusermount3 -u -- '{}'", self.point.display()))?;
        self.ends()
    }

    fn ends(mut self) -> Result<()> {
        match self.fuse.wait_end(START)? {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.fuse.failure("does not end as it should").into()),
        }
    }
}

/// Detaches a mount, even if its client was killed.
pub(crate) fn unmount(point: &Path) -> Result<()> {
    succeed(&Invocation::new("fusermount3").args(["-u", "-z", "--"]).arg(point))
}

fn mounts_in(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(dir)).collect()
}
