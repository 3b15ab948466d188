//! The dispatchers behind rdmabox: decodes, hands on, encodes. A session belongs to the export that it has attached to.
//!
//! Threading: rdmabox calls from several threads at once. Decoding and encoding hold no lock. A request that is no
//! message ends its session, and nothing else.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use rdmabox::{Export, Peer, RemoteAddr, Service};
use rfs_proto::{
    Errno, MAX_MESSAGE, RegionRef, Reply, Request, VERSION, attach_version, decode_request, encode_reply,
};

use crate::{
    dispatch::{Dispatcher, Outcome, Sender},
    sessions::Regions,
};

/// A file system, as sessions reach it.
///
/// Its memory is registered on its own, and a session is told the keys of its own export only: whoever keeps to the protocol
/// reaches no byte of another one, whatever addresses it computes. It is no wall against a client that does not. The keys of
/// software devices are small numbers, which can be guessed, and where memory is mapped a client is handed that of all exports.
/// Exports part space and names, not users who mean each other harm; they need servers of their own.
#[derive(Debug)]
pub struct Lent {
    /// Its name.
    pub name: String,
    /// Answers its sessions.
    pub dispatcher: Arc<Dispatcher>,
    /// File data.
    pub arena: Export,
    /// Attribute records.
    pub table: Export,
}

impl Lent {
    fn regions(&self, peer: &Peer) -> Regions {
        let region = |export: &Export| {
            let RemoteAddr { addr, rkey } = peer.remote_addr(export);
            RegionRef { addr, len: export.memory().len() as u64, rkey }
        };
        Regions { arena: region(&self.arena), table: region(&self.table) }
    }
}

/// Which export each session has attached to, by its place in the list; `None` before that. Only sessions that are there have one.
#[derive(Debug, Default)]
struct Choices(HashMap<u64, Option<usize>>);

impl Choices {
    fn begin(&mut self, session: u64) {
        self.0.insert(session, None);
    }

    /// What it has attached to.
    fn get(&self, session: u64) -> Option<usize> {
        self.0.get(&session).copied().flatten()
    }

    /// Attaches it to an export by way of `attach`, if it has not chosen before. What it has attached to then; `None` if it has ended.
    fn choose(&mut self, session: u64, export: usize, attach: impl FnOnce()) -> Option<usize> {
        let choice = self.0.get_mut(&session)?;
        Some(*choice.get_or_insert_with(|| {
            attach();
            export
        }))
    }

    /// It is gone: what it had attached to.
    fn end(&mut self, session: u64) -> Option<usize> {
        self.0.remove(&session).flatten()
    }
}

/// The file service of one or more exports.
#[derive(Debug)]
pub struct FileService {
    exports: Vec<Lent>,
    sessions: RwLock<Choices>,
}

impl FileService {
    /// A service of these exports, the first of which is that of clients that name none.
    pub fn new(exports: Vec<Lent>) -> FileService {
        FileService { exports, sessions: RwLock::default() }
    }

    /// The export of a session.
    fn export(&self, session: u64) -> Option<&Lent> {
        let at = self.sessions.read().get(session);
        at.and_then(|at| self.exports.get(at))
    }

    /// The export that the first request of a session asks for, or what else there is to say to it.
    fn choose(&self, peer: &Peer, request: &[u8]) -> Result<Result<&Lent, Errno>, String> {
        // What follows the version may differ in another one.
        if let Some(version) = attach_version(request)
            && version != VERSION
        {
            log::warn!("{peer}: it speaks version {version}, this is version {VERSION}");
            return Ok(Err(Errno::EPROTO));
        }
        let Request::Attach { client, export: name, .. } = decode(request)? else {
            return Ok(Err(Errno::EPROTO));
        };
        let found = self.exports.iter().position(|export| name.is_empty() || export.name == name);
        let Some(found) = found else {
            log::warn!("{peer}: {client:?} asks for the export {name:?}, which there is not");
            return Ok(Err(Errno::ENOENT));
        };
        // Of two requests at once the first one counts; the export itself refuses the other one. One that comes when the session has
        // ended leaves nothing behind.
        let at = self.sessions.write().choose(peer.id(), found, || {
            let export = &self.exports[found];
            export.dispatcher.session_began(peer.id(), export.regions(peer));
        });
        Ok(at.map(|at| &self.exports[at]).ok_or(Errno::EPROTO))
    }
}

impl Service for FileService {
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        log::debug!("session {}: {}", peer.id(), peer.description());
        self.sessions.write().begin(peer.id());
        Ok(())
    }

    fn call(&self, peer: &Peer, request: &[u8], reply: &mut rdmabox::Reply<'_>) -> Result<(), String> {
        let export = match self.export(peer.id()) {
            Some(export) => Ok(export),
            None => self.choose(peer, request)?,
        };
        match export {
            Ok(export) => answer(&export.dispatcher, peer.id(), request, reply)?,
            Err(errno) => encode(&Reply::Error(errno), reply),
        }
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        let chosen = self.sessions.write().end(peer.id());
        if let Some(at) = chosen {
            self.exports[at].dispatcher.session_ended(peer.id());
        }
        log::debug!("session {}: gone", peer.id());
    }
}

fn decode(request: &[u8]) -> Result<Request<'_>, String> {
    decode_request(request).map_err(|e| format!("malformed request: {e}"))
}

/// Answers one message of a session, now or later. An error ends the session.
fn answer(
    dispatcher: &Dispatcher,
    session: u64,
    request: &[u8],
    reply: &mut rdmabox::Reply<'_>,
) -> Result<(), String> {
    match dispatcher.handle(session, decode(request)?) {
        Outcome::Now(answer) => encode(&answer, reply),
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
        let mut choices = Choices::default();
        let mut attached = Vec::new();
        assert_eq!(choices.choose(1, 0, || attached.push(1)), None, "it has not begun");
        choices.begin(1);
        choices.begin(2);
        assert_eq!(choices.get(1), None);
        assert_eq!(choices.choose(1, 1, || attached.push(1)), Some(1));
        assert_eq!(choices.choose(1, 0, || attached.push(1)), Some(1), "the first one counts");
        assert_eq!((choices.get(1), choices.get(2)), (Some(1), None));
        assert_eq!((choices.end(1), choices.end(2), choices.end(1)), (Some(1), None, None));
        assert_eq!(choices.choose(1, 0, || attached.push(1)), None, "it has ended");
        assert_eq!(attached, [1]);
        assert!(choices.0.is_empty());
    }
}
