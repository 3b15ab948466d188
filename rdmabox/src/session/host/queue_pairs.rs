//! The queue pairs of a session at its host, and the streams that join them.
//!
//! Each queue pair has an index. Index 0 is for calls, and the data queue pairs follow. Then come
//! the queue pair for deferred replies, and one for remote fetching if the session uses it. While
//! the session is made, each queue pair but that for deferred replies is joined once. Later a
//! stream can replace a data queue pair, or bring the one for deferred replies. Per index one
//! stream joins at a time, and one more may wait, because the client can finish before the host.
//! This bounds the queue pairs and threads that a client can occupy.
//!
//! An old queue pair is in Err before its replacement sends anything. After
//! [`HostQueuePairs::close`] no stream joins.
//!
//! # Concurrency
//! Called by stream threads and the session's thread. `HostQueuePairs::state` is the only lock;
//! it is not held while a queue pair connects.

mod release;

pub(crate) use self::release::ClosedQueuePairs;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use self::release::{RELEASE_POLL_INTERVAL, request_release};
use crate::{
    session::{address::ProviderKind, handshake::HANDSHAKE, stream::Stream},
    verbs::{QpState, QueuePair, VerbsError},
};

/// Interval between checks whether a client that has not joined all queue pairs is still there.
const PRESENCE_POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Entry {
    qp: Option<Arc<dyn QueuePair>>,
    /// The stream, while it is being connected. With mapped memory kept for the queue pair's
    /// lifetime.
    stream: Option<Arc<Stream>>,
    connected: bool,
    /// True while a stream is joining.
    busy: bool,
    /// True while another stream waits for the joining one.
    waiting: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Making,
    /// The session was never made, for this reason.
    Failed(String),
    Open,
    Over,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    entries: Vec<Entry>,
}

/// The use of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Calls,
    Data,
    DeferredReplies,
    /// Access to the call memory of remote fetching. The host does not wait for its release: the
    /// memory has no other use, and is freed with its last mapping.
    Fetch,
}

/// The queue pairs of one session, by index.
#[derive(Debug)]
pub(crate) struct HostQueuePairs {
    provider: ProviderKind,
    data: usize,
    /// True if there is a queue pair for remote fetching.
    fetch: bool,
    state: Mutex<State>,
    changed: Condvar,
}

/// The exclusive right to join an index. Dropping it releases the index.
struct JoinGuard<'a> {
    pairs: &'a HostQueuePairs,
    index: usize,
}

impl Drop for JoinGuard<'_> {
    fn drop(&mut self) {
        // Entries are not removed while one is busy.
        self.pairs.state.lock().entries[self.index].busy = false;
        self.pairs.changed.notify_all();
    }
}

impl HostQueuePairs {
    /// Creates entries for calls (index 0), `data` data queue pairs, deferred replies, and remote
    /// fetching if `fetch` is set. Streams must be of the provider's kind.
    pub(crate) fn new(provider: ProviderKind, data: usize, fetch: bool) -> HostQueuePairs {
        let entries = (0..data + 2 + usize::from(fetch)).map(|_| Entry::default()).collect();
        let state = Mutex::new(State { phase: Phase::Making, entries });
        HostQueuePairs { provider, data, fetch, state, changed: Condvar::new() }
    }

    /// Returns the use of an index. The index need not exist.
    pub(crate) fn role(&self, index: usize) -> Role {
        match index {
            0 => Role::Calls,
            index if index <= self.data => Role::Data,
            index if self.fetch && index == self.data + 2 => Role::Fetch,
            _ => Role::DeferredReplies,
        }
    }

