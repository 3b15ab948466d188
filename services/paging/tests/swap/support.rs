//! An rfs-server, swap areas in its memory, and a program that is swapped out.

#![allow(missing_docs, unreachable_pub)] // The modules of the test use it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

pub const MIB: usize = 1 << 20;
/// Memory of the program, and the limit of its cgroup.
pub const MEMORY: usize = 96 * MIB;
pub const LIMIT: usize = 32 * MIB;
/// How long a step may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(100);
const PAUSE: Duration = Duration::from_millis(20);
/// How long the program fills and checks its memory in one of the tests.
pub const SECONDS: &str = "RFS_SWAP_SECONDS";
/// Name of the cgroup, for the child.
pub const CGROUP: &str = "RFS_PAGING_TEST_CGROUP";

/// Writes to a file that the kernel has made.
pub fn write_existing(path: &Path, text: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// A cgroup that limits memory, of version 2 or 1.
pub struct Cgroup {
    folder: PathBuf,
    /// Name of the file with the limit.
    limit: &'static str,
}

impl Cgroup {
    pub fn make() -> Option<Cgroup> {
        let name = format!("rfs-paging-test-{}", std::process::id());
        let versions = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        for (root, limit) in versions {
            let folder = Path::new(root).join(&name);
            // Fails if the controller is not there, or is enabled already.
            write_existing(&Path::new(root).join("cgroup.subtree_control"), "+memory").ok();
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let cgroup = Cgroup { folder, limit };
            // The folder of version 2 may be a plain file system.
            if cgroup.set_limit(LIMIT).is_ok() {
                println!("limited by {}", cgroup.folder.join(limit).display());
                return Some(cgroup);
            }
        }
        None
    }

    /// Has an allocation beyond the limit fail, instead of ending a program. Returns false if the
    /// kernel cannot.
    pub fn spare_programs(&self) -> bool {
        write_existing(&self.folder.join("memory.oom_control"), "1").is_ok()
    }

    pub fn set_limit(&self, bytes: usize) -> std::io::Result<()> {
        write_existing(&self.folder.join(self.limit), &bytes.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.folder).ok();
    }
}

/// A child that ends with the test. A swap area is undone.
pub struct Running(pub Child);

impl Running {
    pub fn send(&self, signal: i32) {
        // SAFETY: The child runs, or has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Waits for the end. A busy machine has time for it.
    pub fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                println!("process {} ended after {:?}: {status}", self.0.id(), begin.elapsed());
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "process {} does not end", self.0.id());
            std::thread::sleep(PAUSE);
        }
    }

    /// Stops the process until the result is dropped.
    pub fn stopped(&self) -> Stopped {
        self.send(libc::SIGSTOP);
        Stopped(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let begin = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            self.send(libc::SIGCONT);
            let signal = if begin.elapsed() > PATIENCE { libc::SIGKILL } else { libc::SIGTERM };
            self.send(signal);
            std::thread::sleep(PAUSE);
        }
    }
}

/// A process that is stopped, and goes on when this is dropped.
pub struct Stopped(u32);

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: The process is a child that has not been waited for.
        unsafe { libc::kill(self.0 as i32, libc::SIGCONT) };
    }
}

pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_rfs-paging")).with_file_name(name)
}

pub fn spawn(command: &mut Command) -> Running {
    // SAFETY: `prctl` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    Running(command.spawn().expect("a program"))
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// How the areas reach the server.
#[derive(Clone, Copy)]
pub enum Way {
    /// Shared memory, which outlives the server.
    Shm,
    /// TCP, with these seconds for an operation.
    Tcp(u32),
}

/// A server, and the right to use swap areas. Nothing is left of them after its end.
pub struct Fixture {
    pub server: Running,
    way: Way,
    address: String,
    _lines: BufReader<ChildStdout>,
    _dir: tempfile::TempDir,
    _alone: fs::File,
}

impl Fixture {
    pub fn start(way: Way) -> Fixture {
        let alone = fs::File::create("/run/rfs-paging-test.lock").expect("a lock");
        rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        let dir = tempfile::tempdir().expect("a folder");
        let listen = match way {
            Way::Shm => format!("unix:{}", dir.path().join("rfs.sock").display()),
            Way::Tcp(_) => "tcp:127.0.0.1:0".to_owned(),
        };
        let mut server = Command::new(program("rfs-server"));
        server.args(["--memory", "192m", "--listen", &listen, "--allow-without-keys"]);
        let mut server = spawn(server.stdout(Stdio::piped()));
        let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe"));
        let address = line_with(&mut lines, "listening on ");
        let address = address.trim().trim_start_matches("listening on ").to_owned();
        line_with(&mut lines, "ready:");
        Fixture { server, way, address, _lines: lines, _dir: dir, _alone: alone }
    }

    /// Returns the command that makes an area.
    pub fn command(&self, size: &str) -> Command {
        let mut command = Command::new(program("rfs-paging"));
        command.args(["swapon", "--size", size, "--server", &self.address]).stderr(Stdio::piped());
        if let Way::Tcp(seconds) = self.way {
            let seconds = seconds.to_string();
            command.args(["--", "--provider", "tcp", "--timeout", &seconds, "--connect-timeout", &seconds]);
        }
        command
    }

    pub fn swapon(&self, size: &str) -> (Running, BufReader<ChildStdout>) {
        let mut child = spawn(self.command(size).stdout(Stdio::piped()));
        let lines = BufReader::new(child.0.stdout.take().expect("a pipe"));
        (child, lines)
    }

    /// Starts an area, and returns its process, its device and its folder.
    pub fn area(&self) -> (Running, String, PathBuf) {
        let (child, mut lines) = self.swapon("128m");
        let mut device = None;
        while device.is_none() {
            let mut line = String::new();
            lines.read_line(&mut line).expect("a line");
            print!("{line}");
            assert!(!line.is_empty(), "no area: {}", rest(&mut { child }));
            device = line.starts_with("ready:").then(|| {
                let word = line.split(' ').find(|word| word.starts_with("/dev/loop"));
                word.expect("a device").to_owned()
            });
        }
        // The area ends in order also if its output is closed.
        drop(lines);
        let folder = folder(&child).expect("a folder");
        (child, device.expect("a device"), folder)
    }
}

impl Drop for Fixture {
    /// Undoes the areas that a failed test has left.
    fn drop(&mut self) {
        let entries = fs::read_dir("/run/rfs-paging").into_iter().flatten().flatten();
        if entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("swap-")) {
            println!("left: {:?}", swapoff());
        }
    }
}

