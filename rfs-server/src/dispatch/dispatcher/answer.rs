//! Carries out one request of an attached session: room, transaction, recalls.
//!
//! # Concurrency
//! Any number of threads at once. See [`Dispatcher`].

use std::{sync::Arc, thread};

use rfs_proto::{Errno, Reply, Request, SetAttr};
use seeded_faults::seeded;

use super::Dispatcher;
use crate::{
    dispatch::{
        placement::eviction::Need,
        request_table::is_answered_at_once,
        state::{
            journal::Number,
            outcome::{DeferredReply, HeldReply, Outcome},
        },
        transaction::{call::Call, permission},
    },
    session::{
        access_mode::{AccessMode, changes},
        registry::NO_SESSION,
    },
};

/// Returns the file that a request may have truncated.
fn shortened(request: &Request<'_>) -> Option<u64> {
    match *request {
        Request::SetAttr { ino, changes: SetAttr { size: Some(_), .. } } => Some(ino),
        _ => None,
    }
}

impl Dispatcher {
    /// Answers a request of an attached session. Journal, eviction and recalls apply to it.
    #[inline]
    pub(super) fn answer(
        &self,
        session: u64,
        request: Request<'_>,
        number: Option<Number>,
    ) -> Result<Outcome, Errno> {
        let asker =
            self.sessions.get(session).filter(|session| session.is_attached()).ok_or(Errno::EPROTO)?;
        asker.count_request();
        if request.since() > asker.version() {
            return Err(Errno::EPROTO);
        }
        let journal = self.store.journal.as_ref();
        if journal.is_some_and(|journal| journal.refuses(&request)) {
            return Err(Errno::ENOSPC);
        }
        if journal.is_some_and(|journal| journal.is_behind()) && changes(&request) {
            return Err(Errno::EIO);
        }
        permission::may_ask(asker.squash(), &request)?;
        // A session of the previous server sends Recalls by itself.
        if matches!(request, Request::Forget { .. }) && !asker.is_restored() {
            self.recalls().start(session);
        }
        let call = Call::new(&self.store, &*self.clock, &asker, number);
        let mut reply = self.reply(&call, session, request);
        if reply == Err(Errno::ENOSPC) && self.free_idle() {
            reply = self.reply(&call, session, request);
        }
        if self.store.eviction.is_some() {
            reply = self.with_room(&call, session, request, reply);
        }
        let logged = number.is_some() || changes(&request);
        if journal.is_some_and(|journal| journal.is_behind()) && logged {
            // The change of this request may be the one that is not logged.
            reply = Err(Errno::EIO);
        }
        self.grants().send();
        self.store.space.tidy();
        let (reply, needs) = (reply?, call.into_needs());
        let waits = !needs.is_empty() && !seeded!(RecallNotAwaited);
        match !waits || is_answered_at_once(&request) {
            true => Ok(Outcome::Now(reply)),
            false => {
                Ok(Outcome::Deferred(HeldReply(DeferredReply::Change(reply, needs, shortened(&request)))))
            }
        }
    }

    /// Evicts files if a request has found no space, and tries it again. Wakes the evictor if the
    /// request has filled the export. Returns the last outcome.
    fn with_room(
        &self,
        call: &Call<'_>,
        session: u64,
        request: Request<'_>,
        reply: Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        let Some(need) = Need::of(&request) else { return reply };
        let retry = || {
            self.free_idle();
            self.reply(call, session, request)
        };
        let reply = match reply {
            Err(Errno::ENOSPC) => self.evictions().make_room(need, retry),
            reply => reply,
        };
        self.evictions().check_marks();
        reply
    }

    /// Frees the unlinked inodes that no session has open, when space or inodes have run out.
    /// Returns true if there were any. A session that was about to open such an inode gets ESTALE.
    fn free_idle(&self) -> bool {
        if self.store.idle.inodes() == 0 {
            return false;
        }
        let mut freed = 0;
        self.store.each_shard(|meta| {
            for ino in meta.namespace.inodes_mut().only().orphans.idle() {
                meta.orphan_released(NO_SESSION, ino);
                freed += 1;
            }
        });
        self.store.space.tidy();
        log::debug!("out of space: freed {freed} unlinked inodes that no session had open");
        freed > 0
    }

    fn reply(&self, call: &Call<'_>, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            // The service makes sure that the mount does not reconnect.
            Request::Detach => Ok(Reply::Done),
            Request::StatFs => Ok(Reply::StatFs(self.statfs())),
            Request::Stats => Ok(Reply::Stats(self.stats())),
            Request::ReachStore { store } => self.reach_store(session, store),
            Request::FenceStore { store } => {
                self.fence_store(session, store);
                Ok(Reply::Done)
            }
            Request::GetXattr { .. }
            | Request::SetXattr { .. }
            | Request::XattrPart { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. } => call.answer_xattr(session, request),
            Request::Lock { .. }
            | Request::StopWaiting { .. }
            | Request::Insist { .. }
            | Request::ConfirmLocks { .. }
            | Request::TestLock { .. } => call.answer_locks(session, request),
            Request::Fallocate { .. } | Request::Copy { .. } => call.answer_extents(session, request),
            Request::ReturnNames { ino } => {
                call.locked(&[ino], |meta| meta.names_returned(session, ino));
                Ok(Reply::Done)
            }
            Request::HoldPages { ino } => {
                call.locked(&[ino], |meta| meta.hold_pages(session, ino));
                Ok(Reply::Done)
            }
            Request::DropPages { ino } => {
                call.locked(&[ino], |meta| meta.drop_pages(session, ino)).map(Reply::Attr)
            }
            Request::Write { .. } | Request::Verify { .. } => call.answer_sums(session, request),
            Request::Open { .. }
            | Request::Close { .. }
            | Request::Layout { .. }
            | Request::Allocate { .. }
            | Request::SetAttr { .. }
            | Request::Accessed { .. } => call.answer_data(session, request),
            _ => call.answer_names(session, request),
        }
    }

    /// Admits a session to a store.
    fn reach_store(&self, session: u64, store: u16) -> Result<Reply, Errno> {
        let asker = self.sessions.get(session).ok_or(Errno::EPROTO)?;
        let may_write = asker.credentials().rights == AccessMode::Write && asker.squash().is_none();
        let lent = self.store.space.lent().ok_or(Errno::ENXIO)?;
        lent.admit(store, session, may_write).map(Reply::Store).ok_or(Errno::ENXIO)
    }

    /// Has stores end the access of a session, without waiting for them. The thread `rfs-fencer`
    /// tries again.
    fn fence_store(&self, session: u64, store: u16) {
        if !self.store.space.doubt(store, session) {
            return;
        }
        let place = if store == 0 { "all stores".into() } else { format!("store {store}") };
        log::info!("session {session}: ending its access to {place}, where its writes may arrive late");
        let space = Arc::clone(&self.store.space);
        if let Err(e) = thread::Builder::new().name("rfs-fence".into()).spawn(move || space.end_doubts()) {
            log::warn!("session {session}: its access to {place} ends later: no thread: {e}");
        }
    }
}
