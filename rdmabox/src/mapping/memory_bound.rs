//! Memory that is available: limits of the machine, of control groups, and of the process.
//!
//! Reads /proc and /sys. The answer reserves nothing and can change at any time.
//!
//! # Concurrency
//! Any thread.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A limit on memory.
// Exhaustive: programs make bounds of their own beside these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    /// Bytes that are still available.
    pub bytes: u64,
    /// Name of the limit for messages.
    pub what: String,
}

/// Returns the tightest known limit on memory. Nothing is reserved, and the answer can change at
/// any time.
pub fn available_memory() -> Option<MemoryBound> {
    bounds(Path::new("/")).into_iter().min_by_key(|bound| bound.bytes)
}

/// Returns all limits, from the files below `root`.
fn bounds(root: &Path) -> Vec<MemoryBound> {
    let read = |path: &Path| fs::read_to_string(root.join(path)).ok();
    let mut bounds = Vec::new();
    let mut add =
        |bytes: Option<u64>, what: String| bounds.extend(bytes.map(|bytes| MemoryBound { bytes, what }));

    let meminfo = read(Path::new("proc/meminfo")).unwrap_or_default();
    add(field(&meminfo, "MemAvailable:").map(|kib| kib.saturating_mul(1024)), "memory".into());

    let limits = read(Path::new("proc/self/limits")).unwrap_or_default();
    for (name, what) in [
        ("Max file size", "the limit on file sizes (ulimit -f)"),
        ("Max address space", "the limit on address space (ulimit -v)"),
    ] {
        add(limits.lines().find_map(|line| line.strip_prefix(name)).and_then(first_number), what.into());
    }

    for line in read(Path::new("proc/self/cgroup")).unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, limit, usage) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let group: PathBuf = Path::new(mount).join(group);
            let number = |name: &str| read(&group.join(name)).and_then(|text| first_number(&text));
            // The kernel can drop inactive page cache.
            let cache = read(&group.join("memory.stat"))
                .and_then(|stat| {
                    field(&stat, "inactive_file").or_else(|| field(&stat, "total_inactive_file"))
                })
                .unwrap_or(0);
            let left = number(limit)
                .map(|limit| limit.saturating_sub(number(usage).unwrap_or(0).saturating_sub(cache)));
            add(left, format!("the memory limit of control group /{}", group.display()));
        }
    }
    bounds
}

/// Returns the number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn found(root: &Path) -> Vec<(u64, String)> {
        bounds(root).into_iter().map(|bound| (bound.bytes, bound.what)).collect()
    }

    #[test]
    fn nothing_known() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(found(root.path()), []);
    }

    #[test]
    fn free_memory_and_limits() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:   500 kB\n");
        put(
            root.path(),
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\n\
             Max file size             4096                 unlimited            bytes\n\
             Max address space         unlimited            unlimited            bytes\n",
        );
        assert_eq!(
            found(root.path()),
            [(512_000, "memory".into()), (4096, "the limit on file sizes (ulimit -f)".into())]
        );
    }

    #[test]
    fn control_groups_and_those_above() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "proc/self/cgroup", "5:cpu,memory:/x\n3:pids:/p\n0::/a/b\nrubbish\n");
        put(root.path(), "sys/fs/cgroup/a/memory.max", "1000\n");
        put(root.path(), "sys/fs/cgroup/a/memory.current", "700\n");
        put(root.path(), "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 200\n");
        put(root.path(), "sys/fs/cgroup/a/b/memory.max", "max\n");
        put(root.path(), "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "90\n");
        put(root.path(), "sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100\n");
        assert_eq!(
            found(root.path()),
            [
                (0, "the memory limit of control group /sys/fs/cgroup/memory/x".into()),
                (500, "the memory limit of control group /sys/fs/cgroup/a".into())
            ]
        );
    }

    #[test]
    fn this_machine_tells() {
        assert!(available_memory().is_some_and(|bound| bound.bytes > 0));
    }
}
