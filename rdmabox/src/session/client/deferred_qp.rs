//! Connects a session's queue pair for deferred replies, on the first blocking call.
//!
//! # Concurrency
//! Called by the thread that makes that call; no locks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::qp_connector::QpConnector;
use crate::{
    rpc::{DEFERRED_DEPTH, WaitingCalls},
    verbs::{Device, Progress, QpCaps, QpInit, VerbsError},
};

/// Parameters of the connection.
#[derive(Debug)]
pub(crate) struct DeferredReplyQp {
    pub device: Arc<dyn Device>,
    pub connector: Arc<QpConnector>,
    /// Queue pair index: the next after the data queue pairs.
    pub index: usize,
    pub timeout: Duration,
}

impl DeferredReplyQp {
    /// Connects the queue pair.
    ///
    /// # Errors
    /// The reason. The host may have ended the session because of it.
    pub(crate) fn connect(&self) -> Result<WaitingCalls, String> {
        let text = |e: VerbsError| e.to_string();
        let deadline = Instant::now() + self.timeout;
        let caps = QpCaps { max_send_wr: DEFERRED_DEPTH, max_recv_wr: DEFERRED_DEPTH, ..QpCaps::default() };
        let caps = caps.within(self.device.attr());
        let cq = self.device.create_cq(2 * DEFERRED_DEPTH as usize).map_err(text)?;
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        // The thread that waits for a reply polls for it.
        let init = QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: false };
        let qp = self.connector.pd.create_qp(init).map_err(text)?;
        let waiting = WaitingCalls::new(&*self.connector.pd, Arc::clone(&qp), cq).map_err(text)?;
        self.connector.connect(&*qp, self.index, deadline).map_err(|e| e.to_string())?;
        Ok(waiting)
    }
}
