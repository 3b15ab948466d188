//! A session at the host, from its control stream's preamble to its end.
//!
//! The thread of a control stream makes the session and stays for as long as it lasts. It knows the listeners' state
//! ([`Inner`]) but none of the listeners.

use std::{
    io::{self, Read},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::RwLock;

use super::{
    Peer, ProviderKind, Service,
    handshake::{self, Answer, Token},
    host::{HANDSHAKE, Inner, Joining, MAX_IN_MAKING, MAX_SESSIONS},
    strangers::Stranger,
    stream::Stream,
};
use crate::{
    rpc::{Handler, QUEUE_DEPTH, Reason},
    verbs::{CompletionQueue, Device, Progress, QpCaps, QpInit, QueuePair, VerbsError},
};

const MAX_QUEUE_PAIRS: u32 = 16;
/// Time for a client that maps memory here to let go of it when its session is ended.
const LET_GO: Duration = Duration::from_secs(3);

/// A count that is limited; dropping gives the place back.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(count: &'a AtomicUsize, limit: usize) -> Option<Place<'a>> {
        let more = |taken| (taken < limit).then_some(taken + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Place(count))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Calls the service. A panic in there costs one session, not a thread that serves them all.
fn guarded<R>(service: impl FnOnce() -> R) -> Result<R, String> {
    // What the service was at is its own: it is shared with other threads in any case, and has to be able to go on. Here
    // nothing is kept that the call could have left half done.
    catch_unwind(AssertUnwindSafe(service)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("the service panicked: {}", text.unwrap_or_default())
    })
}

/// A session at the host.
pub(super) struct HostSession {
    peer: Peer,
    service: Arc<dyn Service>,
    control: Stream,
    /// True while calls may run; each holds it for reading.
    open: RwLock<bool>,
}

impl std::fmt::Debug for HostSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSession").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Handler for HostSession {
    fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), String> {
        let open = self.open.read();
        if !*open {
            return Err("the session is closed".into());
        }
        guarded(|| self.service.call(&self.peer, request, reply))?
    }

    fn end(&self, reason: Reason<'_>) {
        match reason {
            // The end of the control stream tells the same, and that is logged.
            Reason::Gone => {}
            Reason::Misbehaved(why) => log::warn!("{}: ending: {why}", self.peer),
        }
        self.shutdown();
    }
}

impl HostSession {
    /// Makes its thread end it.
    pub(super) fn shutdown(&self) {
        self.control.shutdown();
    }
}

/// Makes a session, and stays until it is over.
pub(super) fn session(
    inner: &Arc<Inner>,
    mut control: Stream,
    stranger: Stranger,
    queue_pairs: u32,
) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let refuse = |control: &mut Stream, reason: String| {
        let answer = Answer { ok: false, text: reason.clone(), ..Answer::default() };
        // The client may be gone; the reason is logged in any case.
        let _ = handshake::send_answer(control, &answer);
        Err(reason)
    };
    if !(1..=MAX_QUEUE_PAIRS).contains(&queue_pairs) {
        return refuse(&mut control, format!("{queue_pairs} queue pairs: choose 1 to {MAX_QUEUE_PAIRS}"));
    }
    let Some(_place) = Place::take(&inner.admitted, MAX_SESSIONS) else {
        return refuse(&mut control, format!("the server takes no more than {MAX_SESSIONS} sessions"));
    };
    let Some(in_making) = Place::take(&inner.in_making, MAX_IN_MAKING) else {
        return refuse(&mut control, "too many clients are connecting: try again".into());
    };
    let mut token = Token::default();
    getrandom::fill(&mut token).map_err(|e| text(&e))?;
    let (sender, streams) = crossbeam_channel::bounded(queue_pairs as usize + 1);
    inner.joining.lock().insert(token, sender);
    if inner.stopping.load(Ordering::SeqCst) {
        // Those that were there when the host was stopped have been told; this one may not.
        inner.joining.lock().remove(&token);
        return refuse(&mut control, "the server is being stopped".into());
    }
    let answer = Answer { ok: true, token, host: inner.host_id, text: inner.unix.clone() };
    let made = handshake::send_answer(&mut control, &answer)
        .map_err(|e| text(&e))
        .and_then(|()| assemble(inner, &control, &streams, queue_pairs));
    inner.joining.lock().remove(&token);
    let Assembled { session, queue_pairs, mapped } = match made {
        Ok(made) => made,
        Err(reason) => return refuse(&mut control, reason),
    };
    let id = session.peer.id;
    inner.sessions.lock().insert(id, Arc::clone(&session));
    drop((stranger, in_making));
    log::info!("{}: connected", session.peer);

    if handshake::send_answer(&mut control, &Answer { ok: true, ..Answer::default() }).is_ok() {
        // A host that is being stopped may have missed this session when it closed them all.
        if !inner.stopping.load(Ordering::SeqCst) {
            watch(&mut control);
        }
    }

    // Order matters: no new call, no running call, no request under way, no queue pair; then the service may reuse what
    // it held.
    *session.open.write() = false;
    if let Some(calls) = queue_pairs.first() {
        inner.rpc.remove(calls.qp_num());
    }
    if !let_go(&mapped) {
        log::warn!(
            "{}: the client does not react: until its process ends it may write to memory that it has mapped",
            session.peer
        );
    }
    for qp in &queue_pairs {
        qp.to_error();
    }
    drop((queue_pairs, mapped));
    inner.sessions.lock().remove(&id);
    if let Err(e) = guarded(|| inner.service.disconnected(&session.peer)) {
        log::error!("{}: {e}", session.peer);
    }
    log::info!("{}: closed", session.peer);
    Ok(())
}

