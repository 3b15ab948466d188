//! Replacing a queue pair that has failed, while the other lanes carry on.
//!
//! A failed request moves its queue pair to Err, and what was posted behind it is flushed. A thread of its own, which
//! exists for as long as there is something to mend, then joins a new queue pair to the session. Requests that find no lane
//! that is up wait in the merge queue, at most for their own time. A write that was flushed may still take effect until the
//! peer has given up its side as well; until then it counts as in flight, so that no later write that overlaps it can be
//! overwritten by it. If the peer is gone, or no queue pair can be had
//! within the time for it, the session's data path ends.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::Runtime;
use crate::{
    sync::{
        atomic::{Ordering, fence},
        now, sleep, spawn,
    },
    verbs::{CompletionQueue, QueuePair},
};

/// Between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The session as its lanes see it.
pub(crate) trait Link: Send + Sync + fmt::Debug {
    /// True if the peer has ended the session, or died.
    fn is_gone(&self) -> bool;

    /// Connects a new queue pair in the place of data lane `lane`, completing on `cq`.
    fn rejoin(
        &self,
        lane: usize,
        cq: &Arc<dyn CompletionQueue>,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, String>;

    /// Tells the peer that the session is over.
    fn hang_up(&self);
}

impl Runtime {
    /// Sees to it that lanes that are down come up again.
    pub(super) fn mend(&self) {
        if self.link.is_gone() {
            return self.lose("the peer is gone");
        }
        if self.mending.swap(true, Ordering::SeqCst) {
            // Whoever is at it looks again before it stops.
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        let thread = spawn("rdmabox-mend".into(), move || me.mend_all());
        if let Err(e) = thread {
            self.lose(&format!("no thread to mend a queue pair: {e}"));
        }
    }

    fn mend_all(&self) {
        loop {
            while let Some(index) = (0..self.lanes.len()).find(|index| self.lanes[*index].is_down()) {
                if self.is_dead() || !self.mend_lane(index) {
                    return;
                }
            }
            self.mending.store(false, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let more = self.lanes.iter().any(super::Lane::is_down);
            if !more || self.mending.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// False if that cannot be done.
    fn mend_lane(&self, index: usize) -> bool {
        let lane = &self.lanes[index];
        let attendance = &self.attendances[lane.attended_by];
        let deadline = now() + self.mend_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.link.rejoin(index, attendance.cq(), deadline) {
                Ok(qp) => {
                    self.finish_what(|over| {
                        for write in lane.replace(qp, over) {
                            self.writes.lock().remove(write);
                        }
                    });
                    self.stats.lane_rebuilds.inc();
                    log::info!("lane {index}: its queue pair has been replaced");
                    if self.is_dead() {
                        // The session ended meanwhile, and may not have seen this one.
                        self.lane_failed(index, lane.incarnation());
                    }
                    self.resume();
                    return true;
                }
                Err(e) if self.is_dead() || self.link.is_gone() || now() + pause >= deadline => {
                    self.lose(&e);
                    return false;
                }
                Err(e) => {
                    log::debug!("lane {index}: {e}");
                    sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// The session cannot go on.
    fn lose(&self, why: &str) {
        if !self.is_dead() {
            log::warn!("the session is over: {why}");
        }
        self.fail();
        self.link.hang_up();
    }
}
