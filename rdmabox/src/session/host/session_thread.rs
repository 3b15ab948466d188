//! The life of a session at the host, from its control stream's preamble to its end.
//!
//! [`serve`] admits the session, makes it, watches its lease and ends it. Streams of its queue
//! pairs arrive through [`HostSession::join`].
//!
//! # Concurrency
//! The control stream's thread runs [`serve`]. Other stream threads call `join`. Locks:
//! `Inner::sessions`, then the state of the queue pairs.

use super::{
    host_session::{HostSession, guarded},
    peer::{Heartbeat, Peer},
    pending_connections::PendingConnection,
    queue_pairs::{ClosedQueuePairs, HostQueuePairs, Role},
    stack::Stack,
    state::Inner,
};
use crate::{
    auth::{Domain, Grant, KeyId, Transcript},
    rpc::{DEFERRED_DEPTH, Handler, QUEUE_DEPTH, Reason, ReplyWriter, WRITER_DEPTH},
    session::{
        address::ProviderKind,
        fetch_qp::FetchMemory,
        handshake::{self, Answer, HANDSHAKE, Token},
        lease::{self, End},
        stream::Stream,
    },
    verbs::{Progress, QpCaps, QpInit, QueuePair, VerbsError},
};
use parking_lot::RwLock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Interval between checks whether an unresponsive client has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// One unit of a limited counter. Dropping it decrements the counter.
struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    fn take(count: &'a AtomicUsize, limit: usize) -> Option<CountGuard<'a>> {
        let more = |taken| (taken < limit).then_some(taken + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| CountGuard(count))
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A session over shared memory whose client may not have released the memory yet. Dropping it
/// says that it has.
struct Releasing<'a> {
    inner: &'a Inner,
    id: u64,
}

impl<'a> Releasing<'a> {
    /// Notes a session, before it is removed from `Inner::sessions`.
    fn begin(inner: &'a Inner, session: &HostSession) -> Releasing<'a> {
        let peer = &session.peer;
        if peer.provider == ProviderKind::Shm {
            inner.releasing.lock().push((peer.id, peer.domain));
        }
        Releasing { inner, id: peer.id }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.inner.releasing.lock().retain(|(id, _)| *id != self.id);
    }
}

/// The identity that a client has proved.
pub(crate) enum Identity {
    /// No key, and none is required.
    Anonymous,
    /// Possession of this key.
    Key { id: KeyId, grant: Grant, transcript: Transcript },
}

/// The parameters of a session that a client requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionRequest {
    /// Number of data queue pairs.
    pub queue_pairs: u32,
    /// True to use remote fetching if there is memory for it.
    pub fetch: bool,
}

impl HostSession {
    fn new(
        inner: &Inner,
        control: &Stream,
        SessionRequest { queue_pairs, fetch }: SessionRequest,
        identity: &Identity,
    ) -> Result<Arc<HostSession>, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let provider = control.provider();
        let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
        let device = &*inner.stack(provider).device;
        let made = fetch.then(|| FetchMemory::new(device, provider == ProviderKind::Shm)).transpose();
        let fetch = made.unwrap_or_else(|e| {
            log::warn!("{}: no remote fetching, replies are sent as messages: {e}", control.peer_name());
            None
        });
        let (key, domain, secret) = match identity {
            Identity::Anonymous => (None, Domain::default(), None),
            Identity::Key { id, grant, transcript } => {
                (Some(*id), grant.domain, Some(transcript.session_secret()))
            }
        };
        let process = control.connected_process().map(Arc::new);
        let name = control.peer_name();
        Ok(Arc::new(HostSession {
            peer: Peer {
                id,
                provider,
                name,
                key,
                domain,
                expired: AtomicBool::new(false),
                still_maps: AtomicBool::new(false),
                process: process.clone(),
                heartbeat: Heartbeat::new(),
            },
            secret,
            service: Arc::clone(&inner.service),
            control: control.try_clone().map_err(|e| text(&e))?,
            token: Token::random().map_err(|e| text(&e))?,
            process,
            queue_pairs: HostQueuePairs::new(provider, queue_pairs as usize, fetch.is_some()),
            deferred: Arc::default(),
            fetch,
            sink: device.create_cq(16).map_err(|e| text(&e))?,
            open: RwLock::new(false),
        }))
    }

    /// Gives a stream its queue pair, which is one of the initial queue pairs or a replacement.
    pub(crate) fn join(self: &Arc<Self>, inner: &Inner, index: u32, stream: Stream) -> Result<(), String> {
        let index = index as usize;
        let role = self.queue_pairs.role(index);
        self.queue_pairs
            .join(
                index,
                stream,
                || queue_pair(inner, self, role),
                // Queue pairs for messages are already registered with the call server.
                |qp| inner.stack(self.peer.provider).rpc.remove(qp.qp_num()),
            )
            .map_err(|reason| format!("{}: {reason}", self.peer))?;
        if role == Role::DeferredReplies
            && let Err(reason) = self.deferred.begin()
        {
            self.end(Reason::Misbehaved(&reason));
        }
        Ok(())
    }
}

