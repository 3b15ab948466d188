//! The thread that makes the next session, and the traits that it needs.
//!
//! The thread checks an idle session, replaces a lost one, and repeats started calls. Before
//! other threads use a session of a new epoch, it has the client reclaim its state.
//!
//! # Concurrency
//! One thread runs this. It holds `state` briefly, and no lock while it connects or reclaims.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rdmabox::RequestError;
use rfs_proto::{Attached, Request, encode_request};

use crate::{
    remote::{
        CallOptions, Remote, ReplyWait,
        address::{Epoch, Regions},
    },
    session::reconnect::{Link, Phase, ReconnectingSession, StartedCall},
};

/// Interval at which the thread checks an idle session.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after the first failed attempt. It doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Limit of the wait for the reply to Detach.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why an attempt made no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// A later attempt may succeed.
    Retry(String),
    /// No attempt can succeed.
    Final(String),
}

/// Makes sessions.
pub(crate) trait SessionFactory: Send + Sync {
    /// Makes a session and attaches it as this mount. Returns within a bounded time.
    fn connect(&self) -> Result<(Arc<dyn Remote>, Attached), ConnectFailure>;
}

/// Receiver of new epochs.
pub(crate) trait Reclaimer: Send + Sync {
    /// Reclaims the client's state over a new session that no other thread uses yet.
    ///
    /// # Errors
    /// The session is lost.
    fn reclaim(&self, remote: &dyn Remote, attached: &Attached, epoch: Epoch) -> Result<(), RequestError>;

    /// Hears that the new session, which no other thread uses yet, is with another server process.
    /// That server knows the mount, but recalls layouts only once the mount has asked for recalls.
    fn server_restarted(&self) {}
}

impl ReconnectingSession {
    /// Replaces lost sessions until the remote ends.
    pub(super) fn run(self: Arc<Self>) {
        while self.sleep() {
            // Closing the previous session fails its remaining operations at once, and tells the
            // server of its end.
            let before = Arc::clone(&self.link.read());
            if thread::Builder::new().name("closing".into()).spawn(move || before.remote.close()).is_err() {
                log::warn!("cannot start a thread that closes the lost session");
            }
            if !self.reconnect() {
                return;
            }
        }
    }

    /// Blocks until the session is lost. Returns false when the remote has ended.
    fn sleep(&self) -> bool {
        loop {
            {
                let mut state = self.state.lock();
                match *state {
                    Phase::Down(_) => return true,
                    Phase::Over => return false,
                    Phase::Up => self.changed.wait_for(&mut state, IDLE_CHECK_INTERVAL),
                };
            }
            let link = Arc::clone(&self.link.read());
            // A single session does not wait here.
            if link.remote.ready().is_err() {
                self.mark_lost(&link);
            }
        }
    }

