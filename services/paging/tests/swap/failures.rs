//! Servers that stop or end while programs have pages there, and too little memory for the pages.

use std::{
    io::{BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::ChildStdout,
};

use super::support::*;

/// Starts an area and a program that has most of its memory there. From now on the cgroup has room
/// for all pages of the program.
struct Swapped {
    // Fields are dropped in this order.
    program: Running,
    lines: BufReader<ChildStdout>,
    area: Running,
    device: String,
    folder: std::path::PathBuf,
    cgroup: Cgroup,
    fixture: Fixture,
}

impl Swapped {
    fn start(way: Way) -> Option<Swapped> {
        if let Some(obstacle) = obstacle() {
            not_run(&obstacle);
            return None;
        }
        let fixture = Fixture::start(way);
        let Some(cgroup) = Cgroup::make() else {
            not_run("a program in a cgroup, because there is no memory controller");
            return None;
        };
        let (area, device, folder) = fixture.area();
        let (program, lines) = in_the_cgroup(&cgroup, false);
        let swapped = Swapped { program, lines, area, device, folder, cgroup, fixture };
        assert!(swapped.swapped_out() > MEMORY / 2);
        Some(swapped)
    }

    /// Returns the bytes of the program in the area.
    fn swapped_out(&self) -> usize {
        status(self.program.0.id(), "VmSwap:") << 10
    }

    /// Lets pages come back without others having to leave.
    fn make_room(&self) {
        self.cgroup.set_limit(4 * MEMORY).expect("a new limit");
    }

    /// Lets the program load all of its memory.
    fn load_all(&mut self) {
        self.program.0.stdin.as_mut().expect("a pipe").write_all(b"check\n").expect("a reader");
    }

    /// Lets the program load all of its memory, which has to be right.
    fn check_all(&mut self) {
        self.load_all();
        line_with(&mut self.lines, "CHECKED");
        assert!(self.program.end().success());
    }

    /// Ends the area by a signal.
    fn end_area(&mut self, signal: i32) {
        self.area.send(signal);
        let ended = self.area.end();
        let text = rest(&mut self.area);
        assert!(ended.success(), "{text}");
        check_undone(Some(&self.device), &self.folder);
    }
}

/// Returns true if a process waits in the kernel, and no signal but SIGKILL wakes it.
fn is_waiting(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a state");
    // The name of the process may have spaces.
    text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('D'))
}

/// Returns true if a thread of a process waits for the kernel.
fn a_thread_waits(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    threads.flatten().any(|thread| {
        thread.file_name().to_str().and_then(|number| number.parse().ok()).is_some_and(is_waiting)
    })
}

/// The kernel lets a program be killed while it waits for a page. The mount's time for an operation
/// is much longer than the test may take for that.
#[test]
fn a_program_that_waits_for_a_stopped_server_can_be_killed() {
    let Some(mut swapped) = Swapped::start(Way::Tcp(600)) else { return };
    swapped.make_room();
    let stopped = swapped.fixture.server.stopped();
    swapped.load_all();
    let process = swapped.program.0.id();
    wait_for("a thread that waits for a page", || a_thread_waits(process));
    swapped.program.send(libc::SIGKILL);
    assert_eq!(swapped.program.end().signal(), Some(libc::SIGKILL));
    assert!(is_swap(&swapped.device));
    drop(stopped);
    swapped.end_area(libc::SIGTERM);
}

/// The server ends under a program that goes on to use its memory.
#[test]
fn a_program_gets_sigbus_if_the_server_of_its_pages_is_killed() {
    let Some(mut swapped) = Swapped::start(Way::Tcp(3)) else { return };
    swapped.make_room();
    swapped.fixture.server.0.kill().expect("a running server");
    swapped.load_all();
    assert_eq!(swapped.program.end().signal(), Some(libc::SIGBUS));
    assert!(matches!(swapped.area.0.try_wait(), Ok(None)), "the area stays");
    swapped.end_area(libc::SIGINT);
}

/// Ends an area whose server does not answer. The program still has most of its memory there.
fn end_without_server(mut swapped: Swapped, signal: i32) {
    swapped.make_room();
    swapped.area.send(signal);
    let ended = swapped.area.end();
    let text = rest(&mut swapped.area);
    assert!(ended.success(), "{text}");
    assert!(text.contains("the server may keep the file of the area: "), "{text}");
    check_undone(Some(&swapped.device), &swapped.folder);
    assert!(matches!(swapped.program.0.try_wait(), Ok(None)), "it has not used a lost page yet");
    swapped.load_all();
    assert_eq!(swapped.program.end().signal(), Some(libc::SIGBUS));
}

