//! Unchanged programs run with paged memory: a C program and Python.
//!
//! Own program: a failed test may be repeated, unlike those of `lost_lenders`.

mod support;

use std::{
    env, fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rfs_paging::{Lender, LenderOptions, PagerReport, running_pagers};
use support::{Running, counter, launcher, library, not_run};
use tempfile::TempDir;

struct Fixture {
    dir: TempDir,
    lender: Lender,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with_memory(128 << 20)
    }

    /// Returns a lender with this much memory.
    fn with_memory(memory: u64) -> Fixture {
        let dir = tempfile::tempdir().expect("a folder");
        let address = format!("unix:{}", dir.path().join("lend.sock").display()).parse().expect("an address");
        let lender = Lender::listen(&[address], &LenderOptions::new(memory)).expect("a lender");
        Fixture { dir, lender }
    }

    /// Returns a program with 1 MiB of local memory.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("RFS_PAGING_LOCAL", "1048576")
            .env("RFS_PAGING_SERVERS", self.lender.addresses()[0].to_string())
            .env("RFS_PAGING_STATS", "1");
        command
    }

    /// Runs a program with 1 MiB of local memory, and returns its output.
    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().expect("the program")
    }
}

/// Checks that a program succeeded, and that its memory was paged.
fn check(output: &Output, expected: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    assert_eq!(out.trim(), expected, "{err}");
    assert!(counter(&err, "pages_written") > 1000, "{err}");
    assert!(counter(&err, "max_resident") <= 256, "{err}");
    assert_eq!(counter(&err, "over_budget"), 0, "{err}");
    assert_eq!(counter(&err, "pages_lost"), 0, "{err}");
}

/// Returns a lender, and the compiled C program, or `None` if there is no compiler.
fn c_program() -> Option<(Fixture, PathBuf)> {
    if not_run("gcc") {
        return None;
    }
    let fixture = Fixture::new();
    let program = compile(&fixture);
    Some((fixture, program))
}

/// Compiles the C program.
fn compile(fixture: &Fixture) -> PathBuf {
    support::compile(fixture.dir.path())
}

#[test]
fn a_running_program_reports_its_counters_until_it_ends() {
    let Some((fixture, program)) = c_program() else { return };
    let mut program = Running::start(fixture.command(&program).arg("wait"));
    assert_eq!(program.line(), "filled");
    let pid = program.0.id();
    let find = || running_pagers().into_iter().flatten().find(|report: &PagerReport| report.pid == pid);
    let report = find().expect("a report");
    assert_eq!((report.program.as_str(), report.local_budget), ("program", 1 << 20));
    assert_eq!(report.servers, [fixture.lender.addresses()[0].to_string()]);
    assert!(report.counters.faults > 1000 && report.counters.evictions > 1000, "{report:?}");
    // As in `rfs-paging status`.
    let names: Vec<&str> = report.counters.named().iter().map(|(name, _)| *name).collect();
    for name in ["faults", "hits", "evictions", "bytes_written", "merged", "work_requests", "doorbells"] {
        assert!(names.contains(&name), "{names:?}");
    }
    program.go_on();
    assert_eq!(program.line(), "ok");
    assert!(program.0.wait().expect("its end").success());
    // The program has removed its socket: no report finds a dead one.
    let folder = fs::read_dir("/run/rfs-paging").into_iter().flatten().flatten();
    let start = format!("pager-{pid}-");
    let left = folder.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start)).count();
    assert_eq!((left, find()), (0, None));
}

/// Catches a fault that is not repeated after a signal has interrupted it. Also catches handlers
/// that run on a thread of the pager: the process would stop.
#[test]
fn signal_handlers_load_from_paged_memory_at_any_moment() {
    let Some((fixture, program)) = c_program() else { return };
    check(&fixture.run(&program, &["signals"]), "ok");
}

