//! What `ci/test` runs, in an order that finds faults soon, each part for a limited time.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use seeded_faults::{Fault, Home, VARIABLE};

/// Seconds that a part takes at most. One that takes longer has found something: it passes in far less.
const LIMIT: &str = "1200";

/// What a part said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is wrong.
    Passed,
    /// What failed.
    Failed(String),
    /// It could not be run.
    Broken(String),
}

/// A part of the tests.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Tests of a crate: those that a filter of nextest selects.
    Tests(String),
    /// A script of this tree with its arguments.
    Script(&'static [&'static str]),
}

impl Stage {
    /// All parts that can find a fault of a crate.
    pub(crate) fn all(home: Home) -> Vec<Stage> {
        let crates: &[&str] = match home {
            Home::Server => &["rfs-server", "rfs-fuse"],
            Home::Runtime => &["rdmabox", "rfs-server", "rfs-fuse"],
        };
        let scripts: [&'static [&'static str]; 5] = [
            &["ci/fsx", "shm", "8000"],
            &["ci/fsx", "tcp", "8000"],
            &["ci/pjdfstest", "shm"],
            &["ci/workloads", "shm"],
            &["ci/workloads", "tcp"],
        ];
        let tests = crates.iter().map(|name| Stage::Tests(format!("package({name})")));
        tests.chain(scripts.into_iter().map(Stage::Script)).collect()
    }

    /// True for tests in Rust.
    pub(crate) fn is_tests(&self) -> bool {
        matches!(self, Stage::Tests(_))
    }

    /// The part of it that failed.
    pub(crate) fn only(&self, failed: &str) -> Stage {
        match (self, one_test(failed)) {
            (Stage::Tests(_), Some(test)) => Stage::Tests(test),
            _ => self.clone(),
        }
    }

    /// All but what failed. A script is run as a whole.
    pub(crate) fn without(&self, failed: &str) -> Stage {
        match (self, one_test(failed)) {
            (Stage::Tests(filter), Some(test)) => Stage::Tests(format!("{filter} - ({test})")),
            _ => self.clone(),
        }
    }

    /// Runs it, with a fault or without one.
    pub(crate) fn run(&self, fault: Option<Fault>) -> Outcome {
        let scratch = match Scratch::new() {
            Ok(scratch) => scratch,
            Err(e) => return Outcome::Broken(format!("no directory for temporary files: {e}")),
        };
        let mut command = Command::new("timeout");
        command.args(["-k", "30", LIMIT]).stdin(Stdio::null());
        match self {
            Stage::Tests(filter) => command.args(nextest(filter)),
            Stage::Script(words) => command.args(*words),
        };
        command.env(VARIABLE, fault.map_or("", Fault::name)).env("TMPDIR", &scratch.0);
        // Failures that are wanted are not to be written down.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.env("RFS_PROFILE", "debug").env("RFS_PJDFSTEST_TIMEOUT", "600").env("RUST_BACKTRACE", "0");
        match command.output() {
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                self.outcome(output.status.code(), &String::from_utf8_lossy(&said))
            }
            Err(e) => Outcome::Broken(format!("timeout does not start: {e}")),
        }
    }

    fn outcome(&self, status: Option<i32>, said: &str) -> Outcome {
        let last = || said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").to_owned();
        match (status, self) {
            (Some(0), _) => Outcome::Passed,
            (_, Stage::Script(words)) => Outcome::Failed(words.join(" ")),
            (_, Stage::Tests(_)) => match failed_test(said) {
                Some(test) => Outcome::Failed(test),
                None => Outcome::Broken(format!("cargo nextest: {}", last())),
            },
        }
    }
}

fn nextest(filter: &str) -> Vec<&str> {
    let mut words = vec!["cargo", "nextest", "run", "--config-file", "ci/nextest.toml", "-P", "seeded"];
    words.extend(["-p", "rfs-server", "-p", "rfs-fuse", "-p", "rdmabox", "-p", "seeded-faults"]);
    words.extend(["--features", "rfs-server/seeded-faults", "--locked", "--cargo-quiet"]);
    words.extend(["--status-level", "fail", "--final-status-level", "none", "--color", "never"]);
    words.extend(["-E", filter]);
    words
}

