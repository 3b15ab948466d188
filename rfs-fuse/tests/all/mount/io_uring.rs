//! FUSE over io_uring: when mounts use it, and the kernel's switch.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal};

use super::program::{assert_fails, run_to_failure};
use crate::common::{directory, exit_of, is_mounted, program};

/// If the kernel offers io_uring and no option disables it. `ci/mounts/ring` enables it in the
/// kernel.
#[test]
fn requests_come_over_io_uring_if_the_kernel_offers_it() {
    crate::common::require_fuse();
    let switch = fs::read_to_string(SWITCH);
    let offered = switch.is_ok_and(|value| value.trim() == "Y");
    assert!(offered || std::env::var_os("RFS_TEST_RING").is_none(), "the kernel does not offer it");
    for (options, way) in [
        (&["--null"][..], if offered { "io_uring" } else { "/dev/fuse" }),
        (&["--null", "--no-io-uring"], "/dev/fuse"),
        // The kernel would accept this size without checking that the longest extended attribute
        // fits.
        (&["--null", "--max-write", "64K"], "/dev/fuse"),
    ] {
        let point = directory();
        let mut command = program();
        command.args(options).arg(point.path()).env("RUST_LOG", "debug");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut String::new()).expect("it is mounted");
        fs::write(point.path().join("file"), b"bytes").expect("written");
        assert_eq!(fs::read(point.path().join("file")).expect("read"), b"bytes");
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("signal sent");
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!(exit_of(&mut child).code(), Some(0), "{said}");
        assert!(said.contains(&format!("requests come over {way}\n")), "{said}");
    }
}

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs a mount with `--null --io-uring=on` to its failure, after `prepare` in a mount namespace
/// of its own.
fn insist_on_a_ring(prepare: &str) -> Output {
    let point = directory();
    let script = format!("{prepare} && exec \"$0\" --null --io-uring=on \"$1\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_rfs-fuse")]).arg(point.path());
    let out = run_to_failure(&mut command);
    assert!(!is_mounted(point.path()));
    out
}

#[test]
fn io_uring_on_fails_with_the_next_step_if_it_cannot_be_enabled() {
    crate::common::require_fuse();
    let missing = insist_on_a_ring("mount -t tmpfs none /sys/module/fuse/parameters");
    assert_fails(&missing, 1, &[SWITCH, "Linux 6.14", "--io-uring=auto"]);
    let Ok(value) = fs::read_to_string(SWITCH) else {
        return eprintln!("not run further: the kernel has no {SWITCH}");
    };
    if value.trim() == "Y" {
        return eprintln!("not run further: FUSE over io_uring is on");
    }
    let fake = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&fake, "N\n").expect("written");
    let fake_path = fake.path().display();
    let refused =
        insist_on_a_ring(&format!("mount --bind {fake_path} {SWITCH} && mount -o remount,bind,ro {SWITCH}"));
    assert_fails(&refused, 1, &["cannot switch on", "Read-only", &format!("echo Y >{SWITCH}")]);
    // The kernel ignores this file.
    let out = insist_on_a_ring(&format!("mount --bind {fake_path} {SWITCH}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!(fs::read_to_string(&fake).expect("read"), "Y\n", "{said}");
    for words in ["is on now", "rfs-fuse: --io-uring=on: no FUSE over io_uring: the kernel does not agree"] {
        assert!(said.contains(words), "{said}");
    }
}

/// Runs without other tests, because it changes a setting of the kernel (`ci/nextest.toml`).
#[test]
fn io_uring_on_switches_it_on() {
    if std::env::var_os("RFS_TEST_RING").is_none() {
        return eprintln!("not run: RFS_TEST_RING is not set; ci/mounts/ring sets it");
    }
    crate::common::require_fuse();
    let before = fs::read_to_string(SWITCH).expect("the kernel has FUSE over io_uring");
    let _restore = Restore(&before);
    for (option, switched) in [("--io-uring=on", true), ("-oio_uring", false)] {
        if switched {
            fs::write(SWITCH, "N\n").expect("written");
        }
        let point = directory();
        let mut command = program();
        command.args(["--null", option]).arg(point.path()).env("RUST_LOG", "debug");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut String::new()).expect("it is mounted");
        assert_eq!(fs::read_to_string(SWITCH).expect("read").trim(), "Y");
        fs::write(point.path().join("file"), b"bytes").expect("written");
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("signal sent");
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!(exit_of(&mut child).code(), Some(0), "{said}");
        assert!(said.contains("requests come over io_uring\n"), "{said}");
        assert_eq!(said.contains(&format!("is on now: {SWITCH} is Y")), switched, "{said}");
    }
}

/// Restores the setting when dropped.
struct Restore<'a>(&'a str);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        fs::write(SWITCH, self.0).ok();
    }
}
