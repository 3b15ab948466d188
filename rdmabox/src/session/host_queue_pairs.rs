//! The queue pairs of a session at its host, and the streams that join them.
//!
//! Each place has one queue pair. While the session is made every place is joined once; afterwards a stream that joins a data
//! place replaces its queue pair, and nothing else of the session notices. One stream at a time is joining a place, and one
//! more may wait for that (the client can be through before the host is): so a client has no more queue pairs here than
//! it has places, and holds up two threads for each at most. Index 0 is for calls, and the one behind those for data for late
//! replies, which is joined when the session is open, if at all. A session whose calls are answered by fetching has one more
//! place behind that. None of these three is replaced.
//!
//! What is kept in every case: of two queue pairs of a place, the old one is in Err before the new one says its first
//! word; and when [`HostQueuePairs::close`] returns no stream is joining, and none will.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{ProviderKind, host::HANDSHAKE, stream::Stream};
use crate::verbs::{QueuePair, VerbsError};

/// Time for a client that maps memory here to let go of it when a queue pair of it is ended.
const LET_GO: Duration = Duration::from_secs(3);
/// Between two looks at whether it has.
const LOOK: Duration = Duration::from_micros(200);
/// Between two looks at whether a client is still there that has not joined all its queue pairs.
const STILL_THERE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Place {
    qp: Option<Arc<dyn QueuePair>>,
    /// Its stream: while it is being connected, and where the client has memory mapped for as long as it lasts.
    stream: Option<Arc<Stream>>,
    connected: bool,
    /// A stream is joining.
    busy: bool,
    /// Another one waits for that.
    waiting: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Making,
    /// It will never be made, for this reason.
    Failed(String),
    Open,
    Over,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    places: Vec<Place>,
}

/// What a place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Calls,
    Data,
    LateReplies,
    /// The client's memory for calls by fetching. Nobody waits until a client lets go of what it has mapped: that memory is
    /// used for nothing else, and goes with the last mapping.
    Fetch,
}

/// The places.
#[derive(Debug)]
pub(super) struct HostQueuePairs {
    provider: ProviderKind,
    data: usize,
    /// It has a place for fetching.
    fetch: bool,
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to join a place. Dropping it gives it back.
struct Turn<'a> {
    pairs: &'a HostQueuePairs,
    index: usize,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Nobody takes the places away while one is busy.
        self.pairs.state.lock().places[self.index].busy = false;
        self.pairs.changed.notify_all();
    }
}

impl HostQueuePairs {
    /// Places for calls (index 0), for `data` data queue pairs, for late replies, and with `fetch` for fetching, to be joined
    /// by streams of the provider's kind.
    pub(super) fn new(provider: ProviderKind, data: usize, fetch: bool) -> HostQueuePairs {
        let places = (0..data + 2 + usize::from(fetch)).map(|_| Place::default()).collect();
        let state = Mutex::new(State { phase: Phase::Making, places });
        HostQueuePairs { provider, data, fetch, state, changed: Condvar::new() }
    }

    /// What the place is for, if there is one of that index.
    pub(super) fn role(&self, index: usize) -> Role {
        match index {
            0 => Role::Calls,
            index if index <= self.data => Role::Data,
            index if self.fetch && index == self.data + 2 => Role::Fetch,
            _ => Role::LateReplies,
        }
    }

    /// Connects a queue pair that `make` makes over `stream`, in the place of the one that was there. Blocks for no
    /// longer than a client is given to let go of the old one and to connect. `discard` gets one that was made and has found
    /// no place, because the session has ended meanwhile: [`close`](Self::close) does not give it away with the others.
    ///
    /// # Errors
    /// Nothing has changed, or the place is without a queue pair that works; a retry is safe. While the session is
    /// made it fails it.
    pub(super) fn join(
        &self,
        index: usize,
        stream: Stream,
        make: impl FnOnce() -> Result<Arc<dyn QueuePair>, VerbsError>,
        discard: impl FnOnce(&dyn QueuePair),
    ) -> Result<(), String> {
        let result = self.enter(index, &stream).and_then(|turn| self.replace(turn, stream, make, discard));
        if let Err(reason) = &result {
            self.fail(reason);
        }
        result
    }

