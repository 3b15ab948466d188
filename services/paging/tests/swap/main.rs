//! Swap areas in the memory of an rfs-server. The tests have programs whose memory cgroup is
//! smaller than their memory, servers that stop or end, and signals at any moment.
//!
//! RFS_SWAP_SECONDS makes one test longer. With RFS_REQUIRE_PAGING_TOOLS a test that cannot run
//! fails.
//!
//! Own program: `rfs-paging swapoff` ends all areas of the machine, so one test runs at a time.

mod failures;
mod moments;
mod support;

use std::{
    fs,
    io::Write,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use support::*;

/// Returns true if this process, and so rfs-fuse, has CAP_SYS_RESOURCE.
fn may_spare_from_the_oom_killer() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let text = fs::read_to_string("/proc/self/status").expect("a status");
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
    u64::from_str_radix(line.trim(), 16).expect("a mask") >> CAP_SYS_RESOURCE & 1 == 1
}

#[test]
#[ignore = "part of a_program_in_a_small_cgroup_swaps_to_a_server"]
fn fill_more_than_the_cgroup_holds() {
    let Some(cgroup) = std::env::var_os(CGROUP) else { return };
    fs::write(Path::new(&cgroup).join("cgroup.procs"), std::process::id().to_string()).expect("a member");
    let mut memory = vec![0_u64; MEMORY / 8];
    let value = |round: u64, at: usize| (at as u64 ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let begin = Instant::now();
    let mut round = 0;
    while round < 3 || begin.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        memory.iter_mut().enumerate().for_each(|(at, word)| *word = value(round, at));
        let wrong = memory.iter().enumerate().position(|(at, word)| *word != value(round, at));
        assert_eq!(wrong, None, "round {round}");
    }
    println!("{round} rounds");
    println!("FILLED");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("text");
    let wrong = memory.iter().enumerate().position(|(at, word)| *word != value(round, at));
    assert_eq!((wrong, line.as_str()), (None, "check\n"), "round {round}");
    println!("CHECKED");
}

/// Checks that the mount of an area neither is swapped out nor can be.
fn check_mount_is_locked(area: &Running) {
    let children = Command::new("pgrep").args(["-P", &area.0.id().to_string()]).output().expect("pgrep");
    let fuse: u32 = String::from_utf8_lossy(&children.stdout).trim().parse().expect("one child");
    assert!(status(fuse, "VmLck:") > 0, "its memory is not locked");
    assert_eq!(status(fuse, "VmSwap:"), 0);
    if may_spare_from_the_oom_killer() {
        let score = fs::read_to_string(format!("/proc/{fuse}/oom_score_adj")).expect("a score");
        assert_eq!(score.trim(), "-1000");
    } else {
        println!("not checked: oom_score_adj, because there is no CAP_SYS_RESOURCE");
    }
}

/// Sends signals that are none of the program's, or that its mount leaves to it.
fn check_signals_leave_the_area(child: &mut Running, device: &str) {
    // A service manager sends the signal to all processes of a service.
    let fuse = Command::new("pkill").args(["-TERM", "-P", &child.0.id().to_string()]).status();
    assert!(fuse.expect("pkill").success());
    // Signals without a meaning for the program.
    child.send(libc::SIGUSR1);
    child.send(libc::SIGUSR2);
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_swap(device) && matches!(child.0.try_wait(), Ok(None)), "the area stays");
}

#[test]
fn a_program_in_a_small_cgroup_swaps_to_a_server() {
    if let Some(obstacle) = obstacle() {
        not_run(&obstacle);
        return;
    }
    let fixture = Fixture::start(Way::Shm);

    // More than the server has: an error, and nothing is left.
    let (mut child, _lines) = fixture.swapon("1g");
    assert_eq!(child.0.wait().expect("its end").code(), Some(1));
    let text = rest(&mut child);
    assert!(text.contains("rfs-paging: cannot reserve space at the server for"), "{text}");
    assert_eq!(folder(&child), None);

    let (mut child, device, area_folder) = fixture.area();
    let cgroup = Cgroup::make();
    let program = cgroup.as_ref().map(|cgroup| in_the_cgroup(cgroup, true));
    match &program {
        Some((program, _)) => {
            let swapped = status(program.0.id(), "VmSwap:");
            println!("{} MiB of {} are swapped out", swapped >> 10, MEMORY / MIB);
            assert!(swapped << 10 > MEMORY / 2);
        }
        None => not_run("a program in a cgroup, because there is no memory controller"),
    }
    check_mount_is_locked(&child);
    check_signals_leave_the_area(&mut child, &device);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("a list");
    assert!(mounts.contains(area_folder.to_str().expect("text")), "{mounts}");
    // The pages of a program that runs come back.
    cgroup.iter().for_each(|cgroup| cgroup.set_limit(4 * MEMORY).expect("a new limit"));
    child.send(libc::SIGHUP);
    assert!(child.0.wait().expect("its end").success(), "{}", rest(&mut child));
    check_undone(Some(&device), &area_folder);
    if let Some((mut program, mut lines)) = program {
        assert_eq!(status(program.0.id(), "VmSwap:"), 0);
        program.0.stdin.take().expect("a pipe").write_all(b"check\n").expect("a reader");
        line_with(&mut lines, "CHECKED");
        assert!(program.0.wait().expect("its end").success());
    }
    drop(cgroup);

    // A process that runs, and one that was killed.
    let (mut child, device, area_folder) = fixture.area();
    let output = swapoff();
    assert!(output.status.success(), "{output:?}");
    assert!(child.0.wait().expect("its end").success());
    check_undone(Some(&device), &area_folder);
    let (mut child, device, area_folder) = fixture.area();
    child.send(libc::SIGKILL);
    child.0.wait().expect("its end");
    assert!(is_swap(&device));
    let output = swapoff();
    assert!(output.status.success(), "{output:?}");
    check_undone(Some(&device), &area_folder);
    assert_eq!(swapoff().status.code(), Some(1), "there is no area");

    // The mount ends: so does the area.
    let (mut child, device, area_folder) = fixture.area();
    let processes = Command::new("pkill").args(["-KILL", "-P", &child.0.id().to_string()]).status();
    assert!(processes.expect("pkill").success());
    assert_eq!(child.0.wait().expect("its end").code(), Some(1));
    let text = rest(&mut child);
    assert!(text.contains("the file is rfs-paging-swap-"), "{text}");
    check_undone(Some(&device), &area_folder);
}