/// Returns at the end of the control stream. Clients say nothing on it.
fn watch(control: &mut Stream) {
    if control.set_timeout(None).is_err() {
        return;
    }
    let mut byte = [0];
    loop {
        match control.read(&mut byte) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(1) => {
                log::warn!("unexpected data on a control stream: session ended");
                return;
            }
            _ => return,
        }
    }
}

/// Asks a client that has this host's memory mapped to stop using it, and waits for that; false if it does not.
///
/// Its requests are executed by its own posts, which nothing here can stop. But its side of a queue pair ends when
/// this side stops sending: first it waits for the post in progress, then it closes the stream. A client that has
/// closed or died has closed the streams already.
fn let_go(mapped: &[Stream]) -> bool {
    mapped.iter().for_each(Stream::shutdown_write);
    let deadline = Instant::now() + LET_GO;
    while !mapped.iter().all(Stream::is_over) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

struct Assembled {
    session: Arc<HostSession>,
    /// The first is for calls.
    queue_pairs: Vec<Arc<dyn QueuePair>>,
    /// The streams of the others, where the client has memory mapped.
    mapped: Vec<Stream>,
}

/// Connects the queue pairs of a session as their streams come in. Index 0 is for calls.
fn assemble(
    inner: &Arc<Inner>,
    control: &Stream,
    streams: &crossbeam_channel::Receiver<Joining>,
    queue_pairs: u32,
) -> Result<Assembled, String> {
    let provider = match control {
        Stream::Unix(_) => ProviderKind::Shm,
        Stream::Tcp(_) => ProviderKind::Tcp,
    };
    let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
    let session = Arc::new(HostSession {
        peer: Peer { id, provider, name: control.peer_name() },
        service: Arc::clone(&inner.service),
        control: control.try_clone().map_err(|e| e.to_string())?,
        open: RwLock::new(false),
    });
    // Data queue pairs here are only acted upon: nothing is posted on them.
    let sink: Arc<dyn CompletionQueue> = inner.device.create_cq(16).map_err(|e| e.to_string())?;
    let deadline = Instant::now() + HANDSHAKE;
    let mut mapped = Vec::new();
    let mut made: Vec<Option<Arc<dyn QueuePair>>> = vec![None; queue_pairs as usize + 1];
    let mut connect = |made: &mut Vec<Option<Arc<dyn QueuePair>>>| -> Result<(), String> {
        while made.iter().any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            // The stream keeps its place among the strangers until it is connected.
            let (index, stream, _stranger) = streams
                .recv_timeout(left)
                .map_err(|_| "the client did not connect all its queue pairs".to_string())?;
            let place = made.get_mut(index as usize).filter(|place| place.is_none());
            let Some(place) = place else { return Err(format!("no place for queue pair {index}")) };
            let unix = matches!(stream, Stream::Unix(_));
            if unix != (provider == ProviderKind::Shm) {
                return Err("a queue pair came in on another kind of socket".into());
            }
            let qp = queue_pair(inner, &session, &sink, index == 0).map_err(|e| e.to_string())?;
            *place = Some(Arc::clone(&qp));
            if unix && index != 0 {
                mapped.push(stream.try_clone().map_err(|e| e.to_string())?);
            }
            qp.connect(stream.into_rendezvous(), left).map_err(|e| e.to_string())?;
        }
        Ok(())
    };
    let connected = connect(&mut made);
    let queue_pairs: Vec<_> = made.iter().flatten().cloned().collect();
    let result = connected.and_then(|()| {
        guarded(|| inner.service.connected(&session.peer))??;
        *session.open.write() = true;
        Ok(())
    });
    match result {
        Ok(()) => Ok(Assembled { session, queue_pairs, mapped }),
        Err(reason) => {
            for qp in &queue_pairs {
                inner.rpc.remove(qp.qp_num());
                qp.to_error();
            }
            Err(reason)
        }
    }
}

fn queue_pair(
    inner: &Inner,
    session: &Arc<HostSession>,
    sink: &Arc<dyn CompletionQueue>,
    calls: bool,
) -> Result<Arc<dyn QueuePair>, VerbsError> {
    if calls {
        let cq = inner.rpc.cq();
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        let qp = inner.pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller })?;
        let handler: Arc<dyn Handler> = Arc::<HostSession>::clone(session);
        inner.rpc.add(&*inner.pd, Arc::clone(&qp), handler)?;
        return Ok(qp);
    }
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() };
    let (send_cq, recv_cq) = (Arc::clone(sink), Arc::clone(sink));
    inner.pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Engine })
}
