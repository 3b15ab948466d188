//! Servers in this process, and real mounts. A test fails if the environment does not support it.

pub(crate) mod aio;
pub(crate) mod bytes;
pub(crate) mod fuse_trace;
pub(crate) mod hang_report;
pub(crate) mod locking;
pub(crate) mod mapping;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod stores;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The provider of a mount.
pub(crate) use rdmabox::ProviderKind as Over;
use rdmabox::{Address, RdmaOptions};
use rfs_server::{Config, Prefault, Server};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time limit for everything that a test waits for.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A user without privileges.
pub(crate) const NOBODY: u32 = 65534;

/// Returns the providers to test: the list in RDMABOX_TEST_PROVIDERS (`shm,tcp,rdma`), all of
/// which must be available, or else all that this machine has.
pub(crate) fn providers() -> Vec<Over> {
    if let Ok(names) = std::env::var("RDMABOX_TEST_PROVIDERS") {
        return names.split(',').map(|name| name.trim().parse().expect("names of providers")).collect();
    }
    let mut providers = vec![Over::Shm, Over::Tcp];
    match rdmabox::provider::rdma::open(&RdmaOptions::default()) {
        Ok(_) => providers.push(Over::Rdma),
        Err(reason) => eprintln!("not run over rdma: {reason}"),
    }
    providers
}

/// Returns true if servers use checksums: RFS_TEST_CHECKSUM requests that for all tests.
pub(crate) fn checked() -> bool {
    std::env::var_os("RFS_TEST_CHECKSUM").is_some()
}

/// Returns true if tests take their full size: RFS_TEST_LONG requests that, and ci/soak sets it.
/// Otherwise tests of many files, rounds or modes take a part.
pub(crate) fn long() -> bool {
    std::env::var_os("RFS_TEST_LONG").is_some()
}

/// Returns true if the processors are emulated, so that everything takes ten times as long:
/// `ci/guest/boot` sets RDMA_VM. Tests repeat less then.
pub(crate) fn emulated() -> bool {
    std::env::var_os("RDMA_VM").is_some()
}

/// Returns how often a test repeats: `all` times, or a tenth of it on emulated processors.
pub(crate) fn repeats(all: u64) -> u64 {
    if emulated() { all / 10 } else { all }
}

/// Errors of a call that was in flight when its mount's process was killed. The last one comes
/// from io_uring.
pub(crate) const KILLED: [Errno; 3] = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];

pub(crate) fn require_fuse() {
    assert!(Path::new("/dev/fuse").exists(), "this test mounts, and there is no /dev/fuse here");
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts and changes users, and has to be run as root"
    );
}

/// Opens the FUSE device to all users, as udev does, until dropped. Only one test at a time may
/// hold it.
pub(crate) struct OpenDevice {
    before: fs::Permissions,
    _alone: fs::File,
}

impl OpenDevice {
    pub(crate) fn new() -> OpenDevice {
        let alone = fs::File::open("/dev/fuse").expect("/dev/fuse");
        rustix::fs::flock(&alone, FlockOperation::LockExclusive).expect("locked");
        let before = alone.metadata().expect("/dev/fuse").permissions();
        fs::set_permissions("/dev/fuse", PermissionsExt::from_mode(0o666)).expect("chmod");
        OpenDevice { before, _alone: alone }
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        fs::set_permissions("/dev/fuse", self.before.clone()).ok();
    }
}

/// Creates a directory that every user may enter.
pub(crate) fn directory() -> TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// A server in this process. It allocates no memory ahead of need: that would take two fifths of
/// the processor time of a short test. Tests of programs have servers that do.
pub(crate) struct TestServer {
    pub(crate) inner: Server,
    pub(crate) dir: TempDir,
}

impl TestServer {
    pub(crate) fn new(memory: u64) -> TestServer {
        TestServer::with(memory, |_| {})
    }

