//! The place of a session that its late replies come on: joined when the first call waits.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::rejoin::Rejoin;
use crate::{
    rpc::{LATE_DEPTH, WaitingCalls},
    verbs::{Device, Progress, QpCaps, QpInit, VerbsError},
};

/// What it takes to join it.
#[derive(Debug)]
pub(super) struct LatePlace {
    pub device: Arc<dyn Device>,
    pub rejoin: Arc<Rejoin>,
    /// The number of the place: behind those for data.
    pub index: usize,
    pub timeout: Duration,
}

impl LatePlace {
    /// Joins it.
    ///
    /// # Errors
    /// Why not; the host may have ended the session for it.
    pub(super) fn join(&self) -> Result<WaitingCalls, String> {
        let text = |e: VerbsError| e.to_string();
        let deadline = Instant::now() + self.timeout;
        let caps = QpCaps { max_send_wr: LATE_DEPTH, max_recv_wr: LATE_DEPTH, ..QpCaps::default() };
        let caps = caps.within(self.device.attr());
        let cq = self.device.create_cq(2 * LATE_DEPTH as usize).map_err(text)?;
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        // Who waits for a reply receives it.
        let init = QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: false };
        let qp = self.rejoin.pd.create_qp(init).map_err(text)?;
        let waiting = WaitingCalls::new(&*self.rejoin.pd, Arc::clone(&qp), cq).map_err(text)?;
        self.rejoin.connect(&*qp, self.index, deadline).map_err(|e| e.to_string())?;
        Ok(waiting)
    }
}
