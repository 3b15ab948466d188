//! Where new streams are received: each gets a place among the strangers, says what it is for, proves who it is, and is sent
//! where it belongs.
//!
//! A thread per listener accepts; a short-lived thread deals with each new stream, so that a slow client holds up nobody. That of a
//! control stream becomes the thread of its session.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    Grant, KeyId,
    handshake::{self, Answer, Opening, Purpose},
    host::{HANDSHAKE, Inner},
    hosted::{self, Wanted},
    listener::Listener,
    proof::Dialogue,
    strangers::Stranger,
    stream::Stream,
};
use crate::tls::TlsStream;

/// What a client has shown.
pub(super) enum Shown {
    /// Nothing, and need not.
    Nothing,
    /// That it has this key.
    Key { id: KeyId, grant: Grant, dialogue: Dialogue },
}

/// Accepts until the host is being stopped.
pub(super) fn accept(inner: &Arc<Inner>, listener: &Listener) {
    while !inner.stopping.load(Ordering::SeqCst) {
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(_) if inner.stopping.load(Ordering::SeqCst) => return,
            Err(e) => {
                log::warn!("{}: accept: {e}", listener.address);
                // Out of descriptors: those of strangers may be the reason.
                let want = matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                let made_way = want && inner.strangers.make_way();
                std::thread::sleep(Duration::from_millis(if made_way { 2 } else { 50 }));
                continue;
            }
        };
        let stranger = match inner.strangers.admit(&stream) {
            Ok(stranger) => stranger,
            Err(e) => {
                log::warn!("{}: connection refused: {e}", listener.address);
                continue;
            }
        };
        let thread = std::thread::Builder::new().name("rdmabox-session".into()).spawn({
            let inner = Arc::clone(inner);
            move || receive(&inner, stream, stranger)
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

/// Reads a stream's preamble and sends it where it belongs.
fn receive(inner: &Arc<Inner>, stream: Stream, stranger: Stranger) {
    let name = stream.peer_name();
    let deadline = Instant::now() + inner.limits.introduction;
    let Some(mut stream) = secure(inner, stream, &name, deadline) else { return };
    let opening = stream
        .set_timeout(Some(inner.limits.introduction))
        .and_then(|()| handshake::receive_preamble(&mut stream, deadline))
        // The limit of what is written.
        .and_then(|opening| stream.set_timeout(Some(HANDSHAKE)).map(|()| opening));
    let opening = match opening {
        Ok(opening) => opening,
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return log::debug!("{name}: closed before it said anything");
        }
        Err(e) => {
            log::warn!("{name}: connection closed: {}", in_words(&e));
            if e.kind() == io::ErrorKind::Unsupported {
                refuse(&mut stream, &e.to_string());
                stream.linger(deadline);
            }
            return;
        }
    };
    match opening.purpose {
        Purpose::Join { .. } => {
            if let Err(reason) = join(inner, &opening, stream, &stranger, deadline) {
                log::warn!("{name}: connection closed: {reason}");
            }
        }
        Purpose::Probe => {
            let answer =
                Answer { ok: true, host: inner.host_id, text: inner.unix.clone(), ..Answer::default() };
            if let Err(e) = handshake::send_answer(&mut stream, &answer) {
                log::debug!("{name}: asked who this is and went: {e}");
            }
        }
        Purpose::Control { queue_pairs, fetch, key } => {
            let wanted = Wanted { queue_pairs, fetch };
            let done = show(inner, &opening, key, &mut stream, deadline).and_then(|shown| {
                stranger.is_known();
                hosted::session(inner, stream, stranger, wanted, shown)
            });
            if let Err(reason) = done {
                log::warn!("{name}: no session: {reason}");
            }
        }
    }
}

/// Shakes hands with whoever has come over TCP, if this host has certificates. `None` if there is nobody to go on with.
fn secure(inner: &Inner, stream: Stream, name: &str, deadline: Instant) -> Option<Stream> {
    let Some(tls) = &inner.tls else { return Some(stream) };
    let Stream::Tcp(tcp) = stream else { return Some(stream) };
    let error = match tls.accept(&tcp, deadline) {
        Ok(channel) => return Some(Stream::Tls(TlsStream::new(tcp, channel))),
        Err(e) => e,
    };
    match error.kind() {
        io::ErrorKind::UnexpectedEof => log::debug!("{name}: closed before it had shaken hands"),
        _ => log::warn!("{name}: connection closed: {}", in_words(&error)),
    }
    let mut stream = Stream::Tcp(tcp);
    if error.kind() == io::ErrorKind::Unsupported {
        // It has no TLS, and is told without.
        refuse(&mut stream, &error.to_string());
    }
    if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidData) {
        stream.linger(deadline);
    }
    None
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it has not said in time what it wants".into(),
        _ => error.to_string(),
    }
}