/// Catches an area that waits for each of its pages in turn, and one that waits forever.
#[test]
fn the_area_of_a_killed_server_can_be_ended() {
    let Some(mut swapped) = Swapped::start(Way::Tcp(3)) else { return };
    swapped.fixture.server.0.kill().expect("a running server");
    end_without_server(swapped, libc::SIGTERM);
}

#[test]
fn the_area_of_a_stopped_server_can_be_ended() {
    let Some(swapped) = Swapped::start(Way::Tcp(3)) else { return };
    let _stopped = swapped.fixture.server.stopped();
    end_without_server(swapped, libc::SIGINT);
}

/// The cgroup of the program is full, so its pages cannot come back.
#[test]
fn an_area_without_memory_for_its_pages_stays() {
    let Some(mut swapped) = Swapped::start(Way::Shm) else { return };
    // Otherwise the kernel ends the program to get memory for its pages.
    let is_spared = swapped.cgroup.spare_programs();
    swapped.area.send(libc::SIGTERM);
    let failure = swapped.folder.join("failure");
    wait_for("the failure", || failure.exists());
    assert!(is_swap(&swapped.device) && matches!(swapped.area.0.try_wait(), Ok(None)), "the area stays");
    let output = swapoff();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if is_spared {
        assert_eq!(output.status.code(), Some(1), "{text}");
        let reason = format!("cannot swapoff {}: Cannot allocate memory", swapped.device);
        assert!(text.contains(&reason) && text.contains("; the swap area stays"), "{text}");
        assert!(swapped.swapped_out() > 0);
        swapped.make_room();
        swapped.end_area(libc::SIGTERM);
        swapped.check_all();
    } else {
        println!("not run: a program that outlives the end, because the kernel ends one without memory");
        swapped.area.send(libc::SIGTERM);
        swapped.area.end();
        check_undone(Some(&swapped.device), &swapped.folder);
    }
}

/// Ends an area by `rfs-paging swapoff` while a program has most of its memory there. Checks all
/// bytes. If `is_killed` is set, the process of the area is killed before, and leaves its mount.
fn swapoff_with_pages(way: Way, is_killed: bool) {
    let Some(mut swapped) = Swapped::start(way) else { return };
    assert!(swap_used(&swapped.device) > MEMORY / 2, "the pages are in another area");
    swapped.make_room();
    if is_killed {
        swapped.area.send(libc::SIGKILL);
        assert_eq!(swapped.area.end().signal(), Some(libc::SIGKILL));
        assert!(is_swap(&swapped.device) && swapped.swapped_out() > MEMORY / 2, "the area stays");
    }
    let mut swapoff = spawn(&mut swapoff_command());
    let ended = swapoff.end();
    let (text, errors) = (output(&mut swapoff), rest(&mut swapoff));
    assert!(ended.success() && errors.is_empty(), "{ended}: {text} {errors}");
    let process = swapped.area.0.id();
    if is_killed {
        assert!(text.starts_with(&format!("process {process} is gone and has left a swap area\n")), "{text}");
        assert!(text.contains(&format!("ended swapping to {}\n", swapped.device)), "{text}");
    } else {
        assert_eq!(text, format!("process {process} has ended its swap area\n"));
        assert!(swapped.area.end().success(), "{}", rest(&mut swapped.area));
    }
    check_undone(Some(&swapped.device), &swapped.folder);
    assert_eq!(swapped.swapped_out(), 0);
    swapped.check_all();
    // The server has room for another area, so it has freed the file of the first one.
    let (mut second, device, folder) = swapped.fixture.area();
    second.send(libc::SIGTERM);
    assert!(second.end().success(), "{}", rest(&mut second));
    check_undone(Some(&device), &folder);
}

#[test]
fn swapoff_brings_the_pages_of_a_program_back() {
    for way in [Way::Shm, Way::Tcp(60)] {
        swapoff_with_pages(way, false);
    }
}

/// Catches an end that relies on the process of the area: the mount has to go on without it.
#[test]
fn swapoff_brings_the_pages_of_an_area_back_whose_process_was_killed() {
    for way in [Way::Shm, Way::Tcp(60)] {
        swapoff_with_pages(way, true);
    }
}
