//! The kernel's trace of FUSE requests. It tells which side made an error of a call: the mount that
//! answered, or the kernel after the answer. Needs tracefs, and the events of Linux 6.11.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use super::directory;

/// Text that a thread writes to the trace before a call.
const MARK: &str = "call begins";

/// A trace of all FUSE requests of this machine, which ends when this is dropped.
pub(crate) struct FuseTrace {
    instance: PathBuf,
    /// Closed before the instance is removed.
    marker: Option<File>,
    _mounted: Mounted,
}

/// A place where tracefs is mounted until this is dropped.
struct Mounted(TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).ok();
    }
}

impl FuseTrace {
    /// Starts a trace.
    ///
    /// # Errors
    /// This kernel has no such events, or this process may not trace.
    pub(crate) fn start() -> io::Result<FuseTrace> {
        let mounted = Mounted(directory());
        mount("tracefs", mounted.0.path(), "tracefs", MountFlags::empty(), None)?;
        let instance = mounted.0.path().join("instances").join(format!("rfs-test-{}", std::process::id()));
        fs::create_dir(&instance)?;
        let prepared = fs::write(instance.join("buffer_size_kb"), "4096")
            .and_then(|()| fs::write(instance.join("events/fuse/enable"), "1"))
            .and_then(|()| File::options().write(true).open(instance.join("trace_marker")));
        match prepared {
            Ok(marker) => Ok(FuseTrace { instance, marker: Some(marker), _mounted: mounted }),
            Err(e) => {
                fs::remove_dir(&instance).ok();
                Err(e)
            }
        }
    }

    /// Marks the begin of a call of this thread.
    pub(crate) fn mark(&self) {
        let marked = self.marker.as_ref().map(|mut marker| marker.write_all(MARK.as_bytes()));
        marked.transpose().expect("a mark in the trace");
    }

    /// Returns the requests of this thread's last call in their order, each with the error number
    /// of its answer. The number is 0 for success.
    pub(crate) fn answers(&self) -> Vec<(String, i32)> {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let trace = fs::read_to_string(self.instance.join("trace")).expect("the trace");
        answers(&trace, own)
    }
}

impl Drop for FuseTrace {
    fn drop(&mut self) {
        self.marker = None;
        fs::write(self.instance.join("events/fuse/enable"), "0").ok();
        fs::remove_dir(&self.instance).ok();
    }
}

/// Splits a line of a trace into thread, event and text.
fn parse(line: &str) -> Option<(i32, &str, &str)> {
    let (thread, rest) = line.split_once(" [")?;
    let thread = thread.trim_end().rsplit_once('-')?.1.parse().ok()?;
    let (event, text) = rest.split_once(": ")?.1.split_once(": ")?;
    Some((thread, event, text))
}

/// Returns the number that follows a word.
fn number<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    text.split(' ').skip_while(|part| *part != word).nth(1)
}

fn answers(trace: &str, own: i32) -> Vec<(String, i32)> {
    let (mut requests, mut ends) = (Vec::new(), HashMap::new());
    for (thread, event, text) in trace.lines().filter_map(parse) {
        let request = (number(text, "connection"), number(text, "req"));
        match event {
            "tracing_mark_write" if thread == own && text.starts_with(MARK) => requests.clear(),
            "fuse_request_send" if thread == own => requests.push((request, text)),
            "fuse_request_end" => {
                ends.insert(request, number(text, "error").and_then(|error| error.parse::<i32>().ok()));
            }
            _ => {}
        }
    }
    let answer = |(request, text): ((_, _), &str)| {
        let error = ends.get(&request).copied().flatten()?;
        Some((text.to_owned(), -error))
    };
    requests.into_iter().filter_map(answer).collect()
}

#[test]
fn answers_are_those_of_the_last_call_of_a_thread() {
    let trace = "\
# tracer: nop
 a test-7    [000] ..... 1.000001: tracing_mark_write: call begins
 a test-7    [000] ..... 1.000002: fuse_request_send: connection 5 req 2 opcode 1 (FUSE_LOOKUP) len 45
 fuser-0-9   [001] ..... 1.000003: fuse_request_end: connection 5 req 2 len 16 error -2
 a test-7    [000] ..... 1.000004: tracing_mark_write: call begins
 a test-7    [000] ..... 1.000005: fuse_request_send: connection 5 req 4 opcode 1 (FUSE_LOOKUP) len 45
 a test-8    [001] ..... 1.000006: fuse_request_send: connection 5 req 6 opcode 3 (FUSE_GETATTR) len 56
 fuser-0-9   [001] ..... 1.000007: fuse_request_end: connection 6 req 4 len 16 error -116
 fuser-0-9   [001] ..... 1.000008: fuse_request_end: connection 5 req 4 len 144 error 0
 fuser-0-9   [001] ..... 1.000009: fuse_request_end: connection 5 req 6 len 16 error -116
";
    let (own, other) = (answers(trace, 7), answers(trace, 8));
    assert_eq!(own, [("connection 5 req 4 opcode 1 (FUSE_LOOKUP) len 45".to_owned(), 0)]);
    assert_eq!(other, [("connection 5 req 6 opcode 3 (FUSE_GETATTR) len 56".to_owned(), 116)]);
}