    fn enter(&self, index: usize, stream: &Stream) -> Result<Turn<'_>, String> {
        let kind = stream.provider();
        let deadline = Instant::now() + HANDSHAKE;
        let mut waited = false;
        let mut state = self.state.lock();
        loop {
            let State { phase, places } = &mut *state;
            let making = match phase {
                Phase::Making => true,
                Phase::Open => false,
                Phase::Failed(_) | Phase::Over => return Err("its session is over".into()),
            };
            let Some(place) = places.get_mut(index) else {
                return Err(format!("its session has no queue pair {index}"));
            };
            if kind != self.provider {
                return Err(format!("queue pair {index} came in on another kind of socket"));
            }
            match self.role(index) {
                Role::Calls if !making => {
                    return Err("the queue pair for calls lasts as long as its session".into());
                }
                Role::Fetch if !making => {
                    return Err("the queue pair for fetching answers lasts as long as its session".into());
                }
                Role::LateReplies if making => {
                    return Err("the queue pair for late replies comes when its session is there".into());
                }
                Role::LateReplies if place.busy || place.qp.is_some() => {
                    return Err("the queue pair for late replies is joined once".into());
                }
                Role::Calls | Role::Data | Role::LateReplies | Role::Fetch => {}
            }
            if making && (place.busy || place.connected) {
                return Err(format!("queue pair {index} is joined twice while its session is made"));
            }
            if place.waiting && !waited {
                return Err(format!("two streams are joining as queue pair {index} already"));
            }
            place.waiting = place.busy;
            if !place.busy {
                if stream.is_over() {
                    return Err(format!("the client has given up before it was queue pair {index}"));
                }
                place.busy = true;
                return Ok(Turn { pairs: self, index });
            }
            waited = true;
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                if let Some(place) = state.places.get_mut(index) {
                    place.waiting = false;
                }
                return Err(format!("another stream takes its time to become queue pair {index}"));
            }
        }
    }

    fn replace(
        &self,
        turn: Turn<'_>,
        stream: Stream,
        make: impl FnOnce() -> Result<Arc<dyn QueuePair>, VerbsError>,
        discard: impl FnOnce(&dyn QueuePair),
    ) -> Result<(), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let index = turn.index;
        self.end_old(index)?;
        let ours = Arc::new(stream.try_clone().map_err(|e| text(&e))?);
        let qp = make().map_err(|e| text(&e))?;
        let old = {
            let mut state = self.state.lock();
            if let Phase::Failed(_) | Phase::Over = state.phase {
                drop(state);
                discard(&*qp);
                return Err("its session has ended meanwhile".into());
            }
            // From here whoever ends the session ends this one, too.
            let place = &mut state.places[index];
            place.connected = false;
            (place.qp.replace(Arc::clone(&qp)), place.stream.replace(ours))
        };
        drop(old);
        let result = qp.connect(stream.into_rendezvous(), HANDSHAKE);
        if result.is_err() {
            qp.to_error();
        }
        let mut state = self.state.lock();
        let place = &mut state.places[index];
        place.connected = result.is_ok();
        // A queue pair that was not connected has handed out no memory.
        if result.is_err() || self.provider != ProviderKind::Shm || self.role(index) != Role::Data {
            place.stream = None;
        }
        result.map_err(|e| text(&e))
    }

    /// Ends what is in a place, if anything: nothing more is done for it here, nor by a client that has mapped memory.
    fn end_old(&self, index: usize) -> Result<(), String> {
        let (qp, stream) = {
            let place = &self.state.lock().places[index];
            (place.qp.clone(), place.stream.clone())
        };
        let over = || self.state.lock().phase == Phase::Over;
        if let Some(stream) = &stream
            && !let_go(&[stream], over)
        {
            return Err(format!("the client still uses the queue pair {index} that is to be replaced"));
        }
        if let Some(qp) = qp {
            qp.to_error();
        }
        Ok(())
    }

    /// Makes the session fail if it is not open yet; false if it is.
    pub(super) fn fail(&self, reason: &str) -> bool {
        let mut state = self.state.lock();
        if state.phase == Phase::Making {
            state.phase = Phase::Failed(reason.into());
            self.changed.notify_all();
        }
        matches!(state.phase, Phase::Failed(_))
    }

    /// Returns true if the session is made, and not over yet.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().phase == Phase::Open
    }

    /// Waits until every place but that for late replies has been joined, or the client `is_gone`. From then on data queue pairs can be
    /// replaced.
    ///
    /// # Errors
    /// Why the session cannot be made.
    pub(super) fn open(&self, deadline: Instant, is_gone: impl Fn() -> bool) -> Result<(), String> {
        let mut state = self.state.lock();
        loop {
            if let Phase::Failed(reason) = &state.phase {
                return Err(reason.clone());
            }
            let late = self.data + 1;
            let mut needed = state.places.iter().enumerate().filter(|(index, _)| *index != late);
            if needed.all(|(_, place)| place.connected && !place.busy) {
                state.phase = Phase::Open;
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err("the client did not connect all its queue pairs".into());
            }
            // Whoever goes makes room for others at once.
            if self.changed.wait_until(&mut state, deadline.min(now + STILL_THERE)).timed_out() && is_gone() {
                return Err("the client went before all its queue pairs were connected".into());
            }
        }
    }

    /// Lets no stream join any more, waits for those that are about to, and gives away what is there.
    pub(super) fn close(&self) -> Closed {
        let mut state = self.state.lock();
        state.phase = Phase::Over;
        self.changed.notify_all();
        for stream in state.places.iter().filter(|place| place.busy).filter_map(|p| p.stream.as_deref()) {
            match self.provider {
                ProviderKind::Tcp | ProviderKind::Rdma => stream.shutdown(),
                // It may have been connected just now: only the client closes the other direction.
                ProviderKind::Shm => stream.shutdown_write(),
            }
        }
        while state.places.iter().any(|place| place.busy) {
            self.changed.wait(&mut state);
        }
        Closed { data: self.data, places: std::mem::take(&mut state.places) }
    }
}

