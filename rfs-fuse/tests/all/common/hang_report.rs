//! Reports where the threads of a test and its programs wait, before the time limit ends the test.

use std::{
    fs::{self, read_dir, read_to_string},
    path::PathBuf,
    process,
    sync::Once,
    thread,
    time::Duration,
};

/// Shorter than the limit in ci/nextest.toml.
const LATE: Duration = Duration::from_secs(150);

/// Prints a report if the test runs for too long. Starts no program: that could wait for a stopped
/// mount, too.
pub(crate) fn report_a_hang() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        thread::spawn(|| {
            thread::sleep(LATE);
            eprintln!("not done after {} s:", LATE.as_secs());
            let processes = descendants(process::id());
            processes.iter().for_each(|pid| print_threads(*pid));
            print_requests();
            // Reading them waits for a process that is starting a program.
            for pid in processes {
                thread::spawn(move || print_stacks(pid));
            }
        });
    });
}

/// Returns a process and all processes that it has started.
fn descendants(root: u32) -> Vec<u32> {
    let processes = read_dir("/proc").expect("processes").flatten();
    let parent_of = |pid: u32| {
        let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain spaces and parentheses.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let mut parents: Vec<(u32, u32)> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent_of(pid)?)))
        .collect();
    parents.sort_unstable();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let one = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

/// Returns the directories of a process's threads.
fn threads_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().map(|task| task.path())
}

/// Prints the name and state of each thread, and the function of the kernel that it waits in.
fn print_threads(pid: u32) {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    eprintln!("-- {pid}: {}", String::from_utf8_lossy(&command).replace('\0', " "));
    for thread in threads_of(pid) {
        let read = |file: &str| read_to_string(thread.join(file)).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("State: unknown");
        eprintln!("   {} {} {state} {}", thread.display(), read("comm").trim(), read("wchan"));
    }
}

/// Prints the kernel stacks of a process's threads, if the user may read them.
fn print_stacks(pid: u32) {
    for thread in threads_of(pid) {
        let stack = read_to_string(thread.join("stack")).unwrap_or_default();
        let frames: Vec<_> = stack.lines().map(str::trim).collect();
        eprintln!("-- stack of {}: {}", thread.display(), frames.join(" "));
    }
}

/// Prints the number of requests that wait in each FUSE connection.
fn print_requests() {
    for connection in read_dir("/sys/fs/fuse/connections").into_iter().flatten().flatten() {
        let waiting = read_to_string(connection.path().join("waiting")).unwrap_or_default();
        eprintln!(
            "-- FUSE connection {}: {} requests wait",
            connection.file_name().display(),
            waiting.trim()
        );
    }
}
