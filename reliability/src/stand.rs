//! A server and mounts of it, as programs of their own in a directory that goes away.
//!
//! Threading: the main thread starts programs, because they end with the thread that started them.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use measure::{
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    Error, Result,
    hand::{Hand, Waiting},
    memory::Memory,
    network::{Host, Network},
};

/// How long a program may take to become ready; there may be many at once.
const START: Duration = Duration::from_secs(60);

/// What a trial is made with.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where the programs are.
    pub(crate) bin_dir: PathBuf,
    /// What mounts go over.
    pub(crate) provider: String,
    /// Bytes that the server lends.
    pub(crate) memory: u64,
    /// Whether it is too short for what memory does to say anything.
    pub(crate) short: bool,
    /// Ends the trial early.
    pub(crate) interrupt: Interrupt,
}

/// What a server whose memory outlives it does besides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Besides {
    /// Keeps checksums.
    pub(crate) checksum: bool,
    /// Makes snapshots.
    pub(crate) persist: bool,
}

/// A server.
#[derive(Debug)]
pub(crate) struct Stand<'a> {
    plan: &'a Plan,
    /// Where the server is, and mounts may be, if not on this host as it is.
    network: Option<&'a Network>,
    server: Guarded,
    /// Who waits to become the next one.
    next: Option<Waiting>,
    hand: Hand,
    address: String,
    mounts: u32,
    /// More arguments of the server.
    more: Vec<String>,
    /// Where the server keeps its memory, if that outlives it.
    kept: Option<TempDir>,
    dir: Option<TempDir>,
}

/// A mount. It is ended when dropped, but unmounted with [`Mount::unmount`].
#[derive(Debug)]
pub(crate) struct Mount {
    fuse: Guarded,
    /// Where it is.
    pub(crate) point: PathBuf,
}

/// What starts a server.
fn server(plan: &Plan, kept: Option<&TempDir>, listen: &str) -> Invocation {
    let (memory, program) = (plan.memory.to_string(), plan.bin_dir.join("rfs-server"));
    let command = Invocation::new(program).args(["--memory", &memory, "--listen", listen]);
    let command = command.args((!listen.starts_with("unix:")).then_some("--allow-without-keys"));
    match kept {
        Some(kept) => command.arg("--memory-dir").arg(kept.path()),
        None => command.arg("--prefault"),
    }
}

/// Where snapshots are.
const SNAPSHOTS: &str = "snapshots";

/// The arguments for this.
fn besides(besides: Besides, dir: &Path) -> Vec<String> {
    let mut more = Vec::new();
    more.extend(besides.checksum.then(|| "--checksum".to_owned()));
    if besides.persist {
        let snapshots = dir.join(SNAPSHOTS).display().to_string();
        more.extend(["--persist".to_owned(), snapshots, "--persist-every".into(), "1".into()]);
    }
    more
}

/// Waits until a server is ready. Gives its address, with the port that it has got.
fn address(plan: &Plan, server: &mut Guarded) -> Result<String> {
    Ok(server.wait_output(&plan.interrupt, START, |said| {
        said.lines().find(|line| line.starts_with("ready:"))?;
        said.lines().find_map(|line| line.strip_prefix("listening on ")).map(str::to_owned)
    })?)
}

fn send(program: &Guarded, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(program.id() as i32).ok_or_else(|| Error::Wrong("no process".into()))?;
    kill_process(pid, signal).map_err(|e| Error::io("a signal")(e.into()))
}

/// Kills a program, and waits for its end.
pub(crate) fn kill(program: &mut Guarded) -> Result<()> {
    send(program, Signal::KILL)?;
    program.wait_end(START)?;
    Ok(())
}

/// Where programs of a trial work and mounts are.
fn directory() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("rfs-reliability-").tempdir();
    let dir = dir.map_err(Error::io("temporary directory"))?;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir.path(), open).map_err(Error::io("temporary directory"))?;
    Ok(dir)
}