fn refuse(stream: &mut Stream, reason: &str) {
    let answer = Answer { ok: false, text: reason.into(), ..Answer::default() };
    // It may be gone already; the reason is logged in any case.
    let _ = handshake::send_answer(stream, &answer);
}

/// Finds out who wants a session.
///
/// # Errors
/// It gets none, and has been told so: a reason for the log, which may say more than the client was told.
fn show(
    inner: &Inner,
    opening: &Opening,
    key: Option<KeyId>,
    stream: &mut Stream,
    deadline: Instant,
) -> Result<Shown, String> {
    let refused = |stream: &mut Stream, reason: &str| {
        refuse(stream, reason);
        Err(reason.to_owned())
    };
    match (&inner.keys, key) {
        (None, None) if inner.any_local_user || !stream.is_unix() || stream.is_of_same_user() => {
            Ok(Shown::Nothing)
        }
        (None, None) => refused(
            stream,
            "through its Unix socket this server takes root and the user that runs it: others need a key, \
             and it has none",
        ),
        (None, Some(_)) => refused(stream, "this server has no keys: it takes clients without one"),
        // Who may look into this process's memory in any case.
        (Some(_), None) if stream.is_of_same_user() => Ok(Shown::Nothing),
        (Some(_), None) => refused(stream, "this server requires a key: pass --key FILE"),
        (Some(keys), Some(id)) => {
            let grant = keys.grant(&id);
            let secret = grant.as_ref().map(|grant| &grant.secret);
            let dialogue = handshake::challenge(stream, opening, secret, deadline)
                .map_err(|e| format!("key {id}: {}", in_words(&e)))?;
            // Time for the answers, which is not what was left for hearing who it is.
            stream.set_timeout(Some(HANDSHAKE)).map_err(|e| e.to_string())?;
            match (grant, dialogue) {
                (Some(grant), Some(dialogue)) => Ok(Shown::Key { id, grant, dialogue }),
                (grant, _) => {
                    refuse(stream, &format!("the server does not take the key {id}"));
                    let why = if grant.is_some() { "it does not know the secret of" } else { "there is no" };
                    Err(format!("{why} key {id}"))
                }
            }
        }
    }
}

/// Gives a stream to the session that it names.
fn join(
    inner: &Inner,
    opening: &Opening,
    mut stream: Stream,
    stranger: &Stranger,
    deadline: Instant,
) -> Result<(), String> {
    let Purpose::Join { token, index, proves } = opening.purpose else { return Ok(()) };
    // Every token is looked at, so that the time tells nothing.
    let session = inner.sessions.lock().values().fold(None, |found, session| {
        if *session.token() == token { Some(Arc::clone(session)) } else { found }
    });
    let no_session = || "it joins no session".to_owned();
    let secret = session.as_ref().and_then(|session| session.secret());
    if session.is_some() && proves != secret.is_some() {
        return Err("it names a session and does not prove that it is part of it".into());
    }
    if proves {
        let dialogue = handshake::challenge(&mut stream, opening, secret, deadline);
        let dialogue = dialogue.map_err(|e| in_words(&e))?.ok_or_else(no_session)?;
        handshake::prove(&mut stream, &dialogue).map_err(|e| e.to_string())?;
    }
    let session = session.ok_or_else(no_session)?;
    // It keeps its place until it is connected, but its session ends it.
    stranger.joins(session.key());
    session.join(inner, index, stream)
}