/// Makes a session and serves it until it is over. Runs on the control stream's thread.
pub(crate) fn serve(
    inner: &Arc<Inner>,
    mut control: Stream,
    pending: PendingConnection,
    request: SessionRequest,
    identity: Identity,
) -> Result<(), String> {
    let (queue_pairs, limits) = (request.queue_pairs, &inner.limits);
    if !(1..=limits.queue_pairs).contains(&(queue_pairs as usize)) {
        return refuse(
            &mut control,
            format!("{queue_pairs} queue pairs: choose 1 to {}", limits.queue_pairs),
        );
    }
    let stack = inner.stack(control.provider());
    let limit = stack.max_sessions;
    let Some(_admitted) = CountGuard::take(&stack.admitted, limit) else {
        let kind = control.provider();
        return refuse(&mut control, format!("the server takes no more than {limit} sessions over {kind}"));
    };
    // Sessions in the making have a lower limit than pending connections, so their streams can
    // still be accepted.
    let Some(in_making) = CountGuard::take(&inner.in_making, limits.in_making()) else {
        return refuse(&mut control, "too many clients are connecting: try again".into());
    };
    let session = HostSession::new(inner, &control, request, &identity)?;
    let id = session.peer.id;
    if let Err(reason) = register(inner, &session) {
        return refuse(&mut control, reason);
    }
    let made = make(inner, &session, &mut control, identity);
    drop((pending, in_making));
    if made.is_ok() {
        log::info!("{}: connected", session.peer);
        let greeted = handshake::send_answer(&mut control, &Answer { ok: true, ..Answer::default() });
        let beat = || session.peer.heartbeat.beat();
        if greeted.is_ok() && lease::watch(&mut control, inner.fencing.lease, beat) == End::Expired {
            log::warn!("{}: ending: its lease has expired", session.peer);
            session.peer.expired.store(true, Ordering::Release);
            // A client that resumes later must notice the end.
            control.shutdown();
        }
    }

    // Order matters: stop new calls, running calls, new queue pairs, outstanding requests, and
    // queue pairs. Only then may the service reuse the session's resources.
    let _releasing = Releasing::begin(inner, &session);
    inner.sessions.lock().remove(&id);
    *session.open.write() = false;
    let closed = session.queue_pairs.close();
    closed.messages().for_each(|qp| stack.rpc.remove(qp.qp_num()));
    if let Err(reason) = made {
        if let Err(closed) = closed.end() {
            // The service does not know this session yet, and has given it nothing.
            closed.force();
        }
        return refuse(&mut control, reason);
    }
    let stopped = closed.end().unwrap_or_else(|closed| await_release(inner, &session, closed));
    if !stopped {
        log::error!("{}: its device has not stopped: its resources are not reused", session.peer);
        session.peer.still_maps.store(true, Ordering::Release);
    }
    if let Err(e) = guarded(|| inner.service.disconnected(&session.peer)) {
        log::error!("{}: {e}", session.peer);
    }
    log::info!("{}: closed", session.peer);
    Ok(())
}

/// Registers the session, so that streams can join it.
fn register(inner: &Inner, session: &Arc<HostSession>) -> Result<(), String> {
    let mut sessions = inner.sessions.lock();
    if let Some(key) = session.peer.key {
        let limit = inner.limits.sessions_per_key;
        if sessions.values().filter(|other| other.peer.key == Some(key)).count() >= limit {
            return Err(format!("the server takes no more than {limit} sessions with the key {key}"));
        }
        let in_making =
            |other: &Arc<HostSession>| other.peer.key == Some(key) && !other.queue_pairs.is_open();
        if sessions.values().filter(|other| in_making(other)).count() >= inner.limits.in_making_per_key() {
            return Err(format!("too many clients are connecting with the key {key}: try again"));
        }
    }
    sessions.insert(session.peer.id, Arc::clone(session));
    Ok(())
}

fn refuse(control: &mut Stream, reason: String) -> Result<(), String> {
    let answer = Answer { ok: false, text: reason.clone(), ..Answer::default() };
    // The client may be gone; the reason is logged in any case.
    let _ = handshake::send_answer(control, &answer);
    Err(reason)
}

