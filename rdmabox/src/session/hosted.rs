//! A session at the host, from its control stream's preamble to its end.
//!
//! The thread of a control stream makes the session and stays for as long as it lasts. The streams of its queue pairs
//! come in on threads of their own ([`HostSession::join`]). It knows the listeners' state ([`Inner`]) but none of the
//! listeners.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::RwLock;

use super::{
    Domain, KeyId, Peer, ProviderKind, Reply, Secret, Service,
    fetching::FetchMemory,
    handshake::{self, Answer, Token},
    host::{HANDSHAKE, Inner, Stack},
    host_queue_pairs::{Closed, HostQueuePairs, Role},
    lease::{self, End},
    proof::Dialogue,
    reception::Shown,
    straggler::ClientProcess,
    strangers::Stranger,
    stream::Stream,
};
use crate::{
    failure::contain,
    rpc::{Handler, LATE_DEPTH, LateReplies, QUEUE_DEPTH, Reason},
    verbs::{CompletionQueue, Progress, QpCaps, QpInit, QueuePair, VerbsError},
};

const MAX_QUEUE_PAIRS: u32 = 16;
/// Between two looks at whether a client that does not react has ended.
const STRAGGLER_LOOK: Duration = Duration::from_millis(5);

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
    contain(service).map_err(|panic| format!("the service panicked: {panic}"))
}

/// What a client wants of its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Data queue pairs.
    pub queue_pairs: u32,
    /// Calls by fetching, if there is memory for them.
    pub fetch: bool,
}

/// A session at the host.
pub(super) struct HostSession {
    peer: Peer,
    /// What it reaches.
    domain: Domain,
    /// What the streams that join it prove that they know; without one, its token is.
    secret: Option<Secret>,
    service: Arc<dyn Service>,
    control: Stream,
    token: Token,
    /// Where memory is mapped.
    process: Option<Arc<ClientProcess>>,
    queue_pairs: HostQueuePairs,
    late: Arc<LateReplies>,
    /// If its calls are answered by fetching.
    fetch: Option<FetchMemory>,
    /// For completions of data queue pairs, of which there are none: nothing is posted on them here.
    sink: Arc<dyn CompletionQueue>,
    /// True while calls may run; each holds it for reading. Whoever finds it held for writing comes too late, or too early.
    open: RwLock<bool>,
}

impl std::fmt::Debug for HostSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSession").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Handler for HostSession {
    fn call(&self, request: &[u8], reply: &mut Reply<'_>) -> Result<(), String> {
        // Not in line behind the end, which waits for the calls that are running: this thread is there for all sessions.
        let Some(_open) = self.open.try_read().filter(|open| **open) else {
            return Err("the session is closed".into());
        };
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
    fn new(
        inner: &Inner,
        control: &Stream,
        Wanted { queue_pairs, fetch }: Wanted,
        shown: &Shown,
    ) -> Result<Arc<HostSession>, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let provider = control.provider();
        let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
        let device = &*inner.stack(provider).device;
        let made = fetch.then(|| FetchMemory::new(device, provider == ProviderKind::Shm)).transpose();
        let fetch = made.unwrap_or_else(|e| {
            log::warn!("{}: its calls are answered with messages: {e}", control.peer_name());
            None
        });
        let (key, domain, secret) = match shown {
            Shown::Nothing => (None, Domain::default(), None),
            Shown::Key { id, grant, dialogue } => (Some(*id), grant.domain, Some(dialogue.session_secret())),
        };
        let process = ClientProcess::of(control).map(Arc::new);
        let name = control.peer_name();
        Ok(Arc::new(HostSession {
            peer: Peer {
                id,
                provider,
                name,
                key,
                expired: AtomicBool::new(false),
                clings: AtomicBool::new(false),
                process: process.clone(),
            },
            domain,
            secret,
            service: Arc::clone(&inner.service),
            control: control.try_clone().map_err(|e| text(&e))?,
            token: Token::random().map_err(|e| text(&e))?,
            process,
            queue_pairs: HostQueuePairs::new(provider, queue_pairs as usize, fetch.is_some()),
            late: Arc::default(),
            fetch,
            sink: device.create_cq(16).map_err(|e| text(&e))?,
            open: RwLock::new(false),
        }))
    }

    /// Returns the key of its client.
    pub(super) fn key(&self) -> Option<KeyId> {
        self.peer.key
    }

    pub(super) fn token(&self) -> &Token {
        &self.token
    }

    pub(super) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Takes mapped memory away from a client whose key counts no longer: nothing but the end of its process does.
    pub(super) fn revoke(&self, kill: bool) {
        if self.peer.provider != ProviderKind::Shm {
            return;
        }
        let name = |process: &Arc<ClientProcess>| format!("process {}", process.pid());
        let process =
            self.process.as_ref().map_or_else(|| "a process that has no number here".to_owned(), name);
        let killed = self.process.as_ref().filter(|_| kill).map(|process| process.kill());
        match killed {
            Some(Ok(())) => {
                log::warn!("{}: killed {process}: its key is revoked, and it has memory mapped", self.peer)
            }
            Some(Err(e)) => log::error!(
                "{}: its key is revoked, but {process} cannot be killed ({e}) and may keep memory mapped: end it by hand",
                self.peer
            ),
            None => log::warn!(
                "{}: its key is revoked, but {process} may keep memory mapped: end it by hand",
                self.peer
            ),
        }
    }

    /// Makes its thread end it.
    pub(super) fn shutdown(&self) {
        if !self.queue_pairs.fail("the server ends it") {
            self.control.shutdown();
        }
    }

    /// Gives a stream its queue pair: one of those that the session is made of, or one in the place of another.
    pub(super) fn join(self: &Arc<Self>, inner: &Inner, index: u32, stream: Stream) -> Result<(), String> {
        let index = index as usize;
        let role = self.queue_pairs.role(index);
        self.queue_pairs
            .join(
                index,
                stream,
                || queue_pair(inner, self, role),
                // The call server has it already, if it is one for messages.
                |qp| inner.stack(self.peer.provider).rpc.remove(qp.qp_num()),
            )
            .map_err(|reason| format!("{}: {reason}", self.peer))?;
        if role == Role::LateReplies
            && let Err(reason) = self.late.begin()
        {
            self.end(Reason::Misbehaved(&reason));
        }
        Ok(())
    }
}

