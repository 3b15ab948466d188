//! A network that loses packets for some seconds, all of them or some, while the mounts at its other end are used.

use std::{thread, time::Duration};

use crate::{
    Result,
    disturbed::Disturbed,
    network::{Host, Network},
    report::Report,
    stand::{Plan, Stand},
};

/// Mounts that are used.
const MOUNTS: usize = 3;

/// Loses so many of a hundred packets so many times, for so long each.
pub(crate) fn run(plan: &Plan, percent: u32, times: u32, time: Duration) -> Result<Report> {
    let network = Network::make()?;
    let mut stand = Stand::start_at(plan, &network, &[])?;
    let mounts = (0..MOUNTS).map(|_| stand.mount_at(Host::Client, &[])).collect::<Result<Vec<_>>>()?;
    let mut disturbed = Disturbed::new(plan, &mounts);
    for number in 1..=times {
        disturbed.through(&format!("{number}: {percent} % of packets lost"), || {
            stand.run(&network.losing(percent))?;
            thread::sleep(time);
            stand.run(&network.healing())
        })?;
    }
    let title = format!("{percent} % of packets lost {times} times, for {} s", time.as_secs());
    let mut report = Report::new(title);
    disturbed.report(&mut report, stand.server())?;
    mounts.into_iter().try_for_each(crate::stand::Mount::unmount)?;
    stand.stop()?;
    Ok(report)
}
