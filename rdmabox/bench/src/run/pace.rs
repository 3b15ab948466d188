//! The state that the workers of a run share, and how a worker passes the time of the program.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rdmabox::{RequestError, provider::model::ModelledCard};
use rfs_paging::trace::Step;

use super::{record::Record, requests::Target, window::Window};
use crate::load::{Load, model::Model, pattern::share, value::Extent};

/// State that all workers of a run share.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The load.
    pub load: &'a Load,
    /// The peers.
    pub targets: &'a [Target],
    /// The shared cursor of each peer.
    pub cursors: Vec<Arc<AtomicU64>>,
    /// The steps of each thread, for paging.
    pub steps: Vec<Vec<Step>>,
    /// The modelled card, and its dilation.
    pub card: Option<(Arc<ModelledCard>, &'a Model)>,
    /// The measured part, if the load does not pause before it.
    pub window: Option<Arc<Window>>,
    /// Ends a phase early, or at the end of its time.
    pub stop: AtomicBool,
}

/// A thread's requests in phases.
pub trait Phases {
    /// Submits requests until the phase or the stop flag ends it. All requests have completed when
    /// it returns.
    fn phase(&mut self, extent: Extent) -> Result<(), RequestError>;

    /// Returns the measurements.
    fn record(&mut self) -> &mut Record;
}

/// Longest pause in this machine's time without a look at the stop flag.
const PIECE: Duration = Duration::from_millis(100);

/// Passes `time` in pieces of at most `longest`, until it is over or `stopped`.
fn pieces(time: Duration, longest: Duration, stopped: impl Fn() -> bool, mut pass: impl FnMut(Duration)) {
    let mut left = time;
    while !left.is_zero() && !stopped() {
        let piece = left.min(longest.max(Duration::from_nanos(1)));
        pass(piece);
        left -= piece;
    }
}

/// The bounds on the requests of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Pace<'a> {
    /// The run.
    pub shared: &'a Shared<'a>,
    /// The thread's number.
    pub thread: u64,
}

impl Pace<'_> {
    /// Returns an empty record of the run's time.
    pub fn record(self) -> Record {
        Record::dilated(self.shared.card.as_ref().map_or(1, |(_, model)| model.dilation()))
            .within(self.shared.window.clone())
    }

    /// Returns the number of the thread's requests in a phase.
    pub fn requests(self, extent: Extent) -> u64 {
        let threads = u64::from(self.shared.load.threads);
        match extent {
            Extent::Ops(total) => share(total, self.thread + 1, threads) - share(total, self.thread, threads),
            Extent::Time(_) => u64::MAX,
        }
    }

    /// Waits until the thread begins. The threads of a modelled program do not all begin at the
    /// same instant: their beginnings are spread over the work of a request.
    pub fn begin(self) {
        if let (Some(_), Some((card, model))) = (&self.shared.window, &self.shared.card) {
            let work = self.shared.load.think.unwrap_or_else(|| card.request_cost());
            let part = work.mul_f64(self.thread as f64 / f64::from(self.shared.load.threads));
            self.pause(model.dilated(part));
        }
    }

    /// Spends the program's work for a request, which takes time on a modelled card.
    pub fn work(self) {
        if let Some((card, model)) = &self.shared.card {
            let work = self.shared.load.think.unwrap_or_else(|| card.request_cost());
            pieces(work, PIECE / model.dilation(), || self.stopped(), |piece| card.spend(piece));
        }
    }

    /// Sleeps, unless the stop flag ends the phase.
    pub fn pause(self, time: Duration) {
        pieces(time, PIECE, || self.stopped(), std::thread::sleep);
    }

    /// Returns true if the phase shall end.
    pub fn stopped(self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_long_pause_ends_at_the_stop_flag() {
        let passed = Cell::new(Duration::ZERO);
        let pass = |piece| passed.set(passed.get() + piece);
        pieces(Duration::from_millis(250), PIECE, || false, pass);
        assert_eq!(passed.replace(Duration::ZERO), Duration::from_millis(250));
        let hour = Duration::from_secs(3600);
        pieces(hour, PIECE, || passed.get() >= Duration::from_secs(1), pass);
        assert_eq!(passed.get(), Duration::from_secs(1));
    }
}