/// Makes a session, and stays until it is over.
pub(super) fn session(
    inner: &Arc<Inner>,
    mut control: Stream,
    stranger: Stranger,
    wanted: Wanted,
    shown: Shown,
) -> Result<(), String> {
    let (queue_pairs, limits) = (wanted.queue_pairs, &inner.limits);
    if !(1..=MAX_QUEUE_PAIRS).contains(&queue_pairs) {
        return refuse(&mut control, format!("{queue_pairs} queue pairs: choose 1 to {MAX_QUEUE_PAIRS}"));
    }
    let stack = inner.stack(control.provider());
    let most = stack.max_sessions.min(limits.sessions);
    let Some(_place) = Place::take(&stack.admitted, most) else {
        let kind = control.provider();
        return refuse(&mut control, format!("the server takes no more than {most} sessions over {kind}"));
    };
    // Fewer than strangers, so that the streams that they wait for can come in.
    let Some(in_making) = Place::take(&inner.in_making, limits.in_making()) else {
        return refuse(&mut control, "too many clients are connecting: try again".into());
    };
    let session = HostSession::new(inner, &control, wanted, &shown)?;
    let id = session.peer.id;
    if let Err(reason) = add(inner, &session) {
        return refuse(&mut control, reason);
    }
    let made = make(inner, &session, &mut control, shown);
    drop((stranger, in_making));
    if made.is_ok() {
        log::info!("{}: connected", session.peer);
        let greeted = handshake::send_answer(&mut control, &Answer { ok: true, ..Answer::default() });
        if greeted.is_ok() && lease::watch(&mut control, inner.fencing.lease) == End::Expired {
            log::warn!("{}: nothing heard of it for the length of its lease: ending", session.peer);
            session.peer.expired.store(true, Ordering::Release);
            // Should it go on, it is to know.
            control.shutdown();
        }
    }

    // Order matters: no new call, no running call, no new queue pair, no request under way, no queue pair; then the
    // service may reuse what it held.
    inner.sessions.lock().remove(&id);
    *session.open.write() = false;
    let closed = session.queue_pairs.close();
    closed.messages().for_each(|qp| stack.rpc.remove(qp.qp_num()));
    if let Err(reason) = made {
        if let Err(closed) = closed.end() {
            // The service knows nothing of it, and has given it nothing.
            closed.force();
        }
        return refuse(&mut control, reason);
    }
    let stopped = closed.end().unwrap_or_else(|closed| outlast(inner, &session, closed));
    if !stopped {
        log::error!("{}: its device has not stopped: what it had is given to no other client", session.peer);
        session.peer.clings.store(true, Ordering::Release);
    }
    if let Err(e) = guarded(|| inner.service.disconnected(&session.peer)) {
        log::error!("{}: {e}", session.peer);
    }
    log::info!("{}: closed", session.peer);
    Ok(())
}