/// What a server listens on that is on this host as it is.
fn listen(plan: &Plan, dir: &Path) -> String {
    match plan.provider.as_str() {
        "shm" => format!("unix:{}", dir.join("socket").display()),
        other => format!("{other}:127.0.0.1:0"),
    }
}

impl Stand<'_> {
    /// Starts a server that has taken all its memory, so that it grows by nothing but what it keeps.
    pub(crate) fn start(plan: &Plan) -> Result<Stand<'_>> {
        let dir = directory()?;
        let listen = listen(plan, dir.path());
        Stand::start_with(plan, dir, &server(plan, None, &listen))
    }

    /// The same at one end of a network, for mounts over TCP. `more` are arguments of the server.
    pub(crate) fn start_at<'a>(plan: &'a Plan, network: &'a Network, more: &[String]) -> Result<Stand<'a>> {
        let listen = format!("tcp:{}:0", Host::Server.address());
        let command = server(plan, None, &listen).args(more);
        let mut stand = Stand::start_with(plan, directory()?, &network.at(Host::Server, &command))?;
        stand.network = Some(network);
        Ok(stand)
    }

    /// Starts a server whose memory outlives it.
    pub(crate) fn start_kept(plan: &Plan, does: Besides) -> Result<Stand<'_>> {
        let kept = tempfile::Builder::new().prefix("rfs-reliability-").tempdir_in("/dev/shm");
        let kept = kept.map_err(Error::io("a directory in memory"))?;
        let dir = directory()?;
        let listen = listen(plan, dir.path());
        let more = besides(does, dir.path());
        let mut stand = Stand::start_with(plan, dir, &server(plan, Some(&kept), &listen).args(&more))?;
        (stand.kept, stand.more) = (Some(kept), more);
        Ok(stand)
    }

    fn start_with<'a>(plan: &'a Plan, dir: TempDir, command: &Invocation) -> Result<Stand<'a>> {
        let mut server = Guarded::spawn(command, dir.path())?;
        let address = address(plan, &mut server)?;
        let hand = Hand::start(dir.path())?;
        let dir = Some(dir);
        let (more, kept) = (Vec::new(), None);
        Ok(Stand { plan, network: None, server, next: None, hand, address, mounts: 0, more, kept, dir })
    }

    /// The server's process.
    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// Fails once the trial is to end early.
    pub(crate) fn interrupted(&self) -> Result<()> {
        Ok(self.plan.interrupt.check()?)
    }

    /// Sends the server a signal.
    pub(crate) fn signal_server(&self, signal: Signal) -> Result<()> {
        send(&self.server, signal)
    }

    /// Runs a command of the shell, also while mounts do not answer.
    pub(crate) fn run(&mut self, line: &str) -> Result<()> {
        self.hand.run(line)
    }

    /// Kills the server. What is to become the next one is started before: later it would wait for mounts that wait for it.
    pub(crate) fn kill_server(&mut self) -> Result<()> {
        self.next = Some(self.waiting("next")?);
        kill(&mut self.server)
    }

    /// Kills the server, and the next one so long after it has begun, which may be while it takes over.
    pub(crate) fn kill_two_servers(&mut self, after: Duration) -> Result<()> {
        let (second, third) = (self.waiting("second")?, self.waiting("next")?);
        kill(&mut self.server)?;
        second.go_and_be_killed(after)?;
        self.next = Some(third);
        Ok(())
    }

    fn waiting(&self, name: &str) -> Result<Waiting> {
        let command = server(self.plan, self.kept.as_ref(), &self.address).args(&self.more);
        Waiting::start(self.directory()?, name, &command)
    }

    /// Starts the next server where the one before was that was killed.
    pub(crate) fn serve_again(&mut self) -> Result<()> {
        let next = self.next.take().ok_or_else(|| Error::Wrong("no server was killed".into()))?;
        (self.server, self.address) = next.go(|server| address(self.plan, server))?;
        Ok(())
    }

    /// After the server has been killed, its memory is lost, too.
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

    /// The newest snapshot that is whole, and whether one was begun and has not been finished.
    pub(crate) fn snapshots(&self) -> Result<(Option<OsString>, bool)> {
        let dir = self.directory()?.join(SNAPSHOTS).join("rfs");
        let names = fs::read_dir(dir).and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<_> = names.map_err(Error::io("snapshots"))?;
        let (begun, whole): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.to_string_lossy().ends_with(".new"));
        // Numbers have as many digits, or more.
        Ok((whole.into_iter().max_by_key(|name| (name.len(), name.clone())), !begun.is_empty()))
    }

    fn directory(&self) -> Result<&Path> {
        self.dir.as_ref().map(TempDir::path).ok_or_else(|| Error::Wrong("the stand has ended".into()))
    }

    /// Mounts it once more.
    pub(crate) fn mount(&mut self) -> Result<Mount> {
        self.mount_at(Host::Server, &[])
    }

    /// Mounts it once more, at one end of the network if there is one. `more` are arguments of rfs-fuse.
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
        let ready = |said: &str| said.contains(" is mounted on ").then_some(());
        fuse.wait_output(&self.plan.interrupt, START, ready)?;
        Ok(Mount { fuse, point })
    }

    /// The memory of the server. An error if it has ended.
    pub(crate) fn memory(&mut self) -> Result<Memory> {
        match self.server.ended()? {
            Some(_) => Err(self.server.failure("ended").into()),
            None => Memory::of(self.server.id()),
        }
    }

    /// Ends the server, which has to go well.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.memory()?;
        Ok(self.server.stop()?)
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        self.server.stop().ok();
        let Some(dir) = self.dir.take() else { return };
        // Whatever a failed trial has left: a directory is not removed while something is mounted in it.
        for point in mounts_in(dir.path()) {
            unmount(&point).ok();
        }
        if !mounts_in(dir.path()).is_empty() {
            eprintln!("rfs-reliability: {} is left behind: something is mounted there", dir.keep().display());
        }
    }
}