    pub(crate) fn with(memory: u64, configure: impl FnOnce(&mut Config)) -> TestServer {
        require_fuse();
        hang_report::report_a_hang();
        let dir = directory();
        let host = || "127.0.0.1".to_owned();
        let mut listen =
            vec![Address::Unix(dir.path().join("socket")), Address::Tcp { host: host(), port: 0 }];
        if providers().contains(&Over::Rdma) {
            listen.push(Address::Rdma { host: host(), port: 0 });
        }
        TestServer::start(dir, listen, memory, configure)
    }

    fn start(
        dir: TempDir,
        listen: Vec<Address>,
        memory: u64,
        configure: impl FnOnce(&mut Config),
    ) -> TestServer {
        let mut config = Config {
            listen,
            prefault: Prefault::Never,
            checksum: checked(),
            allow_without_keys: true,
            allow_mixed_atomics: true,
            ..Config::new(memory)
        };
        config.root.perm = 0o777;
        configure(&mut config);
        TestServer { inner: Server::start(config).expect("server"), dir }
    }

    /// Stops this server and starts its successor at the same addresses. The successor restores the
    /// state if both have a memory directory.
    pub(crate) fn again(self, memory: u64, configure: impl FnOnce(&mut Config)) -> TestServer {
        let TestServer { inner, dir } = self;
        let listen = inner.addresses().to_vec();
        drop(inner);
        TestServer::start(dir, listen, memory, configure)
    }

    pub(crate) fn address(&self, over: Over) -> String {
        let wanted = |a: &&Address| a.provider() == over;
        self.inner.addresses().iter().find(wanted).expect("listening on all").to_string()
    }

    /// Mounts on a new directory.
    pub(crate) fn mount(&self, over: Over, options: &[&str]) -> Mount {
        let dir = directory();
        let path = dir.path().to_owned();
        let mut mount = Mount::start(&self.address(over), &path, &provider(over, options));
        mount._dir = Some(dir);
        mount
    }

    /// Returns the number of handled requests.
    pub(crate) fn calls(&self) -> u64 {
        self.inner.stats().calls.iter().map(|(_, count)| count).sum()
    }

    /// Returns the number of handled requests of this name.
    pub(crate) fn handled(&self, request: &str) -> u64 {
        self.inner.stats().calls.iter().find(|(name, _)| name == request).expect("a request's name").1
    }

    /// Returns the number of requests that `act` causes. Excludes the requests that mounts make on
    /// their own: for recalls, forgotten unlinked inodes, and statistics.
    pub(crate) fn calls_of(&self, act: impl FnOnce()) -> u64 {
        let count = || {
            self.calls() - ["recalls", "forget", "stats"].map(|name| self.handled(name)).iter().sum::<u64>()
        };
        let before = count();
        act();
        count() - before
    }

    /// Waits until the server has only `open` files open. The kernel releases files in the
    /// background after close(2).
    pub(crate) fn all_closed_but(&self, open: u64) {
        let opens = || self.handled("open") + self.handled("create");
        assert!(eventually(|| opens() == self.handled("close") + open));
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.inner.statfs().blocks_free
    }
}

fn provider<'a>(over: Over, options: &[&'a str]) -> Vec<&'a str> {
    let name = match over {
        Over::Shm => "shm",
        Over::Tcp => "tcp",
        Over::Rdma => "rdma",
        other => panic!("no tests over {other}"),
    };
    // Emulated or busy processors can be slow.
    let mut all = vec!["--provider", name, "--connect-timeout", "60"];
    if !options.contains(&"--timeout") {
        all.extend(["--timeout", "60"]);
    }
    all.extend(options);
    all
}

/// Returns a command that runs one test of this program in another process. `module` is the
/// `module_path!()` of the test.
pub(crate) fn test_process(module: &str, test: &str) -> Command {
    let (_, module) = module.split_once("::").expect("a module of this program");
    let mut own = Command::new(std::env::current_exe().expect("this program"));
    own.args([&format!("{module}::{test}"), "--exact", "--nocapture"]);
    own
}

