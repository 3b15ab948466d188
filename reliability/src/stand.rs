//! A server and mounts of it, as programs of their own in a directory that goes away.
//!
//! Threading: the main thread starts programs, because they end with the thread that started them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use measure::{
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};
use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;

use crate::{Error, Result, memory::Memory};

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

/// A server.
#[derive(Debug)]
pub(crate) struct Stand<'a> {
    plan: &'a Plan,
    server: Guarded,
    /// The next one, and the pipe that it waits at.
    next: Option<(Guarded, PathBuf)>,
    address: String,
    mounts: u32,
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

/// A server of this memory, at this address.
fn server(plan: &Plan, kept: Option<&TempDir>, listen: &str) -> Invocation {
    let command = Invocation::new(plan.bin_dir.join("rfs-server"));
    let command = command.args(["--memory", &plan.memory.to_string(), "--listen", listen]);
    match kept {
        Some(kept) => command.arg("--memory-dir").arg(kept.path()),
        None => command.arg("--prefault"),
    }
}

/// The same, once somebody writes a line to the pipe `go`.
fn standing_by(server: Invocation, go: &Path) -> Invocation {
    let Invocation { name, program, args } = server;
    let waiting = Invocation::new("sh").args(["-c", "echo standing by; read -r _ <\"$0\" && exec \"$@\""]);
    Invocation { name, ..waiting.arg(go).arg(program).args(args) }
}

/// Waits until a server is ready. Gives its address, with the port that it has got.
fn await_ready(plan: &Plan, server: &mut Guarded) -> Result<String> {
    let address = server.wait_output(&plan.interrupt, START, |said| {
        said.lines().find(|line| line.starts_with("ready:"))?;
        said.lines().find_map(|line| line.strip_prefix("listening on ")).map(str::to_owned)
    })?;
    Ok(address)
}

/// Kills a program, and waits for its end.
fn kill(program: &mut Guarded) -> Result<()> {
    let pid = Pid::from_raw(program.id() as i32).ok_or_else(|| Error::Wrong("no process".into()))?;
    kill_process(pid, Signal::KILL).map_err(|e| Error::io("SIGKILL")(e.into()))?;
    program.wait_end(START)?;
    Ok(())
}

impl Stand<'_> {
    /// Starts a server that has taken all its memory, so that it grows by nothing but what it keeps.
    pub(crate) fn start(plan: &Plan) -> Result<Stand<'_>> {
        Stand::start_with(plan, None)
    }

    /// Starts a server whose memory outlives it.
    pub(crate) fn start_kept(plan: &Plan) -> Result<Stand<'_>> {
        let kept = tempfile::Builder::new().prefix("rfs-reliability-").tempdir_in("/dev/shm");
        Stand::start_with(plan, Some(kept.map_err(Error::io("a directory in memory"))?))
    }

    fn start_with(plan: &Plan, kept: Option<TempDir>) -> Result<Stand<'_>> {
        let dir = tempfile::Builder::new().prefix("rfs-reliability-").tempdir();
        let dir = dir.map_err(Error::io("temporary directory"))?;
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.path(), open).map_err(Error::io("temporary directory"))?;
        let listen = match plan.provider.as_str() {
            "shm" => format!("unix:{}", dir.path().join("socket").display()),
            other => format!("{other}:127.0.0.1:0"),
        };
        let mut server = Guarded::spawn(&server(plan, kept.as_ref(), &listen), dir.path())?;
        let address = await_ready(plan, &mut server)?;
        Ok(Stand { plan, server, next: None, address, mounts: 0, kept, dir: Some(dir) })
    }

    /// Has the next server stand by. Whoever starts a program closes what he has open, in that, and to close a file of a mount waits for
    /// its server: so it is started while there is one.
    pub(crate) fn stand_by(&mut self) -> Result<()> {
        let dir = self.dir.as_ref().ok_or_else(|| Error::Wrong("the stand has ended".into()))?.path();
        let go = dir.join(format!("go{}", self.server.id()));
        mkfifoat(CWD, &go, Mode::RUSR | Mode::WUSR).map_err(|e| Error::io("a pipe")(e.into()))?;
        let server = server(self.plan, self.kept.as_ref(), &self.address);
        let mut next = Guarded::spawn(&standing_by(server, &go), dir)?;
        // It has closed all by the time that it says something.
        let is_there = |said: &str| said.contains("standing by").then_some(());
        next.wait_output(&self.plan.interrupt, START, is_there)?;
        self.next = Some((next, go));
        Ok(())
    }

    /// Kills the server.
    pub(crate) fn kill_server(&mut self) -> Result<()> {
        kill(&mut self.server)
    }

    /// Has the next server, which stands by, serve where the one before was.
    pub(crate) fn serve_again(&mut self) -> Result<()> {
        let next = self.next.take().ok_or_else(|| Error::Wrong("no server stands by".into()));
        let (mut server, go) = next?;
        fs::write(&go, "\n").map_err(Error::io("a pipe"))?;
        self.address = await_ready(self.plan, &mut server)?;
        self.server = server;
        Ok(())
    }

    /// Mounts it once more.
    pub(crate) fn mount(&mut self) -> Result<Mount> {
        self.mounts += 1;
        let dir = self.dir.as_ref().ok_or_else(|| Error::Wrong("the stand has ended".into()))?.path();
        let point = dir.join(format!("mount{}", self.mounts));
        fs::create_dir(&point).map_err(Error::io("mount point"))?;
        let command = Invocation::new(self.plan.bin_dir.join("rfs-fuse"))
            .arg(&self.address)
            .arg(&point)
            .args(["--provider", &self.plan.provider]);
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

    /// Kills the process behind it, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        kill(&mut self.fuse)
    }

    /// Unmounts it, which has to go well.
    pub(crate) fn unmount(mut self) -> Result<()> {
        unmount(&self.point)?;
        match self.fuse.wait_end(START)? {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.fuse.failure("does not end as it should").into()),
        }
    }
}

fn unmount(point: &Path) -> Result<()> {
    let command = Invocation::new("fusermount3").args(["-u", "-z", "--"]).arg(point);
    let mut child = Guarded::spawn(&command, Path::new("/"))?;
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
