//! The dispatchers behind rdmabox: decodes, hands on, encodes. A session belongs to the export that it has attached to.
//!
//! Threading: rdmabox calls from several threads at once. Decoding and encoding hold no lock. A request that is no
//! message ends its session, and nothing else.

mod mounting;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use rdmabox::{Ender, Export, Fencing, KeyId, Peer, ProviderKind, RemoteAddr, Service};
use rfs_proto::{
    Errno, MAX_MESSAGE, RegionRef, Reply, Request, VERSION, attach_version, decode_request, encode_reply,
    encode_reply_with,
};

use crate::{
    absences::Bell,
    awake,
    config::DEFAULT_LEASE,
    dispatch::{Dispatcher, Outcome, Sender},
    durable::Former,
    keys::Keys,
    mounts::{Arrival, Attached, Mounts},
    rights::Rights,
    sessions::{Credentials, Regions},
    squash::Squash,
};

/// The memory of a file system, as the sessions of one protection domain reach it.
#[derive(Debug)]
pub struct Reach {
    /// File data.
    pub arena: Export,
    /// Attribute records.
    pub table: Export,
    /// Checksums, if there are any.
    pub sums: Option<Export>,
}

impl Reach {
    fn regions(&self, peer: &Peer) -> Regions {
        let region = |export: &Export| {
            let RemoteAddr { addr, rkey } = peer.remote_addr(export);
            RegionRef { addr, len: export.memory().len() as u64, rkey }
        };
        Regions {
            arena: region(&self.arena),
            table: region(&self.table),
            sums: self.sums.as_ref().map(region),
        }
    }
}

/// A file system, as sessions reach it.
///
/// With keys each export has protection domains of its own, one for those who may write and one for those who may not, whose
/// regions have no right but to be read. So a session reaches no byte of another export, and writes none of its own that it may not,
/// whatever it sends.
///
/// Sessions without a key are all in one domain. Each is told the regions of its own export only: whoever keeps to the protocol
/// reaches no byte of another one. It is no wall against a client that does not: where memory is mapped a client is handed that of
/// all exports.
#[derive(Debug)]
pub struct Lent {
    /// Its name.
    pub name: String,
    /// Answers its sessions.
    pub dispatcher: Arc<Dispatcher>,
    /// For those without a key.
    pub open: Reach,
    /// For those with one, by what they may do.
    pub keyed: HashMap<Rights, Reach>,
}

impl Lent {
    /// How a peer with these rights names the memory.
    fn regions(&self, peer: &Peer, rights: Rights) -> Regions {
        let reach = match peer.key() {
            // Each export with keys has both.
            Some(_) => self.keyed.get(&rights).unwrap_or(&self.open),
            None => &self.open,
        };
        reach.regions(peer)
    }
}

/// What there is to do about the first request of a connection.
enum Chosen<'a> {
    /// It belongs to a session of this export.
    Export(&'a Lent, Attached),
    /// Nothing but to answer.
    Say(Reply),
}

/// Where each session has attached to; `None` before that. Only sessions that are there have one.
#[derive(Debug, Default)]
struct Choices(HashMap<u64, Option<Attached>>);

impl Choices {
    fn begin(&mut self, session: u64) {
        self.0.insert(session, None);
    }

    /// What it has attached to.
    fn get(&self, session: u64) -> Option<Attached> {
        self.0.get(&session).copied().flatten()
    }

    /// Attaches it by way of `attach`, if it has not chosen before. What it has attached to then; `None` if it has ended.
    fn choose(&mut self, session: u64, wanted: Attached, attach: impl FnOnce()) -> Option<Attached> {
        let choice = self.0.get_mut(&session)?;
        Some(*choice.get_or_insert_with(|| {
            attach();
            wanted
        }))
    }

    /// It is gone: what it had attached to.
    fn end(&mut self, session: u64) -> Option<Attached> {
        self.0.remove(&session).flatten()
    }
}

