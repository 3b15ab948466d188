//! Lenders end or stop while a program under `rfs-paging run` uses its memory. With redundancy the
//! program keeps all bytes. Without, the loss is one line and SIGBUS.
//!
//! Own program: `ci/nextest.toml` never repeats its tests. Those of `programs` may be repeated.

mod support;

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use support::{Lines, Running, compile, counter, launcher, library, not_run};
use tempfile::TempDir;

/// How the launcher reaches the lenders.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Shm,
    Tcp,
}

/// Lenders in processes of their own.
struct Lenders {
    dir: TempDir,
    launcher: PathBuf,
    way: Way,
    lenders: Vec<(Running, String)>,
}

impl Lenders {
    fn start(launcher: &Path, way: Way, count: usize) -> Lenders {
        let dir = tempfile::tempdir().expect("a folder");
        let lender = |number: usize| {
            let listen = match way {
                Way::Shm => format!("unix:{}", dir.path().join(format!("{number}.sock")).display()),
                Way::Tcp => "127.0.0.1:0".to_owned(),
            };
            let mut command = Command::new(launcher);
            command.args(["lend", "--memory", "64m", "--allow-without-keys", "--listen", &listen]);
            let mut lender = Running::start(command.env("RUST_LOG", "error"));
            let address = lender.line();
            assert!(lender.line().starts_with("ready:"));
            (lender, address)
        };
        let lenders = (0..count).map(lender).collect();
        Lenders { dir, launcher: launcher.to_owned(), way, lenders }
    }

    /// Runs the C program, which has 8 MiB, with 1 MiB of local memory.
    fn run(&self, redundancy: &[&str]) -> Program {
        let mut command = Command::new(&self.launcher);
        command.args(["run", "--local", "1m", "--stats", "--library"]).arg(library()).args(redundancy);
        for (_, address) in &self.lenders {
            command.args(["--server", address]);
        }
        if self.way == Way::Tcp {
            command.args(["--switches", "provider=tcp"]);
        }
        let mut running = Running::start(command.arg("--").arg(compile(self.dir.path())).arg("rounds"));
        let errors = Lines::of(running.0.stderr.take().expect("a pipe"));
        let rounds = Lines::of(running.output());
        Program { running, rounds, errors }
    }

    fn send(&self, lender: usize, signal: i32) {
        self.lenders[lender].0.send(signal);
    }
}

/// The running C program.
struct Program {
    running: Running,
    rounds: Lines,
    errors: Lines,
}

impl Program {
    /// Waits until both threads have used their memory some more.
    fn go_round(&mut self) {
        self.rounds.skip();
        // One thread may be slow. The other one is not this fast.
        for _ in 0..6 {
            self.rounds.until("round");
        }
    }

    fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.running.0.try_wait().expect("a child") {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(90), "it hangs: {:?}", self.errors.taken);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Kills or stops lenders, the second one after the repair.
fn keeps_all_bytes(way: Way, redundancy: &[&str], lenders: usize, losses: usize, signal: i32) {
    let Some(launcher) = launcher() else { return };
    if not_run("gcc") {
        return;
    }
    let lenders = Lenders::start(&launcher, way, lenders);
    let mut program = lenders.run(redundancy);
    for loss in 0..losses {
        program.go_round();
        lenders.send(loss, signal);
        let line = program.errors.until("is lost");
        let address = &lenders.lenders[loss].1;
        assert!(line.starts_with(&format!("rfs-paging: lender {address} is lost")), "{line}");
        assert!(line.contains("; 0 pages are lost with it"), "{line}");
        if loss + 1 < losses {
            program.errors.until("all pages have their redundancy again");
        }
        program.go_round();
    }
    program.running.go_on();
    program.rounds.until("ok");
    assert!(program.end().success());
    let errors = program.errors.rest().join("\n");
    assert_eq!(errors.matches("is lost").count(), losses, "{errors}");
    let count = |name| counter(&errors, name);
    assert_eq!((count("servers_lost"), count("pages_lost")), (losses as u64, 0), "{errors}");
    assert_eq!(count("over_budget"), 0, "{errors}");
    assert!(count("max_resident") <= 256 && count("pages_written") > 1000, "{errors}");
}

#[test]
fn a_program_with_two_copies_outlives_lenders_that_are_killed() {
    for way in [Way::Shm, Way::Tcp] {
        keeps_all_bytes(way, &["--copies", "2"], 2, 1, libc::SIGKILL);
        keeps_all_bytes(way, &["--copies", "2"], 3, 2, libc::SIGKILL);
    }
}

#[test]
fn a_program_with_a_code_outlives_lenders_that_are_killed() {
    for way in [Way::Shm, Way::Tcp] {
        keeps_all_bytes(way, &["--redundancy", "2+1"], 3, 1, libc::SIGKILL);
        keeps_all_bytes(way, &["--redundancy", "2+1"], 4, 2, libc::SIGKILL);
    }
}

/// The stopped lender is lost after the time for one request.
#[test]
fn a_program_with_two_copies_outlives_a_lender_that_stops() {
    keeps_all_bytes(Way::Tcp, &["--copies", "2"], 2, 1, libc::SIGSTOP);
}

/// Catches a loss that is silent, that is told for each page, or for which the program waits.
#[test]
fn a_program_without_redundancy_ends_by_sigbus_with_its_only_lender() {
    let Some(launcher) = launcher() else { return };
    if not_run("gcc") {
        return;
    }
    for (way, signal) in [(Way::Shm, libc::SIGKILL), (Way::Tcp, libc::SIGKILL), (Way::Tcp, libc::SIGSTOP)] {
        let lenders = Lenders::start(&launcher, way, 1);
        let mut program = lenders.run(&[]);
        program.go_round();
        lenders.send(0, signal);
        let status = program.end();
        let errors = program.errors.rest();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?} {errors:?}");
        let [line] = &errors[..] else { panic!("one line: {errors:?}") };
        let address = &lenders.lenders[0].1;
        assert!(line.starts_with(&format!("rfs-paging: lender {address} is lost: ")), "{line}");
        assert!(line.ends_with(" pages are lost with it, and 0 lenders are left"), "{line}");
        assert!(!line.contains("; 0 pages"), "{line}");
    }
}
