//! Stops the server for some seconds while its mounts are used. Operations must wait and then
//! succeed.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::workload::Workload;
use crate::{
    error::Result,
    report::Report,
    testbed::{Mount, Plan, Testbed},
};

/// Number of mounts.
const MOUNTS: usize = 3;
/// Limit for an unmount while the server is stopped. It needs no reply from the server.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(2);

/// Stops the server `times` times, for `time` each.
pub(crate) fn run(plan: &Plan, times: u32, time: Duration) -> Result<Report> {
    let mut testbed = Testbed::start(plan)?;
    let mounts = (0..MOUNTS).map(|_| testbed.mount()).collect::<Result<Vec<_>>>()?;
    let mut workload = Workload::new(plan, &mounts);
    let mut unmounting = Duration::ZERO;
    for number in 1..=times {
        let idle = testbed.mount()?;
        workload.run_through(&format!("{number}: the server stopped"), || {
            let began = Instant::now();
            testbed.signal_server(Signal::STOP)?;
            idle.unmount_by(&mut testbed)?;
            unmounting = unmounting.max(began.elapsed());
            thread::sleep(time.saturating_sub(began.elapsed()));
            testbed.signal_server(Signal::CONT)
        })?;
    }
    let title = format!("the server stopped {times} times for {} s, over {}", time.as_secs(), plan.provider);
    let mut report = Report::new(title);
    workload.report(&mut report, testbed.server())?;
    let found = format!("{} ms", unmounting.as_millis());
    report.check("unmounted meanwhile after", found, "within 2 s", unmounting <= UNMOUNTED_WITHIN);
    mounts.into_iter().try_for_each(Mount::unmount)?;
    testbed.stop()?;
    Ok(report)
}