/// The file service of one or more exports.
#[derive(Debug)]
pub struct FileService {
    exports: Vec<Lent>,
    keys: Option<Arc<Keys>>,
    sessions: RwLock<Choices>,
    /// Sessions with a key.
    keyed: Mutex<HashMap<u64, KeyId>>,
    mounts: Mutex<Mounts>,
    /// For how long a mount is waited for that has lost its connection.
    grace: Option<Duration>,
    /// Rung when one has.
    bell: Arc<Bell>,
    /// Who may still write as a client of the server before.
    former: Arc<Former>,
    /// Until when those have time who were there before the server.
    before_until: Instant,
    /// Whether those are killed then that do not let go.
    kill: bool,
    /// Ends connections; there once the host listens.
    ender: OnceLock<Ender>,
}

impl FileService {
    /// A service of these exports, the first of which is that of clients that name none and have no key.
    pub fn new(exports: Vec<Lent>, keys: Option<Arc<Keys>>) -> FileService {
        let (sessions, keyed, mounts) = (RwLock::default(), Mutex::default(), Mutex::default());
        let (grace, bell, ender) = (None, Arc::default(), OnceLock::new());
        let (former, before_until, kill) = (Arc::default(), awake::now(), false);
        FileService { exports, keys, sessions, keyed, mounts, grace, bell, former, before_until, kill, ender }
    }

    /// Has it wait for mounts that come back, and ring `bell` when one has left. Without this none is waited for, but for those that were
    /// there before the server. None of those is given up while somebody holds on to what the server before had lent.
    #[must_use]
    pub fn waiting(self, fencing: Fencing, bell: Arc<Bell>, former: Arc<Former>) -> FileService {
        let before_until = awake::now() + fencing.lease.unwrap_or(DEFAULT_LEASE);
        let service =
            FileService { grace: fencing.lease, bell, former, before_until, kill: fencing.kill, ..self };
        service.await_those_of_before();
        service
    }

    /// What ends connections.
    pub fn set_ender(&self, ender: Ender) {
        // A host listens once.
        let _ = self.ender.set(ender);
    }

    /// Ends a connection, if it has not ended by itself.
    fn end_peer(&self, peer: u64, reason: &str) {
        if let Some(ender) = self.ender.get() {
            ender.end(peer, reason);
        }
    }

    /// Ends a session of an export for a reason of its dispatcher's, whether or not anybody is connected to it.
    pub fn end_session(&self, export: usize, session: u64, reason: &str) {
        let now = awake::now();
        let (peer, away) = {
            let mut mounts = self.mounts.lock();
            (mounts.peer_of(export, session), mounts.give_up(export, session, now))
        };
        match away {
            true => {
                log::warn!("session {session}, which nobody is connected to: ending: {reason}");
                self.give_up_now();
            }
            false => {
                // Without a mount its number has that of its connection, if it has come to this server.
                let connection = Dispatcher::connection_of(session);
                let is_of_now = self.exports[export].dispatcher.session_number(connection) == session;
                match peer.or(is_of_now.then_some(connection)) {
                    Some(peer) => self.end_peer(peer, reason),
                    None => log::debug!("session {session} of a server before is ending: {reason}"),
                }
            }
        }
    }

    /// The sessions that have one of these keys.
    pub fn sessions_with(&self, keys: &[KeyId]) -> Vec<u64> {
        let keyed = self.keyed.lock();
        keyed.iter().filter(|(_, key)| keys.contains(key)).map(|(session, _)| *session).collect()
    }

