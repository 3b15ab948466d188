//! Describes the machine of a run: processor, cores, kernel, memory, TCP congestion control. Also
//! finds the commit of a source tree.
//!
//! Reads `/proc` and runs git. A fact that cannot be determined is "unknown" and never stops a
//! measurement.
//!
//! # Concurrency
//! No locks, no shared state.

use std::{fs, path::Path, process::Command, thread};

use rdmabox::provider::soft;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A description of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Distribution.
    pub os: String,
    /// Bytes of installed memory.
    pub memory: u64,
    /// Congestion control of TCP sockets.
    pub congestion: Congestion,
}

/// Congestion control of TCP sockets. A comparison is fair if all compared programs use the same
/// algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Congestion {
    /// Name of the system's default in this network namespace. All programs except rfs use it.
    pub system: String,
    /// Name of the algorithm that rfs sets.
    pub rfs: String,
}

impl Congestion {
    /// Reads the setting of this process's network namespace.
    pub fn here() -> Self {
        let system = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        let system = Some(system.trim().to_owned()).filter(|name| !name.is_empty());
        Self {
            system: system.unwrap_or_else(|| "unknown".into()),
            rfs: soft::congestion_control().unwrap_or_else(|_| "unknown".into()),
        }
    }

    /// Returns a summary such as `TCP cubic`. Names both algorithms if they differ.
    fn summary(&self) -> String {
        match self.system == self.rfs {
            true => format!("TCP {}", self.system),
            false => format!("TCP {}, but {} for rfs", self.system, self.rfs),
        }
    }
}

impl Machine {
    /// Returns a description for tests of reports.
    pub fn example() -> Self {
        Self {
            cpu: "A CPU".into(),
            cores: 2,
            kernel: "6.1.0".into(),
            os: "Debian 12".into(),
            memory: 24 << 30,
            congestion: Congestion { system: "cubic".into(), rfs: "cubic".into() },
        }
    }

    /// Describes the machine that runs this process.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".into()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: Some(read("/proc/sys/kernel/osrelease").trim().to_owned())
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "unknown".into()),
            os: os_name(&read("/etc/os-release")).unwrap_or_else(|| "unknown".into()),
            memory: meminfo(&read("/proc/meminfo"), "MemTotal").unwrap_or(0),
            congestion: Congestion::here(),
        }
    }

    /// Returns one line: processor, cores, memory, kernel, distribution, congestion control.
    pub fn summary(&self) -> String {
        format!(
            "{}, {} core{}, {}, Linux {}, {}, {}",
            self.cpu,
            self.cores,
            if self.cores == 1 { "" } else { "s" },
            byte_size::show(self.memory / byte_size::MIB * byte_size::MIB),
            self.kernel,
            self.os,
            self.congestion.summary()
        )
    }
}

/// Returns the bytes of memory that can be used without swapping.
pub fn memory_available() -> u64 {
    meminfo(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable").unwrap_or(0)
}

/// Returns the commit of a source tree, with `-dirty` appended if tracked files differ from the
/// commit.
pub fn commit(source: &Path) -> String {
    Command::new("git")
        .arg("-C")
        .arg(source)
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output()
        .ok()
        .filter(|out| out.status.success())
        .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".into())
}

/// Returns the commit of a source tree without uncommitted changes.
///
/// # Errors
/// If tracked files differ from the commit, or if the tree has no commit.
pub fn clean_commit(source: &Path) -> Result<String> {
    let commit = commit(source);
    match commit == "unknown" || commit.ends_with("-dirty") {
        true => Err(Error::Usage(format!(
            "the tree {} differs from its commit, or has none ({commit}): commit its changes first",
            source.display()
        ))),
        false => Ok(commit),
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let value = field(text, name)?;
    value.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn os_name(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some  CPU @ 2.0GHz\nmodel name\t: other\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("Some CPU @ 2.0GHz"));
        assert_eq!(field(cpuinfo, "missing"), None);
        let mem = "MemTotal:       24683576 kB\nMemAvailable:    1024 kB\nHugePages_Total:       0\n";
        assert_eq!(meminfo(mem, "MemTotal"), Some(24_683_576 * 1024));
        assert_eq!(meminfo(mem, "MemAvailable"), Some(1 << 20));
        assert_eq!(meminfo(mem, "HugePages_Total"), None);
        assert_eq!(os_name("NAME=x\nPRETTY_NAME=\"Debian 12\"\n").as_deref(), Some("Debian 12"));
    }

    #[test]
    fn the_summary_is_one_line() {
        let machine = Machine::example();
        assert_eq!(machine.summary(), "A CPU, 2 cores, 24 GiB, Linux 6.1.0, Debian 12, TCP cubic");
    }

    #[test]
    fn the_summary_names_both_algorithms_if_they_differ() {
        let congestion = Congestion { system: "bbr".into(), rfs: "reno".into() };
        assert_eq!(congestion.summary(), "TCP bbr, but reno for rfs");
    }

    #[test]
    fn the_commit_without_a_repository_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(commit(dir.path()), "unknown");
        assert!(clean_commit(dir.path()).is_err());
    }

    #[test]
    fn a_tree_with_changes_is_not_clean() {
        let dir = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let named = ["-c", "user.name=test", "-c", "user.email=test@example.org"];
            let status = Command::new("git").arg("-C").arg(dir.path()).args(named).args(args).status();
            assert!(status.unwrap().success(), "git {args:?}");
        };
        git(&["init", "--quiet"]);
        fs::write(dir.path().join("file"), "one").unwrap();
        git(&["add", "file"]);
        git(&["commit", "--quiet", "--message", "one"]);
        assert_eq!(clean_commit(dir.path()).unwrap(), commit(dir.path()));
        fs::write(dir.path().join("file"), "another").unwrap();
        let refusal = clean_commit(dir.path()).unwrap_err().to_string();
        assert!(refusal.contains("-dirty") && refusal.contains("commit its changes"), "{refusal}");
    }
}