impl Mount {
    /// The process behind it.
    pub(crate) fn process(&self) -> u32 {
        self.fuse.id()
    }

    /// The last that it has said.
    pub(crate) fn last_words(&self) -> String {
        self.fuse.stderr.tail()
    }

    /// Kills the process behind it, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        kill(&mut self.fuse)
    }

    /// Unmounts it, which has to go well.
    pub(crate) fn unmount(self) -> Result<()> {
        unmount(&self.point)?;
        self.ends()
    }

    /// The same while mounts do not answer. It is not busy.
    pub(crate) fn unmount_by(self, stand: &mut Stand<'_>) -> Result<()> {
        stand.run(&format!("fusermount3 -u -- '{}'", self.point.display()))?;
        self.ends()
    }

    fn ends(mut self) -> Result<()> {
        match self.fuse.wait_end(START)? {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.fuse.failure("does not end as it should").into()),
        }
    }
}

/// Detaches what is mounted at a point, also if its client was killed.
pub(crate) fn unmount(point: &Path) -> Result<()> {
    succeed(&Invocation::new("fusermount3").args(["-u", "-z", "--"]).arg(point))
}

/// Runs a program that has to end with success.
pub(crate) fn succeed(command: &Invocation) -> Result<()> {
    let mut child = Guarded::spawn(command, Path::new("/"))?;
    child.wait_success(&Interrupt::unset(), START, |_| {})?;
    Ok(())
}

fn mounts_in(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(dir)).collect()
}

/// Asks until it is so. How long that took; `None` if it is not so after `limit`.
pub(crate) fn time_until(limit: Duration, mut is_so: impl FnMut() -> bool) -> Option<Duration> {
    let began = Instant::now();
    loop {
        if is_so() {
            return Some(began.elapsed());
        }
        if began.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