/// Selects a test by its binary and its name.
fn one_test(test: &str) -> Option<String> {
    let (binary, test) = test.split_once(' ')?;
    Some(format!("binary_id(={binary}) & test(={test})"))
}

/// The binary and the name of the first test that failed, as nextest says it: `FAIL [ 0.1s] (1/9) BINARY TEST`.
fn failed_test(said: &str) -> Option<String> {
    said.lines().find_map(|line| {
        let line = line.trim_start();
        let (verdict, rest) = line.split_once(" [")?;
        let failed =
            ["FAIL", "TIMEOUT", "ABORT", "LEAK-FAIL"].contains(&verdict) || verdict.starts_with("SIG");
        let (_, rest) = rest.split_once(']').filter(|_| failed)?;
        let rest = rest.trim_start();
        let name = match rest.strip_prefix('(') {
            Some(counted) => counted.split_once(") ")?.1,
            None => rest,
        };
        Some(name.trim().to_owned())
    })
}

/// A directory for what tests leave behind when they are ended, mounts among it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        // Not in the tree: names of sockets are short.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/tmp").join(format!("rfs-seeded-{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Scratch(path))
    }
}

impl Scratch {
    /// What is mounted in it.
    fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        points.filter(|point| point.starts_with(&self.0)).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for point in self.mounts() {
            Command::new("umount").arg("--lazy").arg(point).status().ok();
        }
        // Nothing is removed that is mounted.
        let removed = match self.mounts().as_slice() {
            [] => fs::remove_dir_all(&self.0),
            [first, ..] => Err(io::Error::other(format!("{} is mounted", first.display()))),
        };
        if let Err(e) = removed {
            eprintln!("{} stays: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_test_that_failed_is_found() {
        let said = "\n        FAIL [   0.014s] ( 14/233) rfs-server dispatch::tests::names::exclusive\n  stderr\n    \
                    TIMEOUT [ 60.01s] rfs-fuse::locks two words\n";
        assert_eq!(failed_test(said), Some("rfs-server dispatch::tests::names::exclusive".into()));
        let said = "     SIGSEGV [   1.2s] (2/2) rdmabox::conformance raw::reads\n";
        assert_eq!(failed_test(said), Some("rdmabox::conformance raw::reads".into()));
        let said = "TIMEOUT [  60.012s] rfs-fuse::locks a_lock\n";
        assert_eq!(failed_test(said), Some("rfs-fuse::locks a_lock".into()));
        for said in
            ["", "error: could not compile", "     Summary [ 1s] 3 tests run", "SLOW [>60s] rdmabox::a b"]
        {
            assert_eq!(failed_test(said), None, "{said}");
        }
    }

    #[test]
    fn what_failed_is_run_again_alone() {
        let stage = Stage::Tests("package(rfs-server)".into());
        let Stage::Tests(filter) = stage.only("rfs-server::keys a_test") else { panic!("tests") };
        assert_eq!(filter, "binary_id(=rfs-server::keys) & test(=a_test)");
        let Stage::Tests(filter) = stage.without("rfs-server::keys a_test") else { panic!("tests") };
        assert_eq!(filter, "package(rfs-server) - (binary_id(=rfs-server::keys) & test(=a_test))");
    }

    #[test]
    fn tests_that_cannot_be_run_have_found_nothing() {
        let stage = Stage::Tests(String::new());
        assert_eq!(stage.outcome(Some(0), ""), Outcome::Passed);
        let said = "error: no such feature\n\n";
        let broken = Outcome::Broken("cargo nextest: error: no such feature".into());
        assert_eq!(stage.outcome(Some(101), said), broken);
        let script = Stage::Script(&["ci/fsx", "shm"]);
        assert_eq!(script.outcome(None, said), Outcome::Failed("ci/fsx shm".into()));
    }
}
