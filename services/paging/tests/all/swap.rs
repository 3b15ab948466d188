//! A program whose memory cgroup is smaller than its memory swaps to an rfs-server.
//!
//! One test, because `rfs-paging swapoff` ends all areas of the machine. RFS_SWAP_SECONDS makes it
//! longer. With RFS_REQUIRE_PAGING_TOOLS a test that cannot run fails.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;
/// Memory of the program, and the limit of its cgroup.
const MEMORY: usize = 96 * MIB;
const LIMIT: usize = 32 * MIB;
/// Name of the cgroup, for the child.
const CGROUP: &str = "RFS_PAGING_TEST_CGROUP";

/// Writes to a file that the kernel has made.
fn write_existing(path: &Path, text: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// A cgroup that limits memory, of version 2 or 1.
struct Cgroup {
    folder: PathBuf,
    /// Name of the file with the limit.
    limit: &'static str,
}

impl Cgroup {
    fn make() -> Option<Cgroup> {
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

    fn set_limit(&self, bytes: usize) -> std::io::Result<()> {
        write_existing(&self.folder.join(self.limit), &bytes.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.folder).ok();
    }
}

/// A child that ends with the test. A swap area is undone.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let begin = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if begin.elapsed() > Duration::from_secs(10) {
                self.0.kill().ok();
            } else {
                // SAFETY: The child has not been waited for.
                unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_rfs-paging")).with_file_name(name)
}

fn spawn(command: &mut Command) -> Running {
    // SAFETY: `prctl` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    Running(command.spawn().expect("a program"))
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Fixture {
    dir: tempfile::TempDir,
    _server: Running,
}

impl Fixture {
    fn start() -> Fixture {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("rfs.sock");
        let listen = format!("unix:{}", socket.display());
        let mut server = Command::new(program("rfs-server"));
        let server = spawn(server.args(["--memory", "192m", "--listen", &listen]).stdout(Stdio::null()));
        wait_for("the server", || socket.exists());
        Fixture { dir, _server: server }
    }

    fn swapon(&self, size: &str) -> (Running, BufReader<ChildStdout>) {
        let address = format!("unix:{}", self.dir.path().join("rfs.sock").display());
        let mut command = Command::new(program("rfs-paging"));
        command.args(["swapon", "--size", size, "--server", &address]).stdout(Stdio::piped());
        let mut child = spawn(command.stderr(Stdio::piped()));
        let lines = BufReader::new(child.0.stdout.take().expect("a pipe"));
        (child, lines)
    }

    /// Starts an area, and returns its process, its device and its folder.
    fn area(&self) -> (Running, String, PathBuf) {
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

/// The errors that a process printed until its end.
fn rest(child: &mut Running) -> String {
    let mut text = String::new();
    child.0.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
    text
}

/// Returns the folder of a process' area.
fn folder(child: &Running) -> Option<PathBuf> {
    let start = format!("swap-{}-", child.0.id());
    let entries = fs::read_dir("/run/rfs-paging").ok()?;
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)))
}

fn is_swap(device: &str) -> bool {
    fs::read_to_string("/proc/swaps").expect("a list").lines().any(|line| line.starts_with(device))
}

/// Checks that nothing of an area is left.
fn check_undone(device: Option<&str>, folder: &Path) {
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

fn swapoff() -> Output {
    Command::new(program("rfs-paging")).arg("swapoff").output().expect("the program")
}

fn send(child: &Running, signal: i32) {
    // SAFETY: The child runs, or has not been waited for.
    assert_eq!(unsafe { libc::kill(child.0.id() as i32, signal) }, 0);
}

/// Runs the function below in the cgroup, until it waits with most of its memory swapped out.
fn in_the_cgroup(cgroup: &Cgroup) -> (Running, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "swap::fill_more_than_the_cgroup_holds", "--ignored", "--nocapture"])
        .env(CGROUP, &cgroup.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = spawn(&mut command);
    let mut lines = BufReader::new(child.0.stdout.take().expect("a pipe"));
    line_with(&mut lines, "FILLED");
    (child, lines)
}

/// Returns the next line with a word.
fn line_with(lines: &mut impl BufRead, word: &str) -> String {
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
fn status(process: u32, name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("a status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim_end_matches(" kB").trim().parse().expect("a number")
}

/// Returns true if this process, and so rfs-fuse, has CAP_SYS_RESOURCE.
fn may_spare_from_the_oom_killer() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let text = fs::read_to_string("/proc/self/status").expect("a status");
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
    u64::from_str_radix(line.trim(), 16).expect("a mask") >> CAP_SYS_RESOURCE & 1 == 1
}

/// Checks that the mount of an area neither is swapped out nor can be.
fn check_mount_is_locked(area: &Running) {
    let children = Command::new("pgrep").args(["-P", &area.0.id().to_string()]).output().expect("pgrep");
    let fuse: u32 = String::from_utf8_lossy(&children.stdout).trim().parse().expect("one child");
    assert!(status(fuse, "VmLck:") > 0, "its memory is not locked");
    assert_eq!(status(fuse, "VmSwap:"), 0);
    if may_spare_from_the_oom_killer() {
        let score = fs::read_to_string(format!("/proc/{fuse}/oom_score_adj")).expect("a score");
        assert_eq!(score.trim(), "-1000");
    } else {
        println!("not checked: oom_score_adj, because there is no CAP_SYS_RESOURCE");
    }
}

#[test]
#[ignore = "part of a_program_in_a_small_cgroup_swaps_to_a_server"]
fn fill_more_than_the_cgroup_holds() {
    let Some(cgroup) = std::env::var_os(CGROUP) else { return };
    fs::write(Path::new(&cgroup).join("cgroup.procs"), std::process::id().to_string()).expect("a member");
    let mut memory = vec![0_u64; MEMORY / 8];
    let value = |round: u64, at: usize| (at as u64 ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let seconds = std::env::var("RFS_SWAP_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let begin = Instant::now();
    let mut round = 0;
    while round < 3 || begin.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        memory.iter_mut().enumerate().for_each(|(at, word)| *word = value(round, at));
        let wrong = memory.iter().enumerate().position(|(at, word)| *word != value(round, at));
        assert_eq!(wrong, None, "round {round}");
    }
    println!("{round} rounds");
    println!("FILLED");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("text");
    let wrong = memory.iter().enumerate().position(|(at, word)| *word != value(round, at));
    assert_eq!((wrong, line.as_str()), (None, "check\n"), "round {round}");
    println!("CHECKED");
}

/// Says that the test, or a part of it, cannot run here. Where it must run, it fails.
fn not_run(why: &str) {
    assert!(std::env::var_os("RFS_REQUIRE_PAGING_TOOLS").is_none(), "not run: {why}");
    println!("not run: {why}");
}

/// Says why the test cannot run here.
fn obstacle() -> Option<String> {
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

/// Sends signals that are none of the program's, or that its mount leaves to it.
fn check_signals_leave_the_area(child: &mut Running, device: &str) {
    // A service manager sends the signal to all processes of a service.
    let fuse = Command::new("pkill").args(["-TERM", "-P", &child.0.id().to_string()]).status();
    assert!(fuse.expect("pkill").success());
    // Signals without a meaning for the program.
    send(child, libc::SIGUSR1);
    send(child, libc::SIGUSR2);
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_swap(device) && matches!(child.0.try_wait(), Ok(None)), "the area stays");
}

#[test]
fn a_program_in_a_small_cgroup_swaps_to_a_server() {
    if let Some(obstacle) = obstacle() {
        not_run(&obstacle);
        return;
    }
    let fixture = Fixture::start();

    // More than the server has: an error, and nothing is left.
    let (mut child, _lines) = fixture.swapon("1g");
    assert_eq!(child.0.wait().expect("its end").code(), Some(1));
    let text = rest(&mut child);
    assert!(text.contains("rfs-paging: cannot reserve space at the server for"), "{text}");
    assert_eq!(folder(&child), None);

    let (mut child, device, area_folder) = fixture.area();
    let cgroup = Cgroup::make();
    let program = cgroup.as_ref().map(in_the_cgroup);
    match &program {
        Some((program, _)) => {
            let swapped = status(program.0.id(), "VmSwap:");
            println!("{} MiB of {} are swapped out", swapped >> 10, MEMORY / MIB);
            assert!(swapped << 10 > MEMORY / 2);
        }
        None => not_run("a program in a cgroup, because there is no memory controller"),
    }
    check_mount_is_locked(&child);
    check_signals_leave_the_area(&mut child, &device);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("a list");
    assert!(mounts.contains(area_folder.to_str().expect("text")), "{mounts}");
    // The pages of a program that runs come back.
    cgroup.iter().for_each(|cgroup| cgroup.set_limit(4 * MEMORY).expect("a new limit"));
    send(&child, libc::SIGHUP);
    assert!(child.0.wait().expect("its end").success(), "{}", rest(&mut child));
    check_undone(Some(&device), &area_folder);
    if let Some((mut program, mut lines)) = program {
        assert_eq!(status(program.0.id(), "VmSwap:"), 0);
        program.0.stdin.take().expect("a pipe").write_all(b"check\n").expect("a reader");
        line_with(&mut lines, "CHECKED");
        assert!(program.0.wait().expect("its end").success());
    }
    drop(cgroup);

    // A process that runs, and one that was killed.
    let (mut child, device, area_folder) = fixture.area();
    let output = swapoff();
    assert!(output.status.success(), "{output:?}");
    assert!(child.0.wait().expect("its end").success());
    check_undone(Some(&device), &area_folder);
    let (mut child, device, area_folder) = fixture.area();
    send(&child, libc::SIGKILL);
    child.0.wait().expect("its end");
    assert!(is_swap(&device));
    let output = swapoff();
    assert!(output.status.success(), "{output:?}");
    check_undone(Some(&device), &area_folder);
    assert_eq!(swapoff().status.code(), Some(1), "there is no area");

    // The mount ends: so does the area.
    let (mut child, device, area_folder) = fixture.area();
    let processes = Command::new("pkill").args(["-KILL", "-P", &child.0.id().to_string()]).status();
    assert!(processes.expect("pkill").success());
    assert_eq!(child.0.wait().expect("its end").code(), Some(1));
    let text = rest(&mut child);
    assert!(text.contains("the file is rfs-paging-swap-"), "{text}");
    check_undone(Some(&device), &area_folder);
}
