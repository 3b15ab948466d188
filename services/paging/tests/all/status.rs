//! `rfs-paging status` shows running pagers, and the chunks that a lender has lent.

use std::{
    process::{Command, Output},
    slice,
};

use crate::support::{ChildLender, MIB, PAGE, Places, Provider, fill, options, pager};
use rfs_paging::{PagerReport, RemotePager};

fn status(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-paging"));
    let Output { status, stdout, stderr } = command.arg("status").args(arguments).output().expect("it runs");
    let (text, errors) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
    // Programs of other tests may not answer in time.
    assert!(status.success() || errors.contains("pagers that did not answer"), "{status} {text} {errors}");
    text
}

/// Returns the reports about pagers with a lender.
fn reports(lender: &ChildLender) -> Vec<PagerReport> {
    let reports: Vec<PagerReport> = serde_json::from_str(&status(&["--json"])).expect("JSON");
    let of_lender = |report: &PagerReport| report.servers == [lender.address.to_string()];
    reports.into_iter().filter(of_lender).collect()
}

/// Returns a lender, and a pager with pages there.
fn start() -> (ChildLender, RemotePager) {
    let lender = ChildLender::start(&Places::new().address(Provider::Tcp), 8 * MIB);
    let pager = pager(slice::from_ref(&lender.address), options(Provider::Tcp, 64).0);
    (lender, pager)
}

/// Catches counters that `status` does not show, and pagers that it shows after their end.
#[test]
fn all_counters_of_a_running_pager_are_shown() {
    let (lender, pager) = start();
    let mut memory = pager.map(300 * PAGE).expect("memory");
    fill(&mut memory, 0..300, 1);
    let all = status(&[]);
    let head = format!("): 256 KiB of local memory, servers {}\n", lender.address);
    let (before, text) = all.split_once(&head).expect("the pager");
    let pid = std::process::id();
    assert!(before.lines().last().is_some_and(|line| line.starts_with(&format!("process {pid} ("))), "{all}");
    let text = text.split("\nprocess ").next().expect("its lines");
    let stats = pager.stats();
    for (name, value) in stats.named() {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name}: {text}"));
        // Write-outs change the others meanwhile.
        assert!(name != "faults" || line.ends_with(&format!(" {value}")), "{line} {value}");
    }
    for name in ["faults", "hits", "evictions", "bytes_read", "merged", "work_requests", "window_waits"] {
        assert!(stats.named().iter().any(|(counter, _)| *counter == name), "{name}");
    }
    let [report] = &reports(&lender)[..] else { panic!("one pager") };
    assert_eq!((report.local_budget, report.counters.faults), (64 * PAGE as u64, stats.faults));

    let second = RemotePager::connect(slice::from_ref(&lender.address), options(Provider::Tcp, 32).0);
    assert_eq!(reports(&lender).len(), 2);
    drop(second);
    drop(pager);
    assert_eq!(reports(&lender), []);
}

/// Catches a child of `fork` that removes the socket of its parent.
#[test]
fn a_child_of_fork_leaves_the_status_of_its_parent() {
    let (lender, mut pager) = start();
    // SAFETY: The child allocates no memory, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        pager.end_status();
        // SAFETY: The child runs no code of the test harness.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: The child is this process' own.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert_eq!(reports(&lender).len(), 1);
    pager.end_status();
    assert_eq!(reports(&lender), []);
}

#[test]
fn the_memory_that_a_lender_has_lent_is_shown() {
    let (lender, pager) = start();
    let address = lender.address.to_string();
    assert_eq!(status(&[&address]), "0 B of 8 MiB lent\n");
    let mut memory = pager.map(300 * PAGE).expect("memory");
    fill(&mut memory, 0..300, 1);
    let text = status(&[&address]);
    assert!(text.starts_with("1 MiB of 8 MiB lent\nsession "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&status(&["--json", &address])).expect("JSON");
    assert_eq!((&json["chunks"], &json["free_chunks"]), (&8.into(), &7.into()), "{json}");
    let nowhere = Command::new(env!("CARGO_BIN_EXE_rfs-paging")).args(["status", "unix:/nowhere"]).output();
    let nowhere = nowhere.expect("it runs");
    assert_eq!(nowhere.status.code(), Some(1));
    let text = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(text.contains("cannot connect to unix:/nowhere"), "{text}");
}
