//! The stages of a run: the parts of `ci/test`, ordered so that they find faults early, each with a
//! time limit.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use seeded_faults::{Fault, Home, VARIABLE};

/// Time limit of a stage in seconds. A correct server passes in much less, so a timeout counts as a
/// failure.
const LIMIT: &str = "1200";

/// The result of a stage.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All tests passed.
    Passed,
    /// This test failed.
    Failed(String),
    /// The tests could not be run, for this reason.
    Broken(String),
}

/// A part of the tests.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Rust tests, selected by a nextest filter.
    Tests(String),
    /// A script of this tree with its arguments.
    Script(&'static [&'static str]),
}

impl Stage {
    /// Returns all stages that can find a fault of a crate.
    pub(crate) fn all(home: Home) -> Vec<Stage> {
        let crates: &[&str] = match home {
            Home::Server => &["rfs-server", "rfs-client", "rfs-fuse"],
            Home::Runtime => &["rdmabox", "rfs-server", "rfs-client", "rfs-fuse"],
        };
        let scripts: [&'static [&'static str]; 5] = [
            &["ci/mounts/fsx", "shm", "8000"],
            &["ci/mounts/fsx", "tcp", "8000"],
            &["ci/mounts/pjdfstest", "shm"],
            &["ci/mounts/workloads", "shm"],
            &["ci/mounts/workloads", "tcp"],
        ];
        let tests = crates.iter().map(|name| Stage::Tests(format!("package({name})")));
        tests.chain(scripts.into_iter().map(Stage::Script)).collect()
    }

    /// Returns true for Rust tests.
    pub(crate) fn is_tests(&self) -> bool {
        matches!(self, Stage::Tests(_))
    }

    /// Returns a stage with only the failed test.
    pub(crate) fn only(&self, failed: &str) -> Stage {
        match (self, one_test(failed)) {
            (Stage::Tests(_), Some(test)) => Stage::Tests(test),
            _ => self.clone(),
        }
    }

    /// Returns this stage without the failed test. A script has no parts, so it stays whole.
    pub(crate) fn without(&self, failed: &str) -> Stage {
        match (self, one_test(failed)) {
            (Stage::Tests(filter), Some(test)) => Stage::Tests(format!("{filter} - ({test})")),
            _ => self.clone(),
        }
    }

    /// Runs the stage, with a fault if given.
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
        // Failures are expected here, so proptest must not record them.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.env("RFS_PROFILE", "debug").env("RFS_PJDFSTEST_TIMEOUT", "600").env("RUST_BACKTRACE", "0");
        match command.output() {
            Ok(output) => {
                let printed = [output.stdout, output.stderr].concat();
                self.outcome(output.status.code(), &String::from_utf8_lossy(&printed))
            }
            Err(e) => Outcome::Broken(format!("timeout does not start: {e}")),
        }
    }

    fn outcome(&self, status: Option<i32>, printed: &str) -> Outcome {
        let last =
            || printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").to_owned();
        match (status, self) {
            (Some(0), _) => Outcome::Passed,
            (_, Stage::Script(words)) => Outcome::Failed(words.join(" ")),
            (_, Stage::Tests(_)) => match failed_test(printed) {
                Some(test) => Outcome::Failed(test),
                None => Outcome::Broken(format!("cargo nextest: {}", last())),
            },
        }
    }
}

fn nextest(filter: &str) -> Vec<&str> {
    let mut words = vec!["cargo", "nextest", "run", "--config-file", "ci/nextest.toml", "-P", "seeded"];
    words.extend([
        "-p",
        "rfs-server",
        "-p",
        "rfs-client",
        "-p",
        "rfs-fuse",
        "-p",
        "rdmabox",
        "-p",
        "seeded-faults",
    ]);
    words.extend(["--features", "rfs-server/seeded-faults", "--locked", "--cargo-quiet"]);
    words.extend(["--status-level", "fail", "--final-status-level", "none", "--color", "never"]);
    words.extend(["-E", filter]);
    words
}

/// Returns a nextest filter for one test, given its binary and its name.
fn one_test(test: &str) -> Option<String> {
    let (binary, test) = test.split_once(' ')?;
    Some(format!("binary_id(={binary}) & test(={test})"))
}

/// Returns the binary and the name of the first failed test in the output of nextest, which has the
/// format `FAIL [ 0.1s] (1/9) BINARY TEST`.
fn failed_test(printed: &str) -> Option<String> {
    printed.lines().find_map(|line| {
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

/// A directory for the temporary files and mounts of killed tests. Drop unmounts and removes them.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        // Not in the tree: the path of a Unix socket is limited to 108 bytes.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/tmp").join(format!("rfs-seeded-{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Scratch(path))
    }
}

impl Scratch {
    /// Returns the mount points in the directory.
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
        // Removing files below a mount point would remove them from the mounted file system.
        let removed = match self.mounts().as_slice() {
            [] => fs::remove_dir_all(&self.0),
            [first, ..] => Err(io::Error::other(format!("{} is mounted", first.display()))),
        };
        if let Err(e) = removed {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failed_test_is_found() {
        let printed = "\n        FAIL [   0.014s] ( 14/233) rfs-server dispatch::tests::names::exclusive\n  stderr\n    \
                    TIMEOUT [ 60.01s] rfs-fuse::locks two words\n";
        assert_eq!(failed_test(printed), Some("rfs-server dispatch::tests::names::exclusive".into()));
        let printed = "     SIGSEGV [   1.2s] (2/2) rdmabox::conformance raw::reads\n";
        assert_eq!(failed_test(printed), Some("rdmabox::conformance raw::reads".into()));
        let printed = "TIMEOUT [  60.012s] rfs-fuse::locks a_lock\n";
        assert_eq!(failed_test(printed), Some("rfs-fuse::locks a_lock".into()));
        for printed in
            ["", "error: could not compile", "     Summary [ 1s] 3 tests run", "SLOW [>60s] rdmabox::a b"]
        {
            assert_eq!(failed_test(printed), None, "{printed}");
        }
    }

    #[test]
    fn a_failed_test_is_repeated_alone() {
        let stage = Stage::Tests("package(rfs-server)".into());
        let Stage::Tests(filter) = stage.only("rfs-server::keys a_test") else { panic!("tests") };
        assert_eq!(filter, "binary_id(=rfs-server::keys) & test(=a_test)");
        let Stage::Tests(filter) = stage.without("rfs-server::keys a_test") else { panic!("tests") };
        assert_eq!(filter, "package(rfs-server) - (binary_id(=rfs-server::keys) & test(=a_test))");
    }

    #[test]
    fn a_stage_that_could_not_run_has_not_found_a_fault() {
        let stage = Stage::Tests(String::new());
        assert_eq!(stage.outcome(Some(0), ""), Outcome::Passed);
        let printed = "error: no such feature\n\n";
        let broken = Outcome::Broken("cargo nextest: error: no such feature".into());
        assert_eq!(stage.outcome(Some(101), printed), broken);
        let script = Stage::Script(&["ci/mounts/fsx", "shm"]);
        assert_eq!(script.outcome(None, printed), Outcome::Failed("ci/mounts/fsx shm".into()));
    }
}
