//! `rfs-paging status`: shows running pagers, or the memory of a lender.
//!
//! # Concurrency
//! One thread.

use std::{error::Error, path::PathBuf};

use rdmabox::Address;
use rfs_paging::{PagerReport, lender_status, running_pagers};
use rfs_status::text::{Table, printable};
use service_program::say;

/// Shows all running pagers of this user.
pub(crate) fn pagers(json: bool) -> Result<(), Box<dyn Error>> {
    let (mut reports, mut silent) = (Vec::new(), 0);
    for answer in running_pagers() {
        match answer {
            Ok(report) => reports.push(report),
            Err(error) => {
                eprintln!("rfs-paging: {error}");
                silent += 1;
            }
        }
    }
    if json {
        say(&serde_json::to_string_pretty(&reports)?);
    } else if reports.is_empty() {
        say("no program of this user has paged memory");
    } else {
        say(reports.iter().map(text).collect::<Vec<_>>().join("\n").trim_end());
    }
    if silent > 0 { Err(format!("pagers that did not answer: {silent}").into()) } else { Ok(()) }
}

/// Returns the lines about a pager.
fn text(report: &PagerReport) -> String {
    let mut table = Table::new(&["counter", ">value"]);
    for (name, value) in report.counters.named() {
        table.row([name.into(), value.to_string()]);
    }
    let PagerReport { pid, program, servers, local_budget, .. } = report;
    let head = format!(
        "process {pid} ({program}): {} of local memory, servers {}",
        byte_size::show(*local_budget),
        servers.join(", ")
    );
    format!("{}\n{table}", printable(&head))
}

/// Shows how much memory a lender has lent.
pub(crate) fn lender(address: &Address, key: Option<PathBuf>, json: bool) -> Result<(), Box<dyn Error>> {
    let status = lender_status(address, &super::session_options(key.as_deref())?)?;
    if json {
        say(&serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    let size = |chunks: u32| byte_size::show(u64::from(chunks) * status.chunk_bytes);
    say(&format!("{} of {} lent", size(status.chunks - status.free_chunks), size(status.chunks)));
    for (session, chunks) in &status.borrowers {
        say(&format!("session {session}: {}", size(*chunks)));
    }
    Ok(())
}
