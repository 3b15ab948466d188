//! The dispatcher behind rdmabox: decodes, hands on, encodes.
//!
//! Threading: rdmabox calls from several threads at once. Decoding and encoding hold no lock. A request that is no
//! message ends its session, and nothing else.

use std::sync::Arc;

use rdmabox::{Export, Peer, RemoteAddr, Service};
use rfs_proto::{Errno, MAX_MESSAGE, RegionRef, Reply, decode_request, encode_reply};

use crate::{
    dispatch::{Dispatcher, Outcome, Sender},
    sessions::Regions,
};

/// The file service of an export.
#[derive(Debug)]
pub struct FileService {
    dispatcher: Arc<Dispatcher>,
    arena: Export,
    table: Export,
}

impl FileService {
    /// A service whose sessions reach `arena` and `table`.
    pub fn new(dispatcher: Arc<Dispatcher>, arena: Export, table: Export) -> FileService {
        FileService { dispatcher, arena, table }
    }
}

impl Service for FileService {
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        let region = |export: &Export| {
            let RemoteAddr { addr, rkey } = peer.remote_addr(export);
            RegionRef { addr, len: export.memory().len() as u64, rkey }
        };
        let regions = Regions { arena: region(&self.arena), table: region(&self.table) };
        self.dispatcher.session_began(peer.id(), regions);
        log::debug!("session {}: {}", peer.id(), peer.description());
        Ok(())
    }

    fn call(&self, peer: &Peer, request: &[u8], reply: &mut rdmabox::Reply<'_>) -> Result<(), String> {
        answer(&self.dispatcher, peer.id(), request, reply)
    }

    fn disconnected(&self, peer: &Peer) {
        self.dispatcher.session_ended(peer.id());
        log::debug!("session {}: gone", peer.id());
    }
}

/// Answers one message of a session, now or later. An error ends the session.
fn answer(
    dispatcher: &Dispatcher,
    session: u64,
    request: &[u8],
    reply: &mut rdmabox::Reply<'_>,
) -> Result<(), String> {
    let request = decode_request(request).map_err(|e| format!("malformed request: {e}"))?;
    match dispatcher.handle(session, request) {
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