/// The lender of the test below.
#[test]
#[ignore = "part of a_program_that_waits_for_a_stopped_lender_can_be_killed"]
fn lend_until_the_end_of_the_input() {
    let address = "127.0.0.1:0".parse().expect("an address");
    let options = LenderOptions::new(64 << 20).allow_without_keys(true);
    let lender = Lender::listen(&[address], &options).expect("a lender");
    println!("\nlending at {}", lender.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
}

/// Catches a fault that cannot be interrupted: the process would stay until its lender answers.
#[test]
fn a_program_that_waits_for_a_stopped_lender_can_be_killed() {
    let Some((fixture, program)) = c_program() else { return };
    let arguments = ["--exact", "lend_until_the_end_of_the_input", "--ignored", "--nocapture"];
    let mut lender = Running::start(Command::new(env::current_exe().expect("this test")).args(arguments));
    let address = loop {
        let line = lender.line();
        if let Some(address) = line.strip_prefix("lending at ") {
            break address.to_owned();
        }
    };
    let mut command = fixture.command(&program);
    command.arg("wait").env("RFS_PAGING_SERVERS", address).env("RFS_PAGING_SWITCHES", "provider=tcp");
    let mut program = Running::start(&mut command);
    assert_eq!(program.line(), "filled");
    lender.send(libc::SIGSTOP);
    program.go_on();
    std::thread::sleep(Duration::from_millis(500));
    assert!(matches!(program.0.try_wait(), Ok(None)), "the program waits for a page");
    let begin = Instant::now();
    program.0.kill().expect("a running program");
    program.0.wait().expect("its end");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    // It was in the middle of its memory.
    assert_eq!(program.line(), "");
}

#[test]
fn a_program_forks_while_its_threads_allocate() {
    let Some((fixture, program)) = c_program() else { return };
    let output = fixture.run(&program, &["forks"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok", "{output:?}");
}

#[test]
fn no_memory_of_a_child_of_fork_takes_the_place_of_small_blocks() {
    let Some((fixture, program)) = c_program() else { return };
    let mut command = fixture.command(&program);
    let output = command.arg("small-forks").env("RFS_PAGING_SMALL", "268435456").output();
    let output = output.expect("the program");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok", "{output:?}");
}

#[test]
fn small_allocations_are_paged_if_the_settings_say_so() {
    let Some((fixture, program)) = c_program() else { return };
    let output = fixture.command(&program).arg("small").env("RFS_PAGING_SMALL", "268435456").output();
    check(&output.expect("the program"), "ok");
    let output = fixture.run(&program, &["small"]);
    assert!(output.status.success(), "{output:?}");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("rfs-paging: regions 0, 0 left"), "{err}");
}

/// A redis server that ends with the test.
struct Redis {
    server: Child,
    dir: PathBuf,
}

impl Redis {
    fn start(fixture: &Fixture) -> Redis {
        let dir = fixture.dir.path().to_owned();
        let mut command = fixture.command(Path::new("redis-server"));
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(dir.join("redis.sock"));
        let server = command
            .env("RFS_PAGING_SMALL", "1073741824")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("redis");
        let redis = Redis { server, dir };
        for _ in 0..500 {
            if redis.run("PING\n").trim() == "PONG" {
                return redis;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("redis does not answer");
    }

    /// Runs commands, and returns their replies.
    fn run(&self, commands: &str) -> String {
        let file = self.dir.join("commands");
        fs::write(&file, commands).expect("a file");
        let mut cli = Command::new("redis-cli");
        cli.arg("-s").arg(self.dir.join("redis.sock")).stdin(fs::File::open(&file).expect("a file"));
        String::from_utf8_lossy(&cli.output().expect("redis-cli").stdout).into_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

#[test]
fn redis_keeps_all_values() {
    if not_run("redis-server") || not_run("redis-cli") {
        return;
    }
    let fixture = Fixture::new();
    let mut redis = Redis::start(&fixture);
    let value = |number: u32| format!("{number}-{}", "x".repeat(number as usize % 700));
    let sets: String = (0..30_000).map(|number| format!("SET key:{number} {}\n", value(number))).collect();
    assert_eq!(redis.run(&sets).matches("OK").count(), 30_000);
    let gets: String = (0..30_000).map(|number| format!("GET key:{number}\n")).collect();
    let expected: String = (0..30_000).map(|number| value(number) + "\n").collect();
    assert!(redis.run(&gets) == expected, "other values than were stored");
    redis.run("SHUTDOWN NOSAVE\n");
    let mut err = String::new();
    redis.server.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    assert!(redis.server.wait().expect("its end").success(), "{err}");
    assert!(counter(&err, "pages_written") > 1000 && counter(&err, "over_budget") == 0, "{err}");
}

#[test]
fn a_c_program_finds_all_its_bytes() {
    let Some((fixture, program)) = c_program() else { return };
    let output = fixture.run(&program, &[]);
    check(&output, "ok");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains(" 0 left, unsupported calls 5\n"), "{err}");
}

/// Catches calls that change paged memory behind the pager, pages that never leave again, and
/// large memory that stays local without a trace. Each call has its own process, so a call that is
/// counted twice hides no other one.
#[test]
fn unsupported_calls_are_counted_and_change_no_paged_memory() {
    let Some((fixture, program)) = c_program() else { return };
    let names = Command::new(&program).arg("unsupported").output().expect("the program").stdout;
    let names = String::from_utf8(names).expect("text");
    assert!(names.lines().count() > 30, "{names}");
    for name in names.lines() {
        let output = fixture.run(&program, &["unsupported", name]);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {:?} {err}", output.status);
        let counts = "rfs-paging: regions 1, 0 left, unsupported calls 1\n";
        assert!(err.contains(counts), "{name}: {err}");
        assert!(counter(&err, "pages_written") > 256 && counter(&err, "over_budget") == 0, "{name}: {err}");
    }
}

/// Catches a child that reads other bytes than its parent has, instead of an end by SIGSEGV.
#[test]
fn a_child_that_reads_memory_of_its_parent_ends_by_sigsegv() {
    let Some((fixture, program)) = c_program() else { return };
    check(&fixture.run(&program, &["children"]), "ok");
    let output =
        fixture.command(&program).arg("small-children").env("RFS_PAGING_SMALL", "268435456").output();
    check(&output.expect("the program"), "ok");
}

/// Catches a full heap that is not counted.
#[test]
fn small_allocations_beyond_their_space_are_local_and_counted() {
    let Some((fixture, program)) = c_program() else { return };
    // 64 MiB of address space have one slab for each of 52 lengths, and few more.
    let mut command = fixture.command(&program);
    let output = command.arg("many-small").env("RFS_PAGING_SMALL", "67108864").output();
    let output = output.expect("the program");
    check(&output, "ok");
    let err = String::from_utf8_lossy(&output.stderr);
    let (_, counted) = err.split_once("unsupported calls ").expect("a count");
    let counted: u64 = counted.lines().next().and_then(|number| number.parse().ok()).expect("a number");
    // 100 blocks of 1 MiB together, of which 63 or 64 fit.
    assert!((36 * 1024..38 * 1024).contains(&counted), "{err}");
}

#[test]
fn a_program_larger_than_its_full_lender_keeps_all_bytes() {
    if not_run("gcc") {
        return;
    }
    let fixture = Fixture::with_memory(4 << 20);
    let output = fixture.run(&compile(&fixture), &["much"]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.trim() == "ok", "{:?} {err}", output.status);
    assert!(err.contains("rfs-paging: no lender has room: "), "{err}");
    assert!(counter(&err, "over_budget") > 0 && counter(&err, "max_resident") > 4000, "{err}");
    assert_eq!((counter(&err, "chunks"), counter(&err, "pages_lost")), (0, 0), "{err}");
}

#[test]
fn the_launcher_runs_a_program_and_reports_errors_before_it_does() {
    let Some(launcher) = launcher() else { return };
    let fixture = Fixture::new();
    let address = fixture.lender.addresses()[0].to_string();
    let run = |server: &str, program: &[&str]| {
        let mut command = Command::new(&launcher);
        command.args(["run", "--local", "1m", "--stats", "--library"]).arg(library());
        command.args(["--server", server, "--"]).args(program).output().expect("the launcher")
    };
    let script = "data = bytearray(b'x') * (16 << 20); print(data.count(b'x'))";
    if !not_run("python3") {
        check(&run(&address, &["python3", "-c", script]), "16777216");
    }
    for (server, program) in [("unix:/nonexistent/lend.sock", "true"), (&address, "/nonexistent/program")] {
        let output = run(server, &[program]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("rfs-paging: "), "{output:?}");
    }
}

#[test]
fn python_sorts_a_list_that_does_not_fit() {
    if not_run("python3") {
        return;
    }
    let fixture = Fixture::new();
    let script = "import hashlib, random, subprocess, sys\n\
        random.seed(1)\n\
        numbers = [random.random() for _ in range(40000)]\n\
        numbers.sort()\n\
        assert all(a <= b for a, b in zip(numbers, numbers[1:]))\n\
        data = bytearray(20 << 20)\n\
        for at in range(0, len(data), 4096): data[at] = at // 4096 % 251\n\
        assert all(data[at] == at // 4096 % 251 for at in range(0, len(data), 4096))\n\
        assert subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout == b'1\\n'\n\
        print(hashlib.sha256(data).hexdigest()[:8])\n";
    let expected = Command::new("python3").args(["-c", script]).output().expect("python3");
    let expected = String::from_utf8_lossy(&expected.stdout).trim().to_owned();
    assert_eq!(expected.len(), 8);
    check(&fixture.run(Path::new("python3"), &["-c", script]), &expected);
}

#[test]
fn a_program_without_a_server_runs_with_local_memory() {
    let output = Command::new("sort")
        .arg("--version")
        .env("LD_PRELOAD", library())
        .env("RFS_PAGING_LOCAL", "1048576")
        .env("RFS_PAGING_MIN_SIZE", "65536")
        .env("RFS_PAGING_SERVERS", "unix:/nonexistent/lend.sock")
        .output()
        .expect("sort");
    assert!(output.status.success(), "{output:?}");
}
