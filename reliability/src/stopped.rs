//! A server that is stopped for some seconds while its mounts are used: their users wait, and that is all.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    Result,
    disturbed::Disturbed,
    report::Report,
    stand::{Plan, Stand},
};

/// Mounts that are used.
const MOUNTS: usize = 3;
/// What does not ask the server has to come to an end although it is stopped.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(2);

/// Stops the server so many times, for so long each.
pub(crate) fn run(plan: &Plan, times: u32, time: Duration) -> Result<Report> {
    let mut stand = Stand::start(plan)?;
    let mounts = (0..MOUNTS).map(|_| stand.mount()).collect::<Result<Vec<_>>>()?;
    let mut disturbed = Disturbed::new(plan, &mounts);
    let mut unmounting = Duration::ZERO;
    for number in 1..=times {
        let idle = stand.mount()?;
        disturbed.through(&format!("{number}: the server stopped"), || {
            let began = Instant::now();
            stand.signal_server(Signal::STOP)?;
            idle.unmount_by(&mut stand)?;
            unmounting = unmounting.max(began.elapsed());
            thread::sleep(time.saturating_sub(began.elapsed()));
            stand.signal_server(Signal::CONT)
        })?;
    }
    let title = format!("the server stopped {times} times for {} s, over {}", time.as_secs(), plan.provider);
    let mut report = Report::new(title);
    disturbed.report(&mut report, stand.server())?;
    let found = format!("{} ms", unmounting.as_millis());
    report.check("unmounted meanwhile after", found, "within 2 s", unmounting <= UNMOUNTED_WITHIN);
    mounts.into_iter().try_for_each(crate::stand::Mount::unmount)?;
    stand.stop()?;
    Ok(report)
}
