//! Accepts streams and dispatches them by purpose.
//!
//! Each accepted stream becomes a pending connection. It sends its preamble, proves its key if it
//! has one, and goes to its session. A probe is answered and closed.
//!
//! # Concurrency
//! One thread per listener accepts. Each stream gets a thread of its own, so a slow client does
//! not delay others. The thread of a control stream becomes the thread of its session. Locks, one
//! at a time: `Inner::threads`, `Inner::sessions`, the pending connections.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    listener::Listener,
    pending_connections::PendingConnection,
    session_thread::{self, Identity, SessionRequest},
    state::Inner,
};
use crate::{
    auth::KeyId,
    session::{
        handshake::{self, Answer, HANDSHAKE, Preamble, Purpose},
        stream::Stream,
    },
    tls::TlsStream,
};

/// Accepts streams until the host stops.
pub(crate) fn run(inner: &Arc<Inner>, listener: &Listener) {
    while !inner.stopping.load(Ordering::SeqCst) {
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(_) if inner.stopping.load(Ordering::SeqCst) => return,
            Err(e) => {
                log::warn!("{}: accept: {e}", listener.address);
                // Out of descriptors: closing a pending connection frees one.
                let want = matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                let evicted = want && inner.pending.evict_one();
                std::thread::sleep(Duration::from_millis(if evicted { 2 } else { 50 }));
                continue;
            }
        };
        let pending = match inner.pending.admit(&stream) {
            Ok(pending) => pending,
            Err(e) => {
                log::warn!("{}: connection refused: {e}", listener.address);
                continue;
            }
        };
        let thread = std::thread::Builder::new().name("rdmabox-session".into()).spawn({
            let inner = Arc::clone(inner);
            move || dispatch(&inner, stream, pending)
        });
        match thread {
            Ok(thread) => {
                let mut threads = inner.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(e) => log::error!("cannot start a thread for a connection: {e}"),
        }
    }
}

/// Reads the preamble of a stream and dispatches the stream by its purpose.
fn dispatch(inner: &Arc<Inner>, stream: Stream, pending: PendingConnection) {
    let name = stream.peer_name();
    let deadline = Instant::now() + inner.limits.introduction_timeout;
    let Some(mut stream) = start_tls(inner, stream, &name, deadline) else { return };
    let preamble = stream
        .set_timeout(Some(inner.limits.introduction_timeout))
        .and_then(|()| handshake::receive_preamble(&mut stream, deadline))
        // From here the timeout limits writes; the deadline limits reads.
        .and_then(|preamble| stream.set_timeout(Some(HANDSHAKE)).map(|()| preamble));
    let preamble = match preamble {
        Ok(preamble) => preamble,
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return log::debug!("{name}: closed before its preamble");
        }
        Err(e) => {
            log::warn!("{name}: connection closed: {}", describe(&e));
            if e.kind() == io::ErrorKind::Unsupported {
                refuse(&mut stream, &e.to_string());
                stream.linger(deadline);
            }
            return;
        }
    };
    match preamble.purpose {
        Purpose::Join { .. } => {
            if let Err(reason) = join(inner, &preamble, stream, &pending, deadline) {
                log::warn!("{name}: connection closed: {reason}");
            }
        }
        Purpose::Probe => {
            let answer =
                Answer { ok: true, host: inner.host_id, text: inner.unix.clone(), ..Answer::default() };
            if let Err(e) = handshake::send_answer(&mut stream, &answer) {
                log::debug!("{name}: closed before the answer to its probe: {e}");
            }
        }
        Purpose::Control { queue_pairs, fetch, key } => {
            let request = SessionRequest { queue_pairs, fetch };
            let done = authenticate(inner, &preamble, key, &mut stream, deadline).and_then(|identity| {
                pending.set_authenticated();
                session_thread::serve(inner, stream, pending, request, identity)
            });
            if let Err(reason) = done {
                log::warn!("{name}: no session: {reason}");
            }
        }
    }
}

