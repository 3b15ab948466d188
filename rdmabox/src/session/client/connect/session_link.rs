//! The runtime's way to a host: it replaces queue pairs, and ends the session.
//!
//! # Concurrency
//! Any thread of the runtime. No locks.

use std::{sync::Arc, time::Instant};

use crate::{
    runtime::LaneLink,
    session::{client::qp_connector::QpConnector, stream::Stream},
    verbs::{CompletionQueue, QpCaps, QueuePair},
};

/// The runtime's way to replace a queue pair and to end the session.
#[derive(Debug)]
pub(super) struct SessionLink {
    pub(super) control: Arc<Stream>,
    pub(super) connector: Arc<QpConnector>,
    pub(super) caps: QpCaps,
}

impl LaneLink for SessionLink {
    fn is_gone(&self) -> bool {
        self.control.is_over()
    }

    fn rejoin(
        &self,
        lane: usize,
        cq: &Arc<dyn CompletionQueue>,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        let joined = self.connector.queue_pair(qp_index(lane), Arc::clone(cq), self.caps, deadline);
        joined.map_err(|e| e.to_string())
    }

    fn hang_up(&self) {
        self.control.shutdown();
    }
}

/// Returns the queue pair index of a data lane. Index 0 is for calls.
pub(super) fn qp_index(lane: usize) -> usize {
    lane + 1
}
