//! Reclaims the client's state at a server that dropped this mount but still has its memory.
//!
//! The server drops a mount that it has not heard of for one lease. Changes by other clients
//! since then went unheard, so the client forgets its caches. It reopens its open files that
//! still exist. Locks are lost, because another client may have held them in between. Every file
//! handle that held a lock returns EIO from now on, as does every request issued before the loss
//! through any handle. Processes own locks, too, so such a lock may have guarded it.
//!
//! # Concurrency
//! Runs on the reconnect thread before other threads use the new session. Those may block on it
//! with locks of an inode, so this module takes only locks that are held briefly. A second thread
//! acknowledges recalls meanwhile, because other mounts may reclaim the same files.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rdmabox::{Cancel, RequestError};
use rfs_proto::{Attached, Opened, Recall, Recalls, Reply, Request, decode_reply, encode_request};

use crate::{
    cache::page_hold::Sharing,
    error::ClientError,
    inode::{
        Inode,
        layout::{LayoutCache, validate},
        table::orphans::ANNOUNCEMENT,
    },
    remote::kept_state::Counter,
    remote::{CallOptions, Remote, ReplyWait, address::Epoch, messages::call_on},
    requests::cache_rules::CacheRules,
    session::reconnect::reconnect_thread::Reclaimer,
};

/// The client's state to reclaim.
pub(crate) struct StateReclaimer {
    pub(crate) caching: Arc<CacheRules>,
    /// Number of the session at the server.
    pub(crate) session: Arc<AtomicU64>,
}

impl Reclaimer for StateReclaimer {
    fn reclaim(&self, remote: &dyn Remote, attached: &Attached, epoch: Epoch) -> Result<(), RequestError> {
        self.caching.inodes.recalls().end();
        self.caching.void_all();
        self.session.store(attached.session, Ordering::Release);
        let cancel = Cancel::new();
        thread::scope(|scope| {
            let acknowledge = || self.acknowledge_all(remote, epoch, &cancel);
            if let Err(e) = thread::Builder::new().name("reclaim".into()).spawn_scoped(scope, acknowledge) {
                log::warn!("cannot start a thread that acknowledges recalls: {e}");
            }
            let reclaimed = self.reopen_all(remote, attached, epoch);
            cancel.cancel();
            reclaimed
        })
    }

    fn server_restarted(&self) {
        self.caching.inodes.recalls().end();
    }
}

impl StateReclaimer {
    fn reopen_all(&self, remote: &dyn Remote, attached: &Attached, epoch: Epoch) -> Result<(), RequestError> {
        let (mut files, mut gone, mut locks) = (0, 0, 0);
        self.caching.inodes.note_lost_locks();
        announce_forgets(remote)?;
        for ino in self.caching.inodes.numbers() {
            let Some(inode) = self.caching.inodes.get(ino) else { continue };
            locks += inode.lose_locks(epoch);
            match reopen(remote, &inode, self.caching.inodes.sharing(), (attached.arena.len, epoch)) {
                Ok(true) => files += 1,
                Ok(false) => {}
                Err(ClientError::Request(e @ (RequestError::Disconnected | RequestError::Timeout(_)))) => {
                    return Err(e);
                }
                Err(e) => {
                    log::warn!("cannot reopen inode {ino}: {e}");
                    inode.set_gone();
                    gone += 1;
                }
            }
        }
        log::warn!(
            "the server had dropped this mount: {files} files reopened, {gone} files gone, locks of {locks} open \
             files lost"
        );
        Ok(())
    }

    /// Acknowledges recalls during the reclaim. The client holds only layouts of reopened files,
    /// which no operation uses yet. Cache holders ask again for all that is recalled after this
    /// ends.
    fn acknowledge_all(&self, remote: &dyn Remote, epoch: Epoch, cancel: &Cancel) {
        let (mut out, mut back, mut done) = (Vec::new(), Vec::new(), 0);
        let options = CallOptions { wait: ReplyWait::Cancellable(cancel), ..CallOptions::default() };
        loop {
            encode_request(&Request::Recalls { done }, &mut out);
            if remote.call(&out, &mut back, options).is_err() {
                return;
            }
            let Ok(Reply::Recalls(Recalls { number, recalls })) = decode_reply(&back) else { return };
            self.caching.inodes.recalls().begin();
            for recall in recalls {
                match recall {
                    Recall::Layout { ino, generation } => {
                        if let Some(inode) = self.caching.inodes.get_or_void(ino) {
                            inode.layout_recalled(epoch, generation);
                        }
                    }
                    Recall::Unlinked { ino } => self.caching.inodes.unlinked(ino),
                    _ => {}
                }
            }
            done = number;
        }
    }
}

/// Tells the server, before other requests of the new session, that this client forgets unlinked
/// inodes.
fn announce_forgets(remote: &dyn Remote) -> Result<(), RequestError> {
    match call_on(remote, &ANNOUNCEMENT) {
        Err(ClientError::Request(e)) => Err(e),
        Err(e) => {
            log::warn!("the server will not keep unlinked inodes for this mount: {e}");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Reopens an inode at the server. Returns false if it is not open here.
fn reopen(
    remote: &dyn Remote,
    inode: &Inode,
    sharing: &Sharing,
    (arena, epoch): (u64, Epoch),
) -> Result<bool, ClientError> {
    let at_server = inode.file.read().at_server;
    if at_server.opens == 0 {
        return Ok(false);
    }
    let Reply::Opened(Opened { attr, layout }) =
        call_on(remote, &Request::Open { ino: inode.ino, write: at_server.to_write })?
    else {
        return Err(ClientError::Protocol("a reply of the wrong kind"));
    };
    validate(&layout, arena).map_err(ClientError::Protocol)?;
    let closed = {
        let at_server = &mut inode.file.write().at_server;
        let closed = at_server.opens == 0;
        inode.note(Counter::AtServer, i64::from(!closed) - i64::from(at_server.opens));
        at_server.opens = u32::from(!closed);
        closed
    };
    if closed {
        call_on(remote, &Request::Close { ino: inode.ino })?;
        return Ok(false);
    }
    inode.set_slot(attr.slot);
    if at_server.to_write {
        // Other mounts may have had the file open already, and may still have it open.
        inode.shared.begin(sharing);
    }
    // If the layout has been recalled meanwhile, the next operation fetches it.
    inode.file.write().reopened(LayoutCache::of(&layout, epoch));
    Ok(true)
}