    /// The export of a session, and what it may do there.
    fn export(&self, peer: u64) -> Option<Chosen<'_>> {
        let attached = self.sessions.read().get(peer)?;
        Some(Chosen::Export(self.exports.get(attached.export)?, attached))
    }

    /// Returns whom the users of a peer stand for.
    fn squash(&self, peer: &Peer) -> Squash {
        let opens = |key| self.keys.as_ref().and_then(|keys| keys.opens(key));
        // A key that is gone by now has its session ended.
        peer.key().and_then(opens).map_or(Squash::Nobody, |opens| opens.squash)
    }

    /// What a session gets that asks for the export `name`.
    fn allowed(&self, peer: &Peer, name: &str) -> Result<Attached, Errno> {
        let place = |name| self.exports.iter().position(|export| export.name == name);
        let session = |export: usize| self.exports[export].dispatcher.session_number(peer.id());
        let Some(key) = peer.key() else {
            let export = if name.is_empty() { Some(0) } else { place(name) };
            let export = export.ok_or(Errno::ENOENT)?;
            return Ok(Attached { export, rights: Rights::Write, session: session(export) });
        };
        let opens = self.keys.as_ref().and_then(|keys| keys.opens(key)).ok_or(Errno::EACCES)?;
        // Whether there is an export of that name is nothing for those who have no key to it.
        match name.is_empty() || place(name) == Some(opens.export) {
            true => {
                Ok(Attached { export: opens.export, rights: opens.rights, session: session(opens.export) })
            }
            false => Err(Errno::EACCES),
        }
    }

    /// The export that the first request of a session asks for, or what else there is to say to it.
    fn choose(&self, peer: &Peer, request: &[u8]) -> Result<Chosen<'_>, String> {
        let refuse = |errno| Ok(Chosen::Say(Reply::Error(errno)));
        // What follows the version may differ in another one.
        if let Some(version) = attach_version(request)
            && version != VERSION
        {
            log::warn!("{peer}: it speaks version {version}, this is version {VERSION}");
            return refuse(Errno::EPROTO);
        }
        let Request::Attach { client, export: name, mount, .. } = decode(request)? else {
            return refuse(Errno::EPROTO);
        };
        let wanted = match self.allowed(peer, name) {
            Ok(wanted) => wanted,
            Err(errno) => {
                log::warn!("{peer}: {client:?} asks for the export {name:?}: {errno}");
                return refuse(errno);
            }
        };
        let wanted = match self.arrival(peer, mount, wanted) {
            Arrival::New => wanted,
            Arrival::Back(before) => return Ok(self.comes_back(peer, before)),
            Arrival::Refused => return refuse(Errno::EACCES),
            Arrival::Doomed => return Ok(Chosen::Say(Reply::Ending)),
            Arrival::Ending(before) => {
                self.end_peer(before, "its mount is here over another connection");
                return Ok(Chosen::Say(Reply::Ending));
            }
        };
        // Of two requests at once the first one counts; the export itself refuses the other one. One that comes when the session has
        // ended leaves nothing behind.
        let attached = self.sessions.write().choose(peer.id(), wanted, || {
            let export = &self.exports[wanted.export];
            let credentials = Credentials { key: peer.key().copied(), rights: wanted.rights };
            let squash = self.squash(peer);
            let regions = export.regions(peer, reach(wanted.rights, squash));
            export.dispatcher.session_began_as(wanted.session, regions, credentials);
            export.dispatcher.squash(wanted.session, squash);
        });
        match attached {
            Some(attached) => Ok(Chosen::Export(&self.exports[attached.export], attached)),
            None => refuse(Errno::EPROTO),
        }
    }
}

impl Service for FileService {
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        log::debug!("session {}: {}", peer.id(), peer.description());
        if let Some(key) = peer.key() {
            self.keyed.lock().insert(peer.id(), *key);
        }
        self.sessions.write().begin(peer.id());
        Ok(())
    }

    fn call(&self, peer: &Peer, request: &[u8], reply: &mut rdmabox::Reply<'_>) -> Result<(), String> {
        let chosen = match self.export(peer.id()) {
            Some(chosen) => chosen,
            None => self.choose(peer, request)?,
        };
        match chosen {
            Chosen::Export(export, attached) => {
                // Whoever has the records mapped looks at them for nothing.
                let looks = peer.provider() == ProviderKind::Shm;
                answer(&export.dispatcher, (attached, looks), request, reply, |request, answer| {
                    self.note(peer, attached, request, answer);
                })?;
            }
            Chosen::Say(answer) => encode(&answer, reply),
        }
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        let chosen = self.sessions.write().end(peer.id());
        self.keyed.lock().remove(&peer.id());
        if peer.clings() {
            // Nobody but the next server gives up what it has, when nobody holds on to what this one has lent.
            return log::warn!("{peer}: it has not let go of the memory: a next server on it waits for that");
        }
        if let Some(attached) = chosen {
            self.left(peer, attached);
        }
        log::debug!("session {}: gone", peer.id());
    }
}