    /// Connects a queue pair, created by `make`, over `stream`, as queue pair `index`. It replaces
    /// the existing one. Blocks at most for the client's time limits to release the old queue pair
    /// and to connect. If the session ends meanwhile, `discard` gets the new queue pair, and
    /// [`close`](Self::close) does not return it.
    ///
    /// # Errors
    /// Nothing has changed, or the index has no working queue pair; a retry is safe. An error while
    /// the session is made fails the session.
    pub(crate) fn join(
        &self,
        index: usize,
        stream: Stream,
        make: impl FnOnce() -> Result<Arc<dyn QueuePair>, VerbsError>,
        discard: impl FnOnce(&dyn QueuePair),
    ) -> Result<(), String> {
        let result =
            self.reserve(index, &stream).and_then(|guard| self.replace(guard, stream, make, discard));
        if let Err(reason) = &result {
            self.fail(reason);
        }
        result
    }

    fn reserve(&self, index: usize, stream: &Stream) -> Result<JoinGuard<'_>, String> {
        let kind = stream.provider();
        let deadline = Instant::now() + HANDSHAKE;
        let mut waited = false;
        let mut state = self.state.lock();
        loop {
            let State { phase, entries } = &mut *state;
            let making = match phase {
                Phase::Making => true,
                Phase::Open => false,
                Phase::Failed(_) | Phase::Over => return Err("its session is over".into()),
            };
            let Some(entry) = entries.get_mut(index) else {
                return Err(format!("its session has no queue pair {index}"));
            };
            if kind != self.provider {
                return Err(format!("queue pair {index} joins over another kind of socket"));
            }
            match self.role(index) {
                Role::Calls if !making => {
                    return Err("the queue pair for calls lasts as long as its session".into());
                }
                Role::Fetch if !making => {
                    return Err("the queue pair for remote fetching lasts as long as its session".into());
                }
                Role::DeferredReplies if making => {
                    return Err("the queue pair for deferred replies joins an open session only".into());
                }
                Role::DeferredReplies if entry.busy || entry.qp.is_some() => {
                    return Err("the queue pair for deferred replies is joined once".into());
                }
                Role::Calls | Role::Data | Role::DeferredReplies | Role::Fetch => {}
            }
            if making && (entry.busy || entry.connected) {
                return Err(format!("queue pair {index} is joined twice while its session is made"));
            }
            if entry.waiting && !waited {
                return Err(format!("two streams are joining as queue pair {index} already"));
            }
            entry.waiting = entry.busy;
            if !entry.busy {
                if stream.is_over() {
                    return Err(format!(
                        "the client closed the stream before it joined as queue pair {index}"
                    ));
                }
                entry.busy = true;
                return Ok(JoinGuard { pairs: self, index });
            }
            waited = true;
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                if let Some(entry) = state.entries.get_mut(index) {
                    entry.waiting = false;
                }
                return Err(format!("timed out behind another stream that joins as queue pair {index}"));
            }
        }
    }

    fn replace(
        &self,
        guard: JoinGuard<'_>,
        stream: Stream,
        make: impl FnOnce() -> Result<Arc<dyn QueuePair>, VerbsError>,
        discard: impl FnOnce(&dyn QueuePair),
    ) -> Result<(), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let index = guard.index;
        self.end_previous(index)?;
        let ours = Arc::new(stream.try_clone().map_err(|e| text(&e))?);
        let qp = make().map_err(|e| text(&e))?;
        let old = {
            let mut state = self.state.lock();
            if let Phase::Failed(_) | Phase::Over = state.phase {
                drop(state);
                discard(&*qp);
                return Err("its session has ended meanwhile".into());
            }
            // From here the end of the session includes this queue pair.
            let entry = &mut state.entries[index];
            entry.connected = false;
            (entry.qp.replace(Arc::clone(&qp)), entry.stream.replace(ours))
        };
        drop(old);
        let result = qp.connect(stream.into_rendezvous(), HANDSHAKE);
        if result.is_err() {
            qp.to_error();
        }
        let mut state = self.state.lock();
        let entry = &mut state.entries[index];
        entry.connected = result.is_ok();
        // Only a connected data queue pair over shared memory gave the client a mapping.
        if result.is_err() || self.provider != ProviderKind::Shm || self.role(index) != Role::Data {
            entry.stream = None;
        }
        result.map_err(|e| text(&e))
    }

    /// Ends the queue pair of an index, if there is one. Afterwards neither the host nor a client
    /// with mapped memory executes requests of it.
    fn end_previous(&self, index: usize) -> Result<(), String> {
        let (qp, stream) = {
            let entry = &self.state.lock().entries[index];
            (entry.qp.clone(), entry.stream.clone())
        };
        let over = || self.state.lock().phase == Phase::Over;
        if let Some(stream) = &stream
            && !request_release(&[stream], over)
        {
            return Err(format!("the client has not released the queue pair {index} that is to be replaced"));
        }
        if let Some(qp) = qp {
            qp.to_error();
        }
        Ok(())
    }

    /// Fails the session if it is still being made. Returns true if the session has failed.
    pub(crate) fn fail(&self, reason: &str) -> bool {
        let mut state = self.state.lock();
        if state.phase == Phase::Making {
            state.phase = Phase::Failed(reason.into());
            self.changed.notify_all();
        }
        matches!(state.phase, Phase::Failed(_))
    }

    /// Returns true while the session is open.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().phase == Phase::Open
    }

    /// Waits until every queue pair but that for deferred replies is connected, or `is_gone`
    /// returns true for the client. Then opens the session, and data queue pairs become
    /// replaceable.
    ///
    /// # Errors
    /// The reason why the session cannot be made.
    pub(crate) fn open(&self, deadline: Instant, is_gone: impl Fn() -> bool) -> Result<(), String> {
        let mut state = self.state.lock();
        loop {
            if let Phase::Failed(reason) = &state.phase {
                return Err(reason.clone());
            }
            let deferred = self.data + 1;
            let mut needed = state.entries.iter().enumerate().filter(|(index, _)| *index != deferred);
            if needed.all(|(_, entry)| entry.connected && !entry.busy) {
                state.phase = Phase::Open;
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err("the client did not connect all its queue pairs".into());
            }
            // Notices a gone client early, to free its resources.
            if self.changed.wait_until(&mut state, deadline.min(now + PRESENCE_POLL_INTERVAL)).timed_out()
                && is_gone()
            {
                return Err("the client closed the session before all its queue pairs were connected".into());
            }
        }
    }

    /// Blocks until the client has finished each request on mapped memory that it began before the
    /// last [`revoke`](crate::verbs::MemoryRegion::revoke) of a region, at most until `deadline`.
    /// Returns false after the deadline.
    pub(crate) fn await_fences(&self, deadline: Instant) -> bool {
        // A queue pair in Err cannot confirm a fence; its client closes the stream at the end of
        // its requests. A queue pair that joins has found the region revoked.
        let is_fenced = |entry: &Entry| match (&entry.qp, &entry.stream) {
            (Some(qp), Some(stream)) => (qp.is_fenced() && qp.state() != QpState::Err) || stream.is_over(),
            _ => true,
        };
        while !self.state.lock().entries.iter().all(is_fenced) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(RELEASE_POLL_INTERVAL);
        }
        true
    }

    /// Stops joining, waits for the streams that are joining, and takes all queue pairs.
    pub(crate) fn close(&self) -> ClosedQueuePairs {
        let mut state = self.state.lock();
        state.phase = Phase::Over;
        self.changed.notify_all();
        for stream in state.entries.iter().filter(|entry| entry.busy).filter_map(|p| p.stream.as_deref()) {
            match self.provider {
                ProviderKind::Tcp | ProviderKind::Rdma => stream.shutdown(),
                // Over shared memory the queue pair may have just connected, so only the client may
                // close the other direction.
                ProviderKind::Shm => stream.shutdown_write(),
            }
        }
        while state.entries.iter().any(|entry| entry.busy) {
            self.changed.wait(&mut state);
        }
        ClosedQueuePairs { data: self.data, entries: std::mem::take(&mut state.entries) }
    }
}

#[cfg(test)]
mod tests;
