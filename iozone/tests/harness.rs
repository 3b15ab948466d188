//! Tests of the programs as processes: their output files, their error messages, and that nothing
//! remains after they end. `rfs-server` and `rfs-fuse` are shell scripts here;
//! `ci/trials/leftovers` repeats this with the real programs.
//!
//! Own program: the crate has no other, so it is linked once.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use iozone::plan::{
    compare::report::Comparison,
    run::report::Report,
    scaling::{report::Scaling, series::Series},
};
use measure::testing::{files, other_processes, text, wait_until};
use tempfile::TempDir;

/// The directories of a test: temporary files, "tmpfs", binaries and results.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        for name in ["tmp", "shm", "bin"] {
            fs::create_dir(world.path(name)).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        self.plan("run", &[&["--engine=builtin"], args].concat())
    }

    /// Returns a command of a comparison, for which neither fio nor peers are installed.
    fn compare(&self, args: &[&str]) -> Command {
        let mut command = self.plan("compare", &[&["--engine=builtin"], args].concat());
        command.env("PATH", self.path("bin"));
        command
    }

    /// Returns a command of the scaling plan.
    fn scaling(&self, args: &[&str]) -> Command {
        self.plan("scaling", args)
    }

    fn plan(&self, plan: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-iozone"));
        command
            .arg(plan)
            .env("TMPDIR", self.path("tmp"))
            .arg("--tmpfs-dir")
            .arg(self.path("shm"))
            .arg("--bin-dir")
            .arg(self.path("bin"))
            .arg("--out")
            .arg(self.path("out"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn files(&self, name: &str) -> Vec<PathBuf> {
        files(&self.path(name))
    }

    /// Asserts that the temporary directories are empty and that no process uses them.
    #[track_caller]
    fn assert_clean(&self) {
        assert_eq!(self.files("tmp"), [] as [PathBuf; 0]);
        assert_eq!(self.files("shm"), [] as [PathBuf; 0]);
        assert_eq!(processes_naming(self.0.path()), [] as [String; 0]);
    }
}

fn processes_naming(path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    other_processes()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok())
        .filter(|line| line.contains(path))
        .collect()
}

#[test]
fn a_run_on_tmpfs_writes_everything() {
    let world = World::new();
    let sizes = ["--record-sizes", "4k,64k", "--file-size", "1m", "--rounds", "2", "--threads", "2"];
    let out = world.run(&[&["--providers", "tmpfs,tmpfs"][..], &sizes].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let stdout = text(&out.stdout);
    assert!(stdout.contains("built-in engine"), "{stdout}");
    assert!(stdout.contains("| 64 KiB | tmpfs |"), "{stdout}");

    let files = world.files("out");
    let extensions: Vec<_> = files.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(extensions, ["json", "log", "svg"]);
    let report: Report = serde_json::from_str(&fs::read_to_string(&files[0]).unwrap()).unwrap();
    assert_eq!(report.targets.len(), 1);
    assert_eq!((report.threads, report.rounds, report.file_size), (2, 2, 1 << 20));
    assert_eq!(report.results.len(), 2 * 6);
    assert!(report.results.iter().all(|entry| entry.kib_per_s.len() == 2 && entry.median_kib_per_s > 0.0));
    world.assert_clean();
}

/// Starts a run, sends it a signal when a benchmark file of this name exists, and checks its exit
/// status.
fn signal_ends(world: &World, command: &mut Command, (signal, status): (&str, i32), name: &str) {
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let shm = world.path("shm");
    wait_until("a benchmark file", &mut child, || {
        let dirs = fs::read_dir(&shm).unwrap().filter_map(Result::ok);
        dirs.map(|dir| dir.path().join(name)).any(|file| file.exists())
    });
    let sent = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(status), "SIG{signal}");
    world.assert_clean();
}

#[test]
fn a_signal_ends_a_run_and_nothing_is_left() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let world = World::new();
        let args = ["--providers", "tmpfs", "--record-sizes", "4k", "--file-size", "16m", "--rounds", "1000"];
        signal_ends(&world, &mut world.command(&args), (signal, status), "iozone-0");
        assert!(!world.path("out").exists(), "results of an unfinished run");
    }
}

#[test]
fn a_server_that_fails_is_quoted() {
    let world = World::new();
    world.program("rfs-server", "echo 'rfs-server: address in use' >&2; exit 1");
    let out = world.run(&["--providers", "shm", "--file-size", "1m"]);
    assert_eq!(out.status.code(), Some(1));
    let stderr = text(&out.stderr);
    assert!(
        stderr.ends_with("rfs-iozone: rfs-server: ended with status 1:\n    rfs-server: address in use\n"),
        "{stderr}"
    );
    world.assert_clean();
}