    /// Attempts to connect until there is a session. Returns false if no session can follow.
    fn reconnect(&self) -> bool {
        let (began, mut pause, mut known) = (Instant::now(), FIRST_PAUSE, String::new());
        log::warn!("lost the session with the server; reconnecting");
        loop {
            match self.attempt() {
                Ok(link) => return self.publish(link, began),
                Err(ConnectFailure::Final(why)) => {
                    log::error!("cannot reconnect, all operations fail until a new mount: {why}");
                    // First, so that no operation fails without a known reason.
                    self.final_loss.record(&why);
                    self.end();
                    return false;
                }
                Err(ConnectFailure::Retry(why)) if why != known => {
                    log::warn!("still reconnecting: {why}");
                    known = why;
                }
                Err(ConnectFailure::Retry(_)) => {}
            }
            let mut state = self.state.lock();
            if *state != Phase::Over {
                self.changed.wait_for(&mut state, pause);
            }
            if *state == Phase::Over {
                return false;
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn attempt(&self) -> Result<Link, ConnectFailure> {
        let (remote, attached) = self.factory.connect()?;
        let outcome = self.check(&attached).and_then(|()| match attached.resumed {
            true => self.resume(&remote, &attached),
            false => self.begin_epoch(&*remote, &attached),
        });
        if let Err(why) = outcome {
            remote.close();
            return Err(why);
        }
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        Ok(Link { remote, epoch, lost: AtomicBool::new(false) })
    }

    /// Checks that the session is with the same memory as before.
    fn check(&self, attached: &Attached) -> Result<(), ConnectFailure> {
        let never = |why: &str| Err(ConnectFailure::Final(why.into()));
        if attached.memory != self.memory {
            return never("the server was restarted and has lost its memory");
        }
        if !Regions::of(attached).has_lengths_of(&self.regions) {
            return never("the server's memory has another size");
        }
        Ok(())
    }

    /// Resumes a session whose state the server has kept.
    fn resume(&self, remote: &Arc<dyn Remote>, attached: &Attached) -> Result<(), ConnectFailure> {
        if self.is_reclaiming.load(Ordering::Acquire)
            || attached.session != self.session.load(Ordering::Acquire)
        {
            // The previous session was lost during a reclaim, so the server may have some of the
            // files open.
            detach(remote);
            return Err(ConnectFailure::Retry("the session was lost during the reclaim".into()));
        }
        if self.server_starts.swap(attached.starts, Ordering::AcqRel) != attached.starts
            && let Some(reclaimer) = self.reclaimer.get()
        {
            reclaimer.server_restarted();
        }
        self.resend_started_calls(&**remote)
    }

    /// Begins a new epoch: the server has dropped the state of this mount.
    fn begin_epoch(&self, remote: &dyn Remote, attached: &Attached) -> Result<(), ConnectFailure> {
        let given_up =
            || ConnectFailure::Final("the server dropped this mount, because its lease expired".into());
        let reclaimer = self.reclaimer.get().ok_or_else(given_up)?;
        self.is_reclaiming.store(true, Ordering::Release);
        // Started calls concern open files of the old epoch.
        let void = std::mem::take(&mut *self.started.lock());
        void.into_iter().for_each(|started| self.release_slot(started.number));
        let epoch = Epoch(self.epoch.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
        reclaimer.reclaim(remote, attached, epoch).map_err(|e| ConnectFailure::Retry(e.to_string()))?;
        self.server_starts.store(attached.starts, Ordering::Release);
        self.session.store(attached.session, Ordering::Release);
        if let Some(kept) = &self.kept {
            kept.set_session_number(attached.session);
        }
        self.is_reclaiming.store(false, Ordering::Release);
        Ok(())
    }

    /// Sends the started calls again.
    fn resend_started_calls(&self, remote: &dyn Remote) -> Result<(), ConnectFailure> {
        let envelopes = |started: &StartedCall| started.envelope.clone();
        let all: Vec<Vec<u8>> = self.started.lock().iter().map(envelopes).collect();
        let lost = |e: RequestError| ConnectFailure::Retry(e.to_string());
        let options = CallOptions { wait: ReplyWait::None, ..CallOptions::default() };
        let start = |envelope: &Vec<u8>| remote.call(envelope, &mut Vec::new(), options);
        all.iter().try_for_each(start).map_err(lost)?;
        remote.finish_calls().map_err(lost)
    }

    fn publish(&self, link: Link, began: Instant) -> bool {
        let mut state = self.state.lock();
        if *state == Phase::Over {
            drop(state);
            detach(&link.remote);
            link.remote.close();
            return false;
        }
        self.epoch_in_use.store(link.epoch.0, Ordering::Release);
        *self.link.write() = Arc::new(link);
        *state = Phase::Up;
        drop(state);
        self.changed.notify_all();
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        log::warn!("reconnected after {:.1?}", began.elapsed());
        true
    }

    /// Ends the remote: all operations fail from now on. Returns the phase before.
    pub(super) fn end(&self) -> Phase {
        let before = std::mem::replace(&mut *self.state.lock(), Phase::Over);
        self.link.read().lost.store(true, Ordering::Release);
        self.changed.notify_all();
        before
    }
}

/// Tells the server that the mount does not reconnect. Waits for the reply, but at most
/// [`DETACH_TIMEOUT`].
pub(super) fn detach(remote: &Arc<dyn Remote>) {
    let (sender, receiver) = mpsc::channel();
    let remote = Arc::clone(remote);
    let send = move || {
        let mut bytes = Vec::new();
        encode_request(&Request::Detach, &mut bytes);
        // A server that does not hear of the end keeps the state for the lease.
        let _ = remote.call(&bytes, &mut Vec::new(), CallOptions::default());
        let _ = sender.send(());
    };
    if thread::Builder::new().name("detaching".into()).spawn(send).is_ok() {
        let _ = receiver.recv_timeout(DETACH_TIMEOUT);
    }
}
