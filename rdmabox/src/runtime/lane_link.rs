//! The session as seen by its lanes.

use std::{fmt, sync::Arc, time::Instant};

use crate::verbs::{CompletionQueue, QueuePair};

/// The session as seen by its lanes.
pub(crate) trait LaneLink: Send + Sync + fmt::Debug {
    /// Returns true if the peer has ended the session or died.
    fn is_gone(&self) -> bool;

    /// Connects a new queue pair for data lane `lane`. It completes on `cq`.
    fn rejoin(
        &self,
        lane: usize,
        cq: &Arc<dyn CompletionQueue>,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, String>;

    /// Tells the peer that the session is over.
    fn hang_up(&self);
}