/// Runs a test in a process of its own. Returns true in that process.
///
/// A started program briefly has copies of all descriptors of its process. A file that another
/// test has closed therefore stays open until the program runs. `cargo test` runs many tests in
/// one process.
pub(crate) fn is_in_own_process(module: &str, test: &str) -> bool {
    const MARK: &str = "RFS_TEST_IN_OWN_PROCESS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let output = test_process(module, test).env(MARK, "1").output().expect("this program runs");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains(" 1 passed"),
        "{test} failed in its own process: {printed}"
    );
    false
}

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rfs-fuse"))
}

/// Reads the output of a program. Sends its greeting, and returns the rest.
fn read(output: impl Read + Send + 'static, greets: mpsc::Sender<String>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let (mut greets, mut rest) = (Some(greets), String::new());
        for line in BufReader::new(output).lines() {
            let line = line.expect("UTF-8") + "\n";
            match greets.take_if(|_| line.contains(" is mounted on ")) {
                // The test may have failed meanwhile.
                Some(greets) => drop(greets.send(line)),
                None => {
                    eprint!("{line}");
                    rest += &line;
                }
            }
        }
        rest
    })
}

/// A mount in the foreground, unmounted when dropped.
pub(crate) struct Mount {
    child: Child,
    pub(crate) point: PathBuf,
    pub(crate) greeting: String,
    stdout: Option<thread::JoinHandle<String>>,
    stderr: Option<thread::JoinHandle<String>>,
    _dir: Option<TempDir>,
}

impl Mount {
    /// Starts the program, and returns when it reports that the mount works.
    pub(crate) fn start(address: &str, point: &Path, options: &[&str]) -> Mount {
        Mount::spawn(program().args(options).arg(address).arg(point), point)
    }

    pub(crate) fn spawn(command: &mut Command, point: &Path) -> Mount {
        require_fuse();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rfs-fuse starts");
        Mount::adopt(child, point)
    }

    /// Returns the mount of a program with pipes as output when it reports that the mount works.
    pub(crate) fn adopt(mut child: Child, point: &Path) -> Mount {
        // With --stats-on-exit, the greeting is on stderr.
        let (greets, greeted) = mpsc::channel();
        let stdout = read(child.stdout.take().expect("piped"), greets.clone());
        let stderr = read(child.stderr.take().expect("piped"), greets);
        let greeting = greeted.recv().unwrap_or_default();
        let (stdout, stderr) = (Some(stdout), Some(stderr));
        let mut mount = Mount { child, point: point.to_owned(), greeting, stdout, stderr, _dir: None };
        if mount.greeting.is_empty() {
            let (status, said) = mount.wait();
            panic!("no mount: {status}: {said}");
        }
        mount
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("signal sent");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Waits for the end of the process. Returns its status, and stderr without the greeting.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let status = exit_of(&mut self.child);
        let said = self.stderr.take().map_or_else(String::new, |reader| reader.join().expect("reader"));
        (status, said)
    }

    /// Unmounts a mount with `--stats-on-exit`. Returns its statistics.
    pub(crate) fn report(mut self) -> serde_json::Value {
        self.signal(Signal::TERM);
        assert_eq!(self.wait().0.code(), Some(0));
        let said = self.stdout.take().expect("read once").join().expect("reader");
        serde_json::from_str(&said).expect("JSON")
    }

    /// Unmounts as [`report`](Self::report) does. Returns the counters with these names.
    pub(crate) fn counted<const N: usize>(self, names: [&str; N]) -> [u64; N] {
        let report = self.report();
        names.map(|name| report["counters"][name].as_u64().expect("a counter"))
    }

    /// Unmounts by SIGINT, as Ctrl-C does, and checks the exit status.
    pub(crate) fn unmount(mut self) {
        self.signal(Signal::INT);
        let (status, said) = self.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(!is_mounted(&self.point));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_running() {
            self.signal(Signal::TERM);
            if !eventually(|| self.child.try_wait().is_ok_and(|status| status.is_some())) {
                self.child.kill().ok();
            }
        }
        // Cleans up after a failed test.
        if is_mounted(&self.point) {
            Command::new("fusermount3").args(["-u", "-z", "--"]).arg(&self.point).status().ok();
        }
    }
}