/// What a session leaves behind.
#[derive(Debug)]
pub(super) struct Closed {
    data: usize,
    places: Vec<Place>,
}

impl Closed {
    /// The queue pairs for calls and for late replies.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Arc<dyn QueuePair>> {
        [0, self.data + 1].into_iter().filter_map(|index| self.places.get(index)?.qp.as_ref())
    }

    /// Ends them all: nothing that arrives has any effect any more. If the client goes on with what it has mapped, they are
    /// given back: it is to be called again when [`is_let_go`](Self::is_let_go).
    /// Returns whether they have stopped.
    pub(super) fn end(self) -> Result<bool, Closed> {
        let mapped: Vec<&Stream> = self.mapped().collect();
        if !let_go(&mapped, || false) {
            return Err(self);
        }
        Ok(self.force())
    }

    /// Ends them all, also if the client goes on with what it has mapped, of which nothing is heard any more then.
    /// Returns false if a device has not stopped, and may still touch memory.
    pub(super) fn force(self) -> bool {
        let qps = || self.places.iter().filter_map(|place| place.qp.as_ref());
        qps().for_each(|qp| qp.to_error());
        qps().all(|qp| qp.is_stopped())
    }

    /// True if the client uses nothing any more that it has mapped.
    pub(super) fn is_let_go(&self) -> bool {
        self.mapped().all(Stream::is_over)
    }

    fn mapped(&self) -> impl Iterator<Item = &Stream> {
        self.places.iter().filter_map(|place| place.stream.as_deref())
    }
}

/// Asks a client that has this host's memory mapped to stop using it, and waits for that; false if it does not, or
/// nobody minds any more.
///
/// Its requests are executed by its own posts, which nothing here can stop. But its side of a queue pair ends when
/// this side stops sending: first it waits for the post in progress, then it closes the stream. A client that has
/// closed or died has closed the streams already.
fn let_go(mapped: &[&Stream], never_mind: impl Fn() -> bool) -> bool {
    mapped.iter().for_each(|stream| stream.shutdown_write());
    let deadline = Instant::now() + LET_GO;
    while !mapped.iter().all(|stream| stream.is_over()) {
        if never_mind() || Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

#[cfg(test)]
mod tests;
