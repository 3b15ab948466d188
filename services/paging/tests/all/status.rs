//! `rfs-paging status` shows running pagers, and the chunks that a lender has lent.

use std::{
    process::{Command, Output},
    slice,
};

use crate::support::{ChildLender, MIB, PAGE, Places, Provider, check, fill, options, pager, wait_for};
use rfs_paging::{PagerReport, PagerStats, RemotePager};

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

/// Returns the answer to a question, and the counters of a pager at that time.
fn at_rest<T>(pager: &RemotePager, ask: impl Fn() -> T) -> (T, PagerStats) {
    let mut answer = None;
    // Write-outs change the counters.
    wait_for("counters that stay", || {
        let before = pager.stats();
        answer = Some((ask(), before));
        pager.stats() == before
    });
    answer.expect("an answer")
}

/// Catches counters that `status` does not show or shows wrongly, and pagers that it shows after
/// their end.
#[test]
fn all_counters_of_a_running_pager_are_shown() {
    let (lender, pager) = start();
    let mut memory = pager.map(300 * PAGE).expect("memory");
    fill(&mut memory, 0..300, 1);
    check(&memory, 0..300, 1);
    fill(&mut memory, 296..300, 1);
    let (all, stats) = at_rest(&pager, || status(&[]));
    let head = format!("): 256 KiB of local memory, servers {}\n", lender.address);
    let (before, text) = all.split_once(&head).expect("the pager");
    let pid = std::process::id();
    assert!(before.lines().last().is_some_and(|line| line.starts_with(&format!("process {pid} ("))), "{all}");
    let text = text.split("\nprocess ").next().expect("its lines");
    for (name, value) in stats.named() {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name}: {text}"));
        assert!(line.ends_with(&format!(" {value}")), "{line} {value}");
    }
    for name in
        ["faults", "hits", "evictions", "pages_written", "bytes_read", "merged", "work_requests", "doorbells"]
    {
        assert!(stats.named().iter().any(|(counter, value)| *counter == name && *value > 0), "{name}");
    }
    let (json, stats) = at_rest(&pager, || status(&["--json"]));
    let all: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    let servers = serde_json::json!([lender.address.to_string()]);
    let mut of_lender = all.iter().filter(|report| report["servers"] == servers);
    let (Some(report), None) = (of_lender.next(), of_lender.next()) else { panic!("one pager: {json}") };
    assert_eq!(report["local_budget"], 64 * PAGE as u64);
    let counters: serde_json::Map<_, _> =
        stats.named().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    assert_eq!(report["counters"], serde_json::Value::Object(counters), "{json}");

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