/// Waits for a process to end.
pub(crate) fn exit_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    let ended = eventually(|| {
        status = child.try_wait().expect("child");
        status.is_some()
    });
    if !ended {
        child.kill().ok();
        panic!("the process does not end");
    }
    status.expect("ended")
}

/// Repeats `is_so` until it returns true. Returns false after [`WAIT_LIMIT`].
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + WAIT_LIMIT;
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Returns the name of each thread of a process, and its state: its letter in /proc/PID/stat.
pub(crate) fn threads(pid: Pid) -> Vec<(String, char)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let of = |stat: String| {
        // The name may contain spaces and parentheses.
        let (name, rest) = stat.rsplit_once(") ")?;
        Some((name.split_once('(')?.1.to_owned(), rest.chars().next()?))
    };
    stats.filter_map(of).collect()
}

/// Returns true if a file system is mounted on exactly this directory.
pub(crate) fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mount table");
    table.lines().any(|line| line.split(' ').nth(4) == point.to_str())
}

/// Stops a child of this process. Returns when none of its threads runs: after the signal a
/// thread may still finish its current operation. A thread `kick` of a mount over io_uring waits
/// for an answer of its own mount, and does not stop before. So the kernel may never report the
/// process as stopped (`waitid`).
pub(crate) fn stop(child: Pid) {
    kill_process(child, Signal::STOP).expect("signal sent");
    let is_stopped =
        |(name, state): &(String, char)| matches!(state, 'T' | 't') || *state == 'D' && name == "kick";
    assert!(eventually(|| threads(child).iter().all(is_stopped)), "{child} stops");
}

/// Runs a shell command as another user. Returns its exit code.
pub(crate) fn shell_as(uid: u32, directory: &Path, script: &str) -> Option<i32> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", script])
        .current_dir(directory)
        .uid(uid)
        .gid(uid)
        .spawn()
        .expect("sh");
    exit_of(&mut child).code()
}

/// Returns bytes that identify their offset.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (((i + seed) * 2_654_435_761) >> 13) as u8 | 1).collect()
}

/// Runs a test for every provider, with a server and a mount.
pub(crate) fn each(memory: u64, test: impl Fn(&TestServer, &Mount)) {
    for over in providers() {
        eprintln!("over {over:?}");
        let server = TestServer::new(memory);
        let mount = server.mount(over, &[]);
        test(&server, &mount);
        mount.unmount();
    }
}

/// Returns every combination of providers whose atomics are atomic towards each other. RDMA
/// atomics are so only among themselves.
pub(crate) fn combinations() -> impl Iterator<Item = (Over, Over)> {
    let all = [Over::Shm, Over::Tcp, Over::Rdma].map(|over| (over, over));
    let tested = providers();
    all.into_iter()
        .chain([(Over::Shm, Over::Tcp)])
        .filter(move |(first, second)| tested.contains(first) && tested.contains(second))
}

/// Runs a test for every combination, with a server and two mounts.
pub(crate) fn pairs(memory: u64, options: &[&str], test: impl Fn(&TestServer, &Mount, &Mount)) {
    numbered_pairs(memory, options, |_, server, a, b| test(server, a, b));
}

/// Runs a test as [`pairs`] does, and tells it the position of the combination.
pub(crate) fn numbered_pairs(
    memory: u64,
    options: &[&str],
    test: impl Fn(usize, &TestServer, &Mount, &Mount),
) {
    for (nth, (first, second)) in combinations().enumerate() {
        eprintln!("{first:?} and {second:?}");
        let server = TestServer::new(memory);
        let (a, b) = (server.mount(first, options), server.mount(second, options));
        test(nth, &server, &a, &b);
        b.unmount();
        a.unmount();
    }
}
