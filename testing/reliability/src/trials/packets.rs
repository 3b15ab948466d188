//! Loses some or all packets of a network for some seconds while the mounts at its other end are
//! used.

use std::{thread, time::Duration};

use super::workload::Workload;
use crate::{
    error::Result,
    report::Report,
    testbed::{Host, Mount, Network, Plan, Testbed},
};

/// Number of mounts.
const MOUNTS: usize = 3;

/// Loses `percent` percent of the packets `times` times, for `time` each.
pub(crate) fn run(plan: &Plan, percent: u32, times: u32, time: Duration) -> Result<Report> {
    let network = Network::make()?;
    let mut testbed = Testbed::start_at(plan, &network, &[])?;
    let mounts = (0..MOUNTS).map(|_| testbed.mount_at(Host::Client, &[])).collect::<Result<Vec<_>>>()?;
    let mut workload = Workload::new(plan, &mounts);
    for number in 1..=times {
        workload.run_through(&format!("{number}: {percent} % of packets lost"), || {
            testbed.run(&network.losing(percent))?;
            thread::sleep(time);
            testbed.run(&network.healing())
        })?;
    }
    let title = format!("{percent} % of packets lost {times} times, for {} s", time.as_secs());
    let mut report = Report::new(title);
    workload.report(&mut report, testbed.server())?;
    mounts.into_iter().try_for_each(Mount::unmount)?;
    testbed.stop()?;
    Ok(report)
}
