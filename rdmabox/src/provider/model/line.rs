//! The part of a queue pair that its completion queue needs.
//!
//! # Concurrency
//! Any thread. The last handle of a [`Line`] locks the card. The card's lock is taken under `held`.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{ModelledCard, card::QpKey, send_queue::SendQueue};

/// A queue pair as its completion queue sees it: its requests, and its key at the card.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) card: Arc<ModelledCard>,
    pub(super) key: QpKey,
    pub(super) qp_num: u32,
    pub(super) held: Mutex<SendQueue>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.card.card().remove_queue_pair(self.key);
    }
}