/// Runs the TLS handshake of a TCP stream if this host has certificates. Returns `None` if the
/// stream is unusable.
fn start_tls(inner: &Inner, stream: Stream, name: &str, deadline: Instant) -> Option<Stream> {
    let Some(tls) = &inner.tls else { return Some(stream) };
    let Stream::Tcp(tcp) = stream else { return Some(stream) };
    let error = match tls.accept(&tcp, deadline) {
        Ok(channel) => return Some(Stream::Tls(TlsStream::new(tcp, channel))),
        Err(e) => e,
    };
    match error.kind() {
        io::ErrorKind::UnexpectedEof => log::debug!("{name}: closed during the TLS handshake"),
        _ => log::warn!("{name}: connection closed: {}", describe(&error)),
    }
    let mut stream = Stream::Tcp(tcp);
    if error.kind() == io::ErrorKind::Unsupported {
        // The client spoke without TLS, so the refusal goes without TLS.
        refuse(&mut stream, &error.to_string());
    }
    if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidData) {
        stream.linger(deadline);
    }
    None
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "timed out in the handshake".into(),
        _ => error.to_string(),
    }
}

fn refuse(stream: &mut Stream, reason: &str) {
    tell(stream, &Answer { text: reason.into(), ..Answer::default() });
}

/// Refuses a client because of its identity.
fn deny(stream: &mut Stream, reason: &str) {
    tell(stream, &Answer { denied: true, text: reason.into(), ..Answer::default() });
}

fn tell(stream: &mut Stream, answer: &Answer) {
    // The client may be gone; the reason is logged in any case.
    let _ = handshake::send_answer(stream, answer);
}

/// Authenticates a client that requests a session.
///
/// # Errors
/// The client is refused, and has been told so. The returned reason is for the log, and may say
/// more than the client was told.
fn authenticate(
    inner: &Inner,
    preamble: &Preamble,
    key: Option<KeyId>,
    stream: &mut Stream,
    deadline: Instant,
) -> Result<Identity, String> {
    let refused = |stream: &mut Stream, reason: &str| {
        deny(stream, reason);
        Err(reason.to_owned())
    };
    match (&inner.keys, key) {
        (None, None) if inner.any_local_user || !stream.is_unix() || stream.is_of_same_user() => {
            Ok(Identity::Anonymous)
        }
        (None, None) => refused(
            stream,
            "over its Unix socket this server accepts root and the user that runs it: others need a key, \
             and it has no keys",
        ),
        (None, Some(_)) => refused(stream, "this server has no keys: leave --key out"),
        // This user may read the host's memory in any case.
        (Some(_), None) if stream.is_of_same_user() => Ok(Identity::Anonymous),
        (Some(_), None) => refused(stream, "this server requires a key: pass --key FILE"),
        (Some(keys), Some(id)) => {
            let grant = keys.grant(&id);
            let secret = grant.as_ref().map(|grant| &grant.secret);
            let transcript = handshake::challenge(stream, preamble, secret, deadline)
                .map_err(|e| format!("key {id}: {}", describe(&e)))?;
            // The answers have a time limit of their own, apart from the introduction.
            stream.set_timeout(Some(HANDSHAKE)).map_err(|e| e.to_string())?;
            match (grant, transcript) {
                (Some(grant), Some(transcript)) => Ok(Identity::Key { id, grant, transcript }),
                (grant, _) => {
                    let refusal = format!(
                        "the key {id} is not in the server's key file or has another secret: after an edit send the \
                         server SIGHUP"
                    );
                    deny(stream, &refusal);
                    let why = if grant.is_some() { "it does not know the secret of" } else { "there is no" };
                    Err(format!("{why} key {id}"))
                }
            }
        }
    }
}

/// Passes a stream to the session that its preamble names.
fn join(
    inner: &Inner,
    preamble: &Preamble,
    mut stream: Stream,
    pending: &PendingConnection,
    deadline: Instant,
) -> Result<(), String> {
    let Purpose::Join { token, index, proves } = preamble.purpose else { return Ok(()) };
    // Compares all tokens, so that the time reveals nothing.
    let session = inner.sessions.lock().values().fold(None, |found, session| {
        if *session.token() == token { Some(Arc::clone(session)) } else { found }
    });
    let no_session = || "the joining stream names no session".to_owned();
    let secret = session.as_ref().and_then(|session| session.secret());
    if session.is_some() && proves != secret.is_some() {
        return Err("the joining stream does not prove the session's secret".into());
    }
    if proves {
        let transcript = handshake::challenge(&mut stream, preamble, secret, deadline);
        let transcript = transcript.map_err(|e| describe(&e))?.ok_or_else(no_session)?;
        handshake::prove(&mut stream, &transcript).map_err(|e| e.to_string())?;
    }
    let session = session.ok_or_else(no_session)?;
    // The stream stays a pending connection until it is connected, but only its session ends it.
    pending.set_joining(session.key());
    session.join(inner, index, stream)
}
