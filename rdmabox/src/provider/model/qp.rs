//! Queue pairs over a modelled card.
//!
//! A post takes the calling thread the time to build the work requests and to ring the doorbell.
//! The inner queue pair moves the bytes at once, and the card learns of the requests.
//!
//! # Concurrency
//! Any thread. `held` is locked while the inner queue pair posts; the card's lock is taken inside.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    ModelledCard,
    card::{CardRequest, Direction, PeerKey},
    cq::ModelCq,
    line::Line,
};
use crate::verbs::{
    PostError, PostErrorReason, QpCaps, QpState, QueuePair, RecvWr, Rendezvous, SendFlags, SendOp, SendWr,
    VerbsError,
};

/// A queue pair whose requests take the time of a card.
#[derive(Debug)]
pub(super) struct ModelQp {
    inner: Arc<dyn QueuePair>,
    line: Arc<Line>,
}

impl ModelQp {
    pub(super) fn new(
        inner: Arc<dyn QueuePair>,
        card: Arc<ModelledCard>,
        peer: PeerKey,
        send_cq: Arc<ModelCq>,
    ) -> ModelQp {
        let key = card.card().add_queue_pair(peer);
        let line = Arc::new(Line { card, key, qp_num: inner.qp_num(), held: Mutex::default() });
        send_cq.add(&line);
        ModelQp { inner, line }
    }

    /// Posts to the inner queue pair, and passes the accepted requests to the card.
    fn post_all(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut held = self.line.held.lock();
        if held.has_failed() {
            return self.inner.post_send(list);
        }
        let depth = self.inner.caps().max_send_wr;
        let room = (depth as usize).saturating_sub(held.slots_in_use());
        let fits = &list[..list.len().min(room)];
        held.post(fits.iter().map(|wr| wr.flags.contains(SendFlags::SIGNALED)));
        let posted = self.inner.post_send(fits);
        let taken = posted.as_ref().map_or_else(|e| e.posted, |()| fits.len());
        held.refused(fits.len() - taken);
        let requests: Vec<CardRequest> = fits[..taken].iter().map(card_request).collect();
        let card = &self.line.card;
        let at = card.clock.thread_now();
        card.posted(at, self.line.key, &requests);
        posted?;
        if fits.len() < list.len() {
            return Err(PostError { posted: taken, reason: PostErrorReason::QueueFull { depth } });
        }
        Ok(())
    }
}

/// Returns the properties of a request that cost time.
fn card_request(wr: &SendWr<'_>) -> CardRequest {
    let (direction, remote) = match wr.op {
        SendOp::Send { .. } => (Direction::Out, None),
        SendOp::Write { remote, .. } => (Direction::Out, Some(remote.addr)),
        SendOp::Read { remote }
        | SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. }
        | SendOp::FetchOp { remote, .. } => (Direction::In, Some(remote.addr)),
    };
    CardRequest { direction, bytes: wr.byte_len(), inline: wr.inline.is_some(), remote }
}

impl crate::verbs::Sealed for ModelQp {}

// Nothing is executed at once, and no peer's memory is mapped for the caller: a card has neither.
impl QueuePair for ModelQp {
    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn state(&self) -> QpState {
        self.inner.state()
    }

    fn caps(&self) -> QpCaps {
        self.inner.caps()
    }

    fn connect(&self, stream: Rendezvous, timeout: Duration) -> Result<(), VerbsError> {
        self.inner.connect(stream, timeout)
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let card = &self.line.card;
        let values = &card.parameters().values;
        card.clock.spend(list.len() as u64 * values.host.post_ns + values.doorbell.cpu_ns);
        self.post_all(list)
    }

    fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.inner.post_recv(list)
    }

    fn to_error(&self) {
        self.inner.to_error();
    }

    fn is_stopped(&self) -> bool {
        self.inner.is_stopped()
    }

    fn is_fenced(&self) -> bool {
        self.inner.is_fenced()
    }
}
