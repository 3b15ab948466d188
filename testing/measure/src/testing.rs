//! Helpers for the tests of the benchmark programs. They panic on unexpected input.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// Returns the entries of a directory, sorted.
#[track_caller]
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

/// Converts output to text. Invalid UTF-8 is replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the process IDs of all processes except this process.
pub fn other_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse().ok());
    numbers.filter(|pid| *pid != std::process::id())
}

/// Returns the contents of the mappings of a process that the kernel writes into a core dump
/// (core(5)): writable mappings without the flag `dd`. Leaves out pages of zeros. Needs the right
/// to read the process's memory.
pub fn dumped(pid: u32) -> io::Result<Vec<u8>> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let (mut range, mut all) = (None, Vec::new());
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-').filter(|_| !first.ends_with(':')) {
            let [start, end] = [start, end].map(|digits| u64::from_str_radix(digits, 16).unwrap_or_default());
            let is_writable = words.next().is_some_and(|rights| rights.contains('w'));
            range = is_writable.then_some((start, end));
        } else if first == "VmFlags:"
            && !words.any(|flag| flag == "dd")
            && let Some((start, end)) = range
        {
            let mut bytes = vec![0; (end - start) as usize];
            // The page may be unmapped by now.
            if memory.read_exact_at(&mut bytes, start).is_ok() {
                let touched = bytes.chunks(4096).filter(|page| *page != &ZEROS[..page.len()]);
                all.extend(touched.flatten());
            }
        }
    }
    Ok(all)
}

/// Returns the thread of a process with a name, if there is one.
pub fn thread_named(pid: u32, name: &str) -> Option<i32> {
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let found = threads.find(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    found?.file_name().to_str()?.parse().ok()
}

/// A system call in which threads of the programs sleep.
#[cfg(all(target_arch = "x86_64", feature = "ptrace"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepingCall {
    /// epoll_wait(2), which fails with EINVAL.
    EpollWait,
    /// read(2), which fails with EIO.
    Read,
}

/// Makes a system call fail in a thread of another process that sleeps there. Returns false if the
/// thread does not sleep there now. Needs the right to trace the process.
#[cfg(all(target_arch = "x86_64", feature = "ptrace"))]
pub fn fail_sleeping_call(thread: i32, sleeping: SleepingCall) -> io::Result<bool> {
    use nix::{
        libc,
        sys::{
            ptrace,
            wait::{WaitPidFlag, waitpid},
        },
        unistd::Pid,
    };

    // The kernel's number for a call that it repeats after a signal. No header has it.
    const ERESTARTSYS: i32 = 512;
    let (number, interrupted, error) = match sleeping {
        SleepingCall::EpollWait => (libc::SYS_epoll_wait, libc::EINTR, libc::EINVAL),
        SleepingCall::Read => (libc::SYS_read, ERESTARTSYS, libc::EIO),
    };
    let thread = Pid::from_raw(thread);
    ptrace::attach(thread)?;
    // The stop interrupts the call.
    waitpid(thread, Some(WaitPidFlag::__WALL))?;
    let mut registers = ptrace::getregs(thread)?;
    let result = registers.rax.cast_signed();
    let sleeps = registers.orig_rax.cast_signed() == number && result == i64::from(-interrupted);
    if sleeps {
        registers.rax = i64::from(-error).cast_unsigned();
        ptrace::setregs(thread, registers)?;
    }
    ptrace::detach(thread, None)?;
    Ok(sleeps)
}

/// Returns true if `memory` contains the bytes.
pub fn contains(memory: &[u8], wanted: &[u8]) -> bool {
    memory.windows(wanted.len()).any(|window| window == wanted)
}

/// Polls until `done` returns true. Panics after one minute or if `child` ends.
#[track_caller]
pub fn wait_until(what: &str, child: &mut Child, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        assert!(matches!(child.try_wait(), Ok(None)), "{what}: the program ended");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that every element of an SVG picture, or of other XML without comments, is closed.
#[track_caller]
pub fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split_once('>').map_or(tag, |(tag, _)| tag);
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.extend(tag.split(' ').next()),
        }
    }
    assert_eq!(open, [] as [&str; 0]);
}
