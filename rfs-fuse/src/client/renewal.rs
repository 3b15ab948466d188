//! Beginning anew at a server that knows nothing of this mount any more, but has its files: it has given the mount up because nothing was
//! heard of it for longer than its lease.
//!
//! What others did meanwhile nobody has told. So all that was kept is forgotten; files that are open here are opened there again, if they are
//! still there; and locks are lost, as others may have had them since: whoever had one gets EIO from then on for what he had open,
//! since he would take what he reads for guarded. What was asked for before and waits meanwhile fails with the same, through whatever open
//! file: processes have locks, too, and nobody knows which of them it was guarded by.
//!
//! Threading: runs on the thread that makes sessions, before anybody else uses the new one. All others may be waiting for that with locks of
//! an inode in hand: what is taken here are only those that are held for moments. Meanwhile a second thread acknowledges what is
//! recalled: other mounts may be opening the same files again, and two would wait for each other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rdmabox::{Cancel, RequestError};
use rfs_proto::{Attached, Opened, Recall, Recalls, Reply, Request, decode_reply, encode_request};

use super::{
    Remote,
    connect::call_on,
    error::ClientError,
    inode::{Inode, InodeTable},
    keeping::Keeping,
    layout::{LayoutCache, validate},
    orphans::ANNOUNCEMENT,
    returning::Renew,
    sharing::Sharing,
};

/// What is renewed.
pub(super) struct Renewal {
    pub(super) inodes: Arc<InodeTable>,
    pub(super) keeping: Arc<Keeping>,
    /// The session's number at the server.
    pub(super) session: Arc<AtomicU64>,
}

impl Renew for Renewal {
    fn renew(&self, remote: &dyn Remote, attached: &Attached, era: u32) -> Result<(), RequestError> {
        self.inodes.recalls().end();
        self.keeping.begin_anew(&self.inodes);
        self.session.store(attached.session, Ordering::Release);
        let cancel = Cancel::new();
        thread::scope(|scope| {
            let acknowledge = || self.acknowledge_all(remote, era, &cancel);
            if let Err(e) = thread::Builder::new().name("renewal".into()).spawn_scoped(scope, acknowledge) {
                log::warn!("nothing is acknowledged for now: {e}");
            }
            let renewed = self.open_all_again(remote, attached, era);
            cancel.cancel();
            renewed
        })
    }

    fn restarted(&self) {
        self.inodes.recalls().end();
    }
}

impl Renewal {
    fn open_all_again(&self, remote: &dyn Remote, attached: &Attached, era: u32) -> Result<(), RequestError> {
        let (mut files, mut gone, mut locks) = (0, 0, 0);
        self.inodes.locks_get_lost();
        call_announcement(remote)?;
        for ino in self.inodes.numbers() {
            let Some(inode) = self.inodes.get(ino) else { continue };
            locks += inode.sever_locks(era);
            match open_again(remote, &inode, self.inodes.sharing(), (attached.arena.len, era)) {
                Ok(true) => files += 1,
                Ok(false) => {}
                Err(ClientError::Request(e @ (RequestError::Disconnected | RequestError::Timeout(_)))) => {
                    return Err(e);
                }
                Err(e) => {
                    log::warn!("inode {ino} was open, and is not any more: {e}");
                    inode.set_gone();
                    gone += 1;
                }
            }
        }
        log::warn!(
            "the server knew nothing of this mount any more: {files} files are open again, {gone} are gone, locks of \
             {locks} open files are lost"
        );
        Ok(())
    }

    /// Acknowledges what is recalled: nothing is kept yet but layouts of files that are open again, which nobody uses. What comes when this
    /// has ended is asked for again by who keeps.
    fn acknowledge_all(&self, remote: &dyn Remote, era: u32, cancel: &Cancel) {
        let (mut out, mut back, mut done) = (Vec::new(), Vec::new(), 0);
        loop {
            encode_request(&Request::Recalls { done }, &mut out);
            if remote.call_waiting(remote.era(), &out, &mut back, cancel).is_err() {
                return;
            }
            let Ok(Reply::Recalls(Recalls { number, recalls })) = decode_reply(&back) else { return };
            self.inodes.recalls().begin();
            for recall in recalls {
                match recall {
                    Recall::Layout { ino, generation } => {
                        if let Some(inode) = self.inodes.get_or_void(ino) {
                            inode.layout_recalled(era, generation);
                        }
                    }
                    Recall::Unlinked { ino } => self.inodes.unlinked(ino),
                    _ => {}
                }
            }
            done = number;
        }
    }
}

/// Says that unlinked inodes are forgotten again, before anything is told by the new session.
fn call_announcement(remote: &dyn Remote) -> Result<(), RequestError> {
    match call_on(remote, &ANNOUNCEMENT) {
        Err(ClientError::Request(e)) => Err(e),
        Err(e) => {
            log::warn!("the server keeps no unlinked inodes for this mount: {e}");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Opens an inode at the server that is open here. False if it is not.
fn open_again(
    remote: &dyn Remote,
    inode: &Inode,
    sharing: &Sharing,
    (arena, era): (u64, u32),
) -> Result<bool, ClientError> {
    let at_server = *inode.at_server.lock();
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
        let mut at_server = inode.at_server.lock();
        let closed = at_server.opens == 0;
        at_server.opens = u32::from(!closed);
        closed
    };
    if closed {
        call_on(remote, &Request::Close { ino: inode.ino })?;
        return Ok(false);
    }
    inode.set_slot(attr.slot);
    if at_server.to_write {
        // Others may have had it open before, and open it again later.
        inode.shared.begin(sharing);
    }
    // If it was recalled already it is fetched again by who needs it.
    inode.layout.write().renew(LayoutCache::of(&layout, era));
    inode.size.lock().distrust();
    Ok(true)
}