#[test]
fn a_server_without_the_right_address_is_refused() {
    let world = World::new();
    world.program("rfs-server", "echo 'listening on unix:/x'; echo 'ready: now'; exec sleep 1000");
    let out = world.run(&["--providers", "tcp", "--file-size", "1m"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("rfs-server: ready, but on no tcp: address"), "{}", text(&out.stderr));
    world.assert_clean();
}

#[test]
fn a_mount_that_fails_takes_the_server_with_it() {
    let world = World::new();
    // The child of the server must also end.
    world.program(
        "rfs-server",
        "echo \"listening on tcp:127.0.0.1:9\"; echo 'ready: now'; sleep 1000 & wait # $TMPDIR",
    );
    world.program("rfs-fuse", "echo \"rfs-fuse: not permitted ($*)\" >&2; exit 7");
    let out = world.run(&["--providers", "tcp", "--file-size", "1m", "--queue-pairs", "3"]);
    assert_eq!(out.status.code(), Some(1));
    let stderr = text(&out.stderr);
    assert!(stderr.contains("rfs-fuse: ended with status 7:\n    rfs-fuse: not permitted (tcp:127.0.0.1:9 "));
    assert!(stderr.contains("--stats-on-exit --provider tcp --queue-pairs 3)"), "{stderr}");
    world.assert_clean();
}

#[test]
fn missing_programs_are_named() {
    let world = World::new();
    let out = world.run(&["--providers", "null", "--file-size", "1m"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("rfs-fuse"), "{}", text(&out.stderr));
    world.assert_clean();
}

#[test]
fn invalid_options_are_refused_before_anything_starts() {
    let world = World::new();
    for (args, says) in [
        (["--file-size", "1m", "--record-sizes", "3000"], "whole KiB"),
        (["--file-size", "100k", "--record-sizes", "64k"], "not a multiple"),
        (["--file-size", "900t", "--record-sizes", "64k"], "smaller --file-size"),
        (["--file-size", "1m", "--rounds", "0"], "invalid value"),
    ] {
        let out = world.run(&args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(text(&out.stderr).contains(says), "{args:?}: {}", text(&out.stderr));
    }
    world.assert_clean();
    assert!(!world.path("out").exists());
}

#[test]
fn a_comparison_writes_everything_and_names_missing_targets() {
    let world = World::new();
    // Directories stand in for the mounts: rfs itself is not started.
    let args = ["--compare=tmpfs,glusterfs,iozone,fio", "--quick", "--size", "1m", "--rounds", "2"];
    world.program("rfs-server", "echo 'rfs-server: no memory' >&2; exit 1");
    let out = world.compare(&args).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let stderr = text(&out.stderr);
    assert!(stderr.contains("there is no fio: no O_DIRECT and no latencies (package: fio)"), "{stderr}");
    assert!(
        stderr.ends_with("rfs-iozone: rfs-server: ended with status 1:\n    rfs-server: no memory\n"),
        "{stderr}"
    );
    world.assert_clean();
    assert!(!world.path("out").exists(), "results of an unfinished run");
}

#[test]
fn a_comparison_without_rfs_compares_the_rest() {
    let world = World::new();
    let args = [
        "--compare=tmpfs,iozone",
        "--providers",
        "none",
        "--quick",
        "--size",
        "1m",
        "--rounds",
        "2",
        "--check",
    ];
    let out = world.compare(&args).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let files = world.files("out");
    let extensions: Vec<_> = files.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(extensions, ["json", "log"]);
    let comparison: Comparison = serde_json::from_str(&fs::read_to_string(&files[0]).unwrap()).unwrap();
    assert_eq!((comparison.targets.len(), comparison.rounds, comparison.size), (1, 2, 1 << 20));
    assert_eq!(comparison.results.len(), 2 * 6);
    assert!(
        comparison.results.iter().all(|series| series.rounds.len() == 2 && series.median.mib_per_s > 0.0)
    );
    world.assert_clean();
}

#[test]
fn a_signal_ends_a_comparison_and_nothing_is_left() {
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let world = World::new();
        let args = ["--compare=tmpfs,iozone", "--providers", "none", "--record-sizes", "4k", "--size", "16m"];
        let mut command = world.compare(&[&args[..], &["--rounds", "1000"]].concat());
        signal_ends(&world, &mut command, (signal, status), "iozone-0");
    }
}

/// A server that listens.
const SERVER: &str = "echo \"listening on tcp:127.0.0.1:9\"; echo 'ready: now'; exec sleep 1000 # $TMPDIR";

#[test]
fn a_failed_mount_ends_the_scaling_and_leaves_nothing() {
    let world = World::new();
    world.program("rfs-server", SERVER);
    world.program("rfs-fuse", "echo \"it is mounted on $2\"; exec sleep 1000");
    let out = world.scaling(&["--quick", "--providers", "tcp"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let stderr = text(&out.stderr);
    assert!(stderr.contains("round 1/1, threads 1, tcp ("), "{stderr}");
    assert!(stderr.contains("rfs-iozone: rfs-fuse: says that it is mounted, but nothing is"), "{stderr}");
    world.assert_clean();
    assert!(!world.path("out").exists(), "results of an unfinished run");
}

#[test]
fn points_that_do_not_fit_are_named_and_nothing_starts_without_points() {
    let world = World::new();
    let out = world.scaling(&["--scaling=size", "--sizes=900t,901t"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let stderr = text(&out.stderr);
    for says in [
        "rfs-iozone: size 900 TiB is left out: it needs ",
        "rfs-iozone: size 901 TiB is left out: it needs ",
        "rfs-iozone: of all that was chosen there is nothing to measure\n",
    ] {
        assert!(stderr.contains(says), "{says}: {stderr}");
    }
    world.assert_clean();
    assert!(!world.path("out").exists());
}

#[test]
fn a_quick_scaling_writes_its_page_and_charts() {
    let world = World::new();
    let page = world.path("page");
    // The page requires a commit without changes.
    let source = world.path("source");
    fs::create_dir(&source).unwrap();
    let author = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    for arguments in [&["init", "--quiet"][..], &["commit", "--quiet", "--allow-empty", "--message=empty"]] {
        let status = Command::new("git").arg("-C").arg(&source).args(author).args(arguments).status();
        assert!(status.unwrap().success(), "git {arguments:?}");
    }
    let args = ["--scaling", "--quick", "--rounds=2", "--size=2m", "--sizes=1m,2m", "--counts=1,50"];
    let mut command = world.scaling(&args);
    let out =
        command.args(["--random-ms=10", "--providers=tmpfs", "--source"]).arg(&source).arg("--document");
    let out = out.arg(&page).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("| count | create, tmpfs | stat, tmpfs | unlink, tmpfs |"));
    let names = |dir: &str| -> Vec<String> {
        world.files(dir).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let charts = ["count.svg", "files.svg", "mounts.svg", "size.svg", "threads.svg"];
    assert_eq!(names("page"), [&["README.md"][..], &charts].concat());
    assert_eq!(names("out").len(), 2 + charts.len());
    let json = world.files("out").into_iter().find(|path| path.extension().unwrap() == "json").unwrap();
    let scaling: Scaling = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(scaling.series(), Series::ALL);
    assert_eq!((scaling.rounds, scaling.curves.len()), (2, 5 * 3));
    let points: Vec<_> = scaling.curves.iter().flat_map(|curve| &curve.points).collect();
    assert_eq!(points.len(), 5 * 3 * 2);
    assert!(points.iter().all(|point| point.rounds.len() == 2 && point.median.rate > 0.0));
    // Ceilings are not judged.
    assert!(scaling.verdicts.is_empty());
    world.assert_clean();
}

#[test]
fn a_signal_ends_the_scaling_and_nothing_is_left() {
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let world = World::new();
        let mut command = world.scaling(&["--scaling=threads", "--providers=tmpfs", "--rounds=1000"]);
        command.args(["--size=16m", "--random-ms=60000"]);
        signal_ends(&world, &mut command, (signal, status), "data-0-0");
    }
}

#[test]
fn names_are_measured_on_every_target() {
    let world = World::new();
    let args = ["--names", "--targets=tmpfs,tmpfs", "--files=40", "--listed=50", "--rounds=2", "--threads=2"];
    let out = world.plan("names", &args).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(stdout.starts_with("40 files, 50 listed, 2 thread(s), 2 round(s), medians\n"), "{stdout}");
    // Without a server there is no fresh mount, so steps that need one are left out.
    for step in ["create, one directory", "stat again, tree", "unlink, tree", "ls -l again"] {
        assert!(stdout.contains(&format!(" {step} ")), "{step}: {stdout}");
        assert!(stderr.contains(&format!("round 2/2, names, tmpfs, {step}\n")), "{step}: {stderr}");
    }
    assert!(!stdout.contains("first stat"), "{stdout}");
    let json = fs::read_to_string(&world.files("out")[0]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let results = json["results"].as_array().unwrap();
    assert_eq!(
        (results.len(), &json["rounds"], &json["targets"][0]["name"]),
        (7, &2.into(), &"tmpfs".into())
    );
    assert!(results.iter().all(|series| series["rounds"].as_array().is_some_and(|all| all.len() == 2)));
    world.assert_clean();
}
