//! Replaces a failed queue pair while the other lanes carry on.
//!
//! A failed request moves its queue pair to Err, which flushes the requests posted behind it. A
//! temporary thread then connects a new queue pair. If no lane is up, requests wait in the merge
//! queue until their deadline. The peer may still execute a flushed write until it closes its
//! side. Such a write counts as in flight until then, so it cannot overwrite a later overlapping
//! write. The data path ends if the peer is gone, or if no queue pair can be connected in time.
//!
//! # Concurrency
//! Any thread may start the recovery. `Runtime::recovering` admits one recovery thread, which
//! locks one lane's queue at a time.

use std::time::Duration;

use crate::{
    runtime::{lane::Lane, state::Runtime},
    sync::{
        atomic::{Ordering, fence},
        now, sleep, spawn,
    },
};

/// Pause before the second attempt to connect. It doubles up to `MAX_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);

impl Runtime {
    /// Starts the replacement of all lanes that are down, unless it is running already.
    pub(crate) fn start_recovery(&self) {
        if self.link.is_gone() {
            return self.end_session("the peer is gone");
        }
        if self.recovering.swap(true, Ordering::SeqCst) {
            // The running recovery thread checks the lanes again before it stops.
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        let thread = spawn("rdmabox-recover".into(), move || me.recover_lanes());
        if let Err(e) = thread {
            self.end_session(&format!("cannot start the queue pair recovery thread: {e}"));
        }
    }

    fn recover_lanes(&self) {
        loop {
            while let Some(index) = (0..self.lanes.len()).find(|index| self.lanes[*index].is_down()) {
                if self.is_dead() || !self.recover_lane(index) {
                    return;
                }
            }
            self.recovering.store(false, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let more = self.lanes.iter().any(Lane::is_down);
            if !more || self.recovering.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Replaces the lane's queue pair. Returns false, and ends the session, if that is impossible.
    fn recover_lane(&self, index: usize) -> bool {
        let lane = &self.lanes[index];
        let cq_waiters = &self.cq_waiters[lane.cq_index];
        let deadline = now() + self.recovery_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.link.rejoin(index, cq_waiters.cq(), deadline) {
                Ok(qp) => {
                    self.finish_taken(|finished| {
                        for write in lane.replace(qp, finished) {
                            self.writes.lock().remove(write);
                        }
                    });
                    self.stats.lane_rebuilds.inc();
                    log::info!("lane {index}: queue pair replaced");
                    if self.is_dead() {
                        // The session ended during the replacement, and may not have failed the new
                        // queue pair.
                        self.fail_lane(index, lane.generation());
                    }
                    self.resume();
                    return true;
                }
                Err(e) if self.is_dead() || self.link.is_gone() || now() + pause >= deadline => {
                    self.end_session(&e);
                    return false;
                }
                Err(e) => {
                    log::debug!("lane {index}: {e}");
                    sleep(pause);
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
    }

    /// Ends the data path, and tells the peer.
    fn end_session(&self, why: &str) {
        if !self.is_dead() {
            log::warn!("session ended: {why}");
        }
        self.fail();
        self.link.hang_up();
    }
}