/// Sends the client its token, waits for all queue pairs, and lets the service accept the
/// session.
fn make(
    inner: &Inner,
    session: &HostSession,
    control: &mut Stream,
    identity: Identity,
) -> Result<(), String> {
    // Dropping `HostHandle` may have shut down the sessions that it found, without this one.
    if inner.stopping.load(Ordering::SeqCst) {
        return Err("the server is being stopped".into());
    }
    let answer = Answer {
        ok: true,
        denied: false,
        token: session.token,
        host: inner.host_id,
        lease: inner.fencing.lease,
        fetch: session.fetch.as_ref().map(|fetch| fetch.slots.remote_addr()),
        atomics: inner.atomic_scope(session.peer.provider),
        text: inner.unix.clone(),
    };
    let mut transcript: Option<Transcript> = match identity {
        Identity::Anonymous => None,
        Identity::Key { transcript, .. } => Some(transcript),
    };
    handshake::send_welcome(control, &answer, transcript.as_mut()).map_err(|e| e.to_string())?;
    session.queue_pairs.open(Instant::now() + HANDSHAKE, || control.is_over())?;
    guarded(|| inner.service.connected(&session.peer))??;
    *session.open.write() = true;
    Ok(())
}

/// Waits until a client that does not release mapped memory has ended, killing it if allowed. If
/// the host stops meanwhile, it marks the client as clinging, so its memory is not reused.
/// Returns whether all queue pairs have stopped.
fn await_release(inner: &Inner, session: &HostSession, closed: ClosedQueuePairs) -> bool {
    let peer = &session.peer;
    match &session.process {
        // The next host has to deal with the client.
        _ if inner.stopping.load(Ordering::SeqCst) => {}
        Some(process) if inner.fencing.kill => match process.kill() {
            Ok(()) => {
                log::warn!("{peer}: killed its process {}: unresponsive, and still maps memory", process.pid)
            }
            Err(e) => log::error!(
                "{peer}: cannot kill its process {} ({e}): unresponsive, and still maps memory; \
                 its open files are kept until it ends",
                process.pid
            ),
        },
        process => log::error!(
            "{peer}: unresponsive, and still maps memory: its open files are kept until its process{} ends",
            process.as_ref().map_or_else(String::new, |process| format!(" {}", process.pid))
        ),
    }
    while !closed.is_released() {
        if inner.stopping.load(Ordering::SeqCst) {
            peer.still_maps.store(true, Ordering::Release);
            break;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
    closed.force()
}

fn queue_pair(
    inner: &Inner,
    session: &Arc<HostSession>,
    role: Role,
) -> Result<Arc<dyn QueuePair>, VerbsError> {
    let stack = inner.stack(session.peer.provider);
    let Stack { device, rpc, .. } = stack;
    let written;
    let (depth, cq, progress) = match role {
        Role::Calls => (QUEUE_DEPTH, rpc.cq(), Progress::Caller),
        Role::DeferredReplies => (DEFERRED_DEPTH, rpc.cq(), Progress::Caller),
        Role::Data => (1, &session.sink, Progress::Engine),
        Role::Fetch => {
            written = device.create_cq(2 * WRITER_DEPTH as usize)?;
            (WRITER_DEPTH, &written, Progress::Engine)
        }
    };
    let pd = match &session.fetch {
        Some(fetch) if role == Role::Fetch => Arc::clone(&fetch.pd),
        _ => stack.pd(session.peer.domain),
    };
    let caps = QpCaps { max_send_wr: depth, max_recv_wr: depth, ..QpCaps::default() }.within(device.attr());
    let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
    // A host makes no one-sided requests but WRITEs of replies to clients that ask for them, so it
    // maps no memory of its clients.
    let qp = pd.create_qp(QpInit { send_cq, recv_cq, caps, progress, maps: false })?;
    let handler = || Arc::<HostSession>::clone(session) as Arc<dyn Handler>;
    let deferred = || Arc::clone(&session.deferred);
    match role {
        Role::Calls => {
            let slots = session.fetch.as_ref().map(|fetch| Arc::clone(&fetch.slots));
            rpc.add(&*pd, Arc::clone(&qp), handler(), deferred(), slots)?;
        }
        Role::DeferredReplies => rpc.add_deferred(&*pd, Arc::clone(&qp), handler(), deferred())?,
        Role::Data => {}
        Role::Fetch => {
            let writer = ReplyWriter::new(Arc::clone(&qp), Arc::clone(cq));
            if let Some(fetch) = &session.fetch {
                fetch.slots.set_writer(writer);
            }
        }
    }
    Ok(qp)
}