/// Returns how a session with these rights reaches memory: with a squash the server alone changes it.
fn reach(rights: Rights, squash: Squash) -> Rights {
    if squash.is_nobody() { rights } else { Rights::Read }
}

fn decode(request: &[u8]) -> Result<Request<'_>, String> {
    decode_request(request).map_err(|e| format!("malformed request: {e}"))
}

/// What is asked for once.
fn decode_once(request: &[u8]) -> Result<Request<'_>, String> {
    match decode(request)? {
        request if request.may_be_once() => Ok(request),
        _ => Err("malformed request: not to be asked for once".into()),
    }
}

/// Answers one message of a session, which `looks` at records for nothing or not, now or later. An error ends the session.
fn answer(
    dispatcher: &Dispatcher,
    (Attached { session, rights, .. }, looks): (Attached, bool),
    request: &[u8],
    reply: &mut rdmabox::Reply<'_>,
    note: impl FnOnce(&Request<'_>, &Outcome),
) -> Result<(), String> {
    let (once, request) = match decode(request)? {
        Request::Once { slot, sequence, request } => (Some((slot, sequence)), decode_once(request)?),
        request => (None, request),
    };
    if !rights.allow(&request) {
        encode(&Reply::Error(Errno::EROFS), reply);
        return Ok(());
    }
    let outcome = match once {
        Some(number) => dispatcher.handle_once(session, number, request),
        None => dispatcher.handle(session, request),
    };
    note(&request, &outcome);
    match outcome {
        Outcome::Now(mut answer) if rights == Rights::Read => {
            if let Reply::Attached(attached) = &mut answer {
                attached.read_only = true;
            }
            encode(&answer, reply);
        }
        Outcome::Now(answer) => {
            let changed = !looks && !matches!(answer, Reply::Error(_));
            match if changed { dispatcher.directory_after(session, &request) } else { None } {
                Some(directory) => {
                    encode_reply_with(&answer, &directory, reply);
                    if reply.len() > MAX_MESSAGE {
                        encode(&answer, reply);
                    }
                }
                None => encode(&answer, reply),
            }
        }
        Outcome::Later(promise) => {
            let later = reply.later();
            let sender = Sender::new(move |answer| {
                let mut bytes = Vec::new();
                encode(&answer, &mut bytes);
                later.answer(&bytes);
            });
            dispatcher.redeem(promise, sender);
        }
    }
    Ok(())
}

fn encode(reply: &Reply, bytes: &mut Vec<u8>) {
    encode_reply(reply, bytes);
    if bytes.len() > MAX_MESSAGE {
        // Replies are built to fit; should one not, its asker must not be left waiting.
        log::error!("a reply of {} bytes does not fit", bytes.len());
        encode_reply(&Reply::Error(Errno::EOVERFLOW), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_chooses_once_and_while_it_is_there() {
        let [first, second] = [0, 1].map(|export| Attached { export, rights: Rights::Write, session: 1 });
        let mut choices = Choices::default();
        let mut attached = Vec::new();
        assert_eq!(choices.choose(1, first, || attached.push(1)), None, "it has not begun");
        choices.begin(1);
        choices.begin(2);
        assert_eq!(choices.get(1), None);
        assert_eq!(choices.choose(1, second, || attached.push(1)), Some(second));
        assert_eq!(choices.choose(1, first, || attached.push(1)), Some(second), "the first one counts");
        assert_eq!((choices.get(1), choices.get(2)), (Some(second), None));
        assert_eq!((choices.end(1), choices.end(2), choices.end(1)), (Some(second), None, None));
        assert_eq!(choices.choose(1, first, || attached.push(1)), None, "it has ended");
        assert_eq!(attached, [1]);
        assert!(choices.0.is_empty());
    }
}