/// Makes it known: from here streams can join it.
fn add(inner: &Inner, session: &Arc<HostSession>) -> Result<(), String> {
    let mut sessions = inner.sessions.lock();
    if let Some(key) = session.peer.key {
        let most = inner.limits.sessions_per_key;
        if sessions.values().filter(|other| other.peer.key == Some(key)).count() >= most {
            return Err(format!("the server takes no more than {most} sessions with the key {key}"));
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

/// Tells the client its token, and has the service accept the session once all queue pairs are connected.
fn make(inner: &Inner, session: &HostSession, control: &mut Stream, shown: Shown) -> Result<(), String> {
    // Sessions that were there when the host was stopped have been told; this one may not.
    if inner.stopping.load(Ordering::SeqCst) {
        return Err("the server is being stopped".into());
    }
    let answer = Answer {
        ok: true,
        token: session.token,
        host: inner.host_id,
        lease: inner.fencing.lease,
        fetch: session.fetch.as_ref().map(|fetch| fetch.slots.remote_addr()),
        text: inner.unix.clone(),
    };
    let mut dialogue: Option<Dialogue> = match shown {
        Shown::Nothing => None,
        Shown::Key { dialogue, .. } => Some(dialogue),
    };
    handshake::send_welcome(control, &answer, dialogue.as_mut()).map_err(|e| e.to_string())?;
    session.queue_pairs.open(Instant::now() + HANDSHAKE, || control.is_over())?;
    guarded(|| inner.service.connected(&session.peer))??;
    *session.open.write() = true;
    Ok(())
}

/// Returns when a client that does not let go of mapped memory has ended, or the host is being stopped: then its memory goes to
/// nobody else.
/// Returns whether its queue pairs have stopped.
fn outlast(inner: &Inner, session: &HostSession, closed: Closed) -> bool {
    let peer = &session.peer;
    match &session.process {
        // Whoever comes next has to do with it.
        _ if inner.stopping.load(Ordering::SeqCst) => {}
        Some(process) if inner.fencing.kill => match process.kill() {
            Ok(()) => log::warn!(
                "{peer}: it does not react and has memory mapped: its process {} has been killed",
                process.pid()
            ),
            Err(e) => log::error!(
                "{peer}: it does not react and has memory mapped, and its process {} cannot be killed ({e}): \
                 what it had open stays taken until it ends",
                process.pid()
            ),
        },
        process => log::error!(
            "{peer}: it does not react and has memory mapped: what it had open stays taken until its process{} ends",
            process.as_ref().map_or_else(String::new, |process| format!(" {}", process.pid()))
        ),
    }
    while !closed.is_let_go() {
        if inner.stopping.load(Ordering::SeqCst) {
            peer.clings.store(true, Ordering::Release);
            break;
        }
        std::thread::sleep(STRAGGLER_LOOK);
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
    let (depth, cq, progress) = match role {
        Role::Calls => (QUEUE_DEPTH, rpc.cq(), Progress::Caller),
        Role::LateReplies => (LATE_DEPTH, rpc.cq(), Progress::Caller),
        Role::Data | Role::Fetch => (1, &session.sink, Progress::Engine),
    };
    let pd = match &session.fetch {
        Some(fetch) if role == Role::Fetch => &fetch.pd,
        _ => stack.pd(session.domain),
    };
    let caps = QpCaps { max_send_wr: depth, max_recv_wr: depth, ..QpCaps::default() }.within(device.attr());
    let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
    // A host makes no one-sided requests: it takes no memory from its clients.
    let qp = pd.create_qp(QpInit { send_cq, recv_cq, caps, progress, maps: false })?;
    let handler = || Arc::<HostSession>::clone(session) as Arc<dyn Handler>;
    let late = || Arc::clone(&session.late);
    match role {
        Role::Calls => {
            let slots = session.fetch.as_ref().map(|fetch| Arc::clone(&fetch.slots));
            rpc.add(&**pd, Arc::clone(&qp), handler(), late(), slots)?;
        }
        Role::LateReplies => rpc.add_late(&**pd, Arc::clone(&qp), handler(), late())?,
        Role::Data | Role::Fetch => {}
    }
    Ok(qp)
}
