//! Signals between the steps of `rfs-paging swapon`: nothing is left.
//!
//! The program prints a line after each step. Its output is a pipe that holds one line. A program
//! that prints waits until the line before is read, so the test decides how far it gets.

use std::{
    fs::{self, File},
    io::Read,
    os::fd::FromRawFd,
    process::{Command, Stdio},
};

use super::support::*;

/// Returns a pipe that holds one write. It has one already.
fn pipe_for_one_line() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: The array has room for two descriptors. Each becomes one `File`.
    let (reader, mut writer) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_DIRECT), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    let len = rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a length");
    assert_eq!(len, 4096, "room for one write");
    std::io::Write::write_all(&mut writer, b"full\n").expect("room");
    (reader, writer)
}

/// Returns true if the process waits until its output has room.
fn is_printing(child: &Running) -> bool {
    let call = fs::read_to_string(format!("/proc/{}/syscall", child.0.id())).unwrap_or_default();
    call.starts_with(&format!("{} 0x1 ", libc::SYS_write))
}

/// A program that makes an area, and gets as far as the test reads its lines.
struct Steps {
    child: Running,
    pipe: File,
    /// The server does not answer.
    stopped: Option<Stopped>,
    fixture: Fixture,
}

impl Steps {
    fn start(way: Way) -> Option<Steps> {
        Steps::start_with(way, false)
    }

    fn start_with(way: Way, is_stopped: bool) -> Option<Steps> {
        if let Some(obstacle) = obstacle() {
            not_run(&obstacle);
            return None;
        }
        let fixture = Fixture::start(way);
        let stopped = is_stopped.then(|| fixture.server.stopped());
        let (pipe, output) = pipe_for_one_line();
        let child = spawn(fixture.command("64m").stdout(Stdio::from(output)));
        Some(Steps { child, pipe, stopped, fixture })
    }

    /// Reads a number of lines, and waits until the program is about to print the next one.
    fn read_lines(&mut self, count: usize) -> String {
        let mut text = String::new();
        for _ in 0..count {
            let mut line = [0; 4096];
            let len = self.pipe.read(&mut line).expect("a line");
            text.push_str(&String::from_utf8_lossy(&line[..len]));
        }
        let child = &mut self.child;
        wait_for("the next line", || {
            assert!(matches!(child.0.try_wait(), Ok(None)), "it ended after {text}");
            is_printing(child)
        });
        text
    }

    /// Lets the program end, and checks that nothing is left. Returns its status and its errors.
    fn finish(mut self) -> (Option<i32>, String) {
        let id = self.child.0.id();
        // A shorter read would cut a line.
        let mut line = [0; 4096];
        while let Ok(len @ 1..) = self.pipe.read(&mut line) {
            print!("{}", String::from_utf8_lossy(&line[..len]));
        }
        let status = self.child.end();
        let errors = rest(&mut self.child);
        assert_eq!(folder(&self.child), None, "{errors}");
        let name = format!("rfs-paging-swap-{id}-");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("a list");
        assert!(!mounts.contains(&format!("/swap-{id}-")), "{mounts}");
        for device in fs::read_dir("/sys/block").expect("a list").flatten() {
            let file = device.path().join("loop/backing_file");
            assert!(!fs::read_to_string(file).unwrap_or_default().contains(&name), "{device:?}");
        }
        let mounting = || {
            let found = Command::new("pgrep").args(["-f", &format!("rfs-fuse .*/swap-{id}-")]).output();
            found.expect("pgrep").status.success()
        };
        wait_for("the end of the mount", || !mounting());
        drop(self.stopped);
        (status.code(), errors)
    }
}

#[test]
fn a_signal_between_two_steps_leaves_nothing() {
    for (lines, last) in [(0, "mounted"), (1, "reserved"), (2, "attached"), (3, "ready:")] {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            let Some(mut steps) = Steps::start(Way::Shm) else { return };
            let text = steps.read_lines(lines);
            println!("signal {signal} before {last:?}, after {text:?}");
            assert_eq!(text.lines().count(), lines, "{text}");
            steps.child.send(signal);
            let (status, errors) = steps.finish();
            if last == "ready:" {
                // The mount may have warnings.
                assert_eq!((status, errors.contains("rfs-paging: ")), (Some(0), false), "{errors}");
            } else {
                assert_eq!(status, Some(1), "{errors}");
                assert!(errors.ends_with("rfs-paging: stopped by a signal\n"), "{errors}");
            }
        }
    }
}

/// The server does not answer, so the mount does not come.
#[test]
fn a_signal_before_the_mount_leaves_nothing() {
    let Some(steps) = Steps::start_with(Way::Tcp(60), true) else { return };
    let id = steps.child.0.id().to_string();
    wait_for("rfs-fuse", || {
        let found = Command::new("pgrep").args(["-x", "-P", &id, "rfs-fuse"]).output();
        found.expect("pgrep").status.success()
    });
    steps.child.send(libc::SIGTERM);
    let (status, errors) = steps.finish();
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.ends_with("rfs-paging: stopped by a signal\n"), "{errors}");
}

/// Catches an end that waits for a server that is gone.
#[test]
fn a_server_that_is_gone_between_two_steps_leaves_nothing() {
    for lines in [0, 1, 2, 3] {
        let Some(mut steps) = Steps::start(Way::Tcp(3)) else { return };
        steps.read_lines(lines);
        steps.fixture.server.0.kill().expect("a running server");
        steps.child.send(libc::SIGTERM);
        let (status, errors) = steps.finish();
        println!("after {lines} lines: {status:?} {errors}");
        assert!(status == Some(1) || lines == 3, "{errors}");
        assert!(errors.contains("rfs-paging: "), "{errors}");
    }
}