/// Returns the errors that a process printed until its end.
pub fn rest(child: &mut Running) -> String {
    let mut text = String::new();
    child.0.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
    text
}

/// Returns the lines that a process printed until its end.
pub fn output(child: &mut Running) -> String {
    let mut text = String::new();
    child.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    text
}

/// Returns the folder of a process' area.
pub fn folder(child: &Running) -> Option<PathBuf> {
    let start = format!("swap-{}-", child.0.id());
    let entries = fs::read_dir("/run/rfs-paging").ok()?;
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)))
}

pub fn is_swap(device: &str) -> bool {
    fs::read_to_string("/proc/swaps").expect("a list").lines().any(|line| line.starts_with(device))
}

/// Checks that nothing of an area is left.
pub fn check_undone(device: Option<&str>, folder: &Path) {
    if let Some(device) = device {
        assert!(!is_swap(device), "{device} is swap");
        let name = device.trim_start_matches("/dev/");
        let file = format!("/sys/block/{name}/loop/backing_file");
        let file = fs::read_to_string(file).unwrap_or_default();
        assert!(!file.contains("rfs-paging"), "{device} has {file}");
    }
    assert!(!folder.exists(), "{}", folder.display());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("a list");
    assert!(!mounts.contains(folder.to_str().expect("text")), "{mounts}");
}

/// Returns the bytes of an area that are in use.
pub fn swap_used(device: &str) -> usize {
    let text = fs::read_to_string("/proc/swaps").expect("a list");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(device)).expect("an area");
    let used: usize = line.split_whitespace().nth(3).expect("a column").parse().expect("a number");
    used << 10
}

/// Returns the command that ends all areas.
pub fn swapoff_command() -> Command {
    let mut command = Command::new(program("rfs-paging"));
    command.arg("swapoff").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn swapoff() -> Output {
    swapoff_command().output().expect("the program")
}

/// Runs a function of `main.rs` in the cgroup, until it waits with most of its memory swapped out.
/// With `is_long` that takes the seconds in [`SECONDS`].
pub fn in_the_cgroup(cgroup: &Cgroup, is_long: bool) -> (Running, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "fill_more_than_the_cgroup_holds", "--ignored", "--nocapture"])
        .env(CGROUP, &cgroup.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if !is_long {
        command.env_remove(SECONDS);
    }
    let mut child = spawn(&mut command);
    let mut lines = BufReader::new(child.0.stdout.take().expect("a pipe"));
    line_with(&mut lines, "FILLED");
    (child, lines)
}

/// Returns the next line with a word.
pub fn line_with(lines: &mut impl BufRead, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("text") > 0, "the child ended without {word}");
        print!("{line}");
        if line.contains(word) {
            return line;
        }
    }
}

/// Returns a figure in kB from the status of a process.
pub fn status(process: u32, name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("a status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim_end_matches(" kB").trim().parse().expect("a number")
}

/// Says that the test, or a part of it, cannot run here. Where it must run, it fails.
pub fn not_run(why: &str) {
    assert!(std::env::var_os("RFS_REQUIRE_PAGING_TOOLS").is_none(), "not run: {why}");
    println!("not run: {why}");
}

/// Says why the test cannot run here.
pub fn obstacle() -> Option<String> {
    // SAFETY: The call has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("only root can add swap areas".into());
    }
    for path in ["/dev/fuse", "/dev/loop-control", "/proc/swaps"] {
        if !Path::new(path).exists() {
            return Some(format!("{path} is missing"));
        }
    }
    for name in ["rfs-server", "rfs-fuse"] {
        if !program(name).exists() {
            return Some(format!("{} is not built", program(name).display()));
        }
    }
    None
}
