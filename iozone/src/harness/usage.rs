//! Processor time and memory of a target's processes, from `/proc`. The parsers are pure.
//!
//! The processor time of a process is the time of its threads in user mode and in the kernel. It
//! excludes kernel work for the caller (the kernel's part of FUSE, the page cache) and interrupts
//! (such as packet reception).

use std::{collections::BTreeSet, fs};

use serde::{Deserialize, Serialize};

use crate::target::Process;

/// The processes of a target and their descendants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    clients: BTreeSet<u32>,
    servers: BTreeSet<u32>,
}

/// Memory of processes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident private memory: anonymous or file-backed.
    pub own: u64,
    /// Resident shared memory; of rfs, the exported memory.
    pub shared: u64,
}

/// Usage of idle processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Percentage of one processor.
    pub cpu_percent: f64,
    /// Memory of the client processes.
    pub client: Memory,
    /// Memory of the server processes.
    pub servers: Memory,
}

impl Programs {
    /// Finds the current processes of a target.
    pub fn of(processes: &[Process]) -> Self {
        let parents = parents();
        let mut programs = Self::default();
        for process in processes {
            let all = with_descendants(process.id(), &parents);
            match process {
                Process::Client(_) => programs.clients.extend(all),
                Process::Server(_) => programs.servers.extend(all),
            }
        }
        programs
    }

    /// Returns true if there are any.
    pub fn exist(&self) -> bool {
        !self.clients.is_empty() || !self.servers.is_empty()
    }

    /// Returns the processor seconds so far. Ended processes do not count.
    pub fn cpu_s(&self) -> f64 {
        let per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
        let ticks = |pid: &u32| Stat::parse(&read(*pid, "stat")).map_or(0, |stat| stat.ticks);
        self.clients.iter().chain(&self.servers).map(ticks).sum::<u64>() as f64 / per_second
    }

    /// Returns the memory of the clients, and of the servers.
    pub fn memory(&self) -> (Memory, Memory) {
        let sum = |pids: &BTreeSet<u32>| {
            let each = pids.iter().map(|pid| memory(&read(*pid, "status")));
            each.fold(Memory::default(), |a, b| Memory { own: a.own + b.own, shared: a.shared + b.shared })
        };
        (sum(&self.clients), sum(&self.servers))
    }
}

/// Reads a file of a process. Returns an empty text if the process has ended.
fn read(pid: u32, what: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default()
}

/// Returns the process ID and the parent of all running processes.
fn parents() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, Stat::parse(&read(pid, "stat"))?.parent))).collect()
}

fn with_descendants(root: u32, parents: &[(u32, u32)]) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([root]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// User and kernel time of all threads, in clock ticks.
    ticks: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The process name in front may contain any character.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
        Some(Self { parent: u32::try_from(number(1)?).ok()?, ticks: number(11)? + number(12)? })
    }
}

/// Parses `/proc/PID/status`.
fn memory(status: &str) -> Memory {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0)
    };
    Memory { own: (kib("RssAnon") + kib("RssFile")) * 1024, shared: kib("RssShmem") * 1024 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_stat_are_found_behind_any_name() {
        let text = "77 (a) b (c) S 5 77 77 0 -1 4194304 100 0 0 0 12 30 1 2 20 0 4 0 99 1000 50\n";
        assert_eq!(Stat::parse(text), Some(Stat { parent: 5, ticks: 42 }));
        assert_eq!(Stat::parse("77 (short) S 5"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn memory_is_split() {
        let status = "Name:\tx\nVmRSS:\t  60 kB\nRssAnon:\t  10 kB\nRssFile:\t  20 kB\nRssShmem:\t  30 kB\n";
        assert_eq!(memory(status), Memory { own: 30 << 10, shared: 30 << 10 });
        assert_eq!(memory(""), Memory::default());
    }

    #[test]
    fn descendants_of_descendants_belong_to_it() {
        let parents = [(5, 4), (2, 1), (3, 2), (4, 3), (9, 1)];
        assert_eq!(with_descendants(2, &parents), BTreeSet::from([2, 3, 4, 5]));
        assert_eq!(with_descendants(7, &parents), BTreeSet::from([7]));
    }

    #[test]
    fn this_process_is_there_and_uses_memory() {
        let programs = Programs::of(&[Process::Client(std::process::id())]);
        assert!(programs.exist() && programs.cpu_s() >= 0.0);
        let (client, servers) = programs.memory();
        assert!(client.own > 0);
        assert_eq!(servers, Memory::default());
        assert!(!Programs::of(&[]).exist());
    }
}
