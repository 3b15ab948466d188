//! Making the next session: the thread that does it, and what it needs for that.

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

use super::{
    Link, Phase, Returning, Started,
    places::{Places, Regions},
};
use crate::client::Remote;

/// How often it is looked whether an idle session is still there.
const TICK: Duration = Duration::from_secs(1);
/// Pauses between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// So long the server is waited for that is told that the mount does not come back.
const GOOD_BYE: Duration = Duration::from_secs(1);

/// Why there is no next session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) enum Answer {
    /// There may be one later.
    Later(String),
    /// There will be none.
    Never(String),
}

/// How sessions are made.
pub(in crate::client) trait Again: Send + Sync {
    /// Makes one, and attaches it as the mount that comes back. It takes a bounded time.
    fn again(&self) -> Result<(Arc<dyn Remote>, Attached), Answer>;
}

/// Who is told that a new era begins.
pub(in crate::client) trait Renew: Send + Sync {
    /// Renews what the client has, over a new session that nobody else uses yet. An error: the session is lost.
    fn renew(&self, remote: &dyn Remote, attached: &Attached, era: u32) -> Result<(), RequestError>;

    /// The new session, which no other thread uses yet, is with another server than the one before. That server
    /// knows the mount, but recalls layouts only once the mount has asked for recalls.
    fn restarted(&self) {}
}

impl Returning {
    /// Makes sessions until the end.
    pub(super) fn run(self: Arc<Self>) {
        while self.sleep() {
            // What is left of the session before fails at once, and the server hears of its end.
            let before = Arc::clone(&self.link.read());
            if thread::Builder::new().name("closing".into()).spawn(move || before.remote.close()).is_err() {
                log::warn!("no thread to close the session that was lost");
            }
            if !self.come_back() {
                return;
            }
        }
    }

    /// Sleeps until the session is lost. False at the end.
    fn sleep(&self) -> bool {
        loop {
            {
                let mut state = self.state.lock();
                match *state {
                    Phase::Down(_) => return true,
                    Phase::Over => return false,
                    Phase::Up => self.changed.wait_for(&mut state, TICK),
                };
            }
            let link = Arc::clone(&self.link.read());
            if !link.remote.is_connected() {
                self.lost(&link);
            }
        }
    }

    /// Tries until there is a session. False if there will be none.
    fn come_back(&self) -> bool {
        let (began, mut pause, mut known) = (Instant::now(), FIRST_PAUSE, String::new());
        log::warn!("the session with the server is lost: coming back");
        loop {
            match self.attempt() {
                Ok(link) => return self.publish(link, began),
                Err(Answer::Never(why)) => {
                    log::error!("everything fails from now on, unmount and mount again: {why}");
                    self.end();
                    return false;
                }
                Err(Answer::Later(why)) if why != known => {
                    log::warn!("not yet back: {why}");
                    known = why;
                }
                Err(Answer::Later(_)) => {}
            }
            let mut state = self.state.lock();
            if *state != Phase::Over {
                self.changed.wait_for(&mut state, pause);
            }
            if *state == Phase::Over {
                return false;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn attempt(&self) -> Result<Link, Answer> {
        let (remote, attached) = self.again.again()?;
        let outcome = self.check(&attached).and_then(|()| match attached.resumed {
            true => self.go_on(&remote, &attached),
            false => self.begin_anew(&*remote, &attached),
        });
        if let Err(why) = outcome {
            remote.close();
            return Err(why);
        }
        let era = self.era.load(Ordering::Acquire);
        let places = Places::new(self.regions, era, Regions::of(&attached));
        Ok(Link { remote, places, era, lost: AtomicBool::new(false) })
    }

    /// Whether this is where the mount was.
    fn check(&self, attached: &Attached) -> Result<(), Answer> {
        let never = |why: &str| Err(Answer::Never(why.into()));
        if attached.memory != self.memory {
            return never("the server was started anew, and has lost its memory");
        }
        if !Regions::of(attached).are_as_long_as(&self.regions) {
            return never("the server's memory has another size");
        }
        Ok(())
    }

    /// The server has all that the mount had.
    fn go_on(&self, remote: &Arc<dyn Remote>, attached: &Attached) -> Result<(), Answer> {
        if self.renewing.load(Ordering::Acquire) || attached.session != self.session.load(Ordering::Acquire) {
            // It was lost while files were opened again. Nobody knows which of them are.
            say_good_bye(remote);
            return Err(Answer::Later("lost on the way".into()));
        }
        if self.starts.swap(attached.starts, Ordering::AcqRel) != attached.starts
            && let Some(renew) = self.renew.get()
        {
            renew.restarted();
        }
        self.start_again(&**remote)
    }

    /// The server knows nothing of the mount.
    fn begin_anew(&self, remote: &dyn Remote, attached: &Attached) -> Result<(), Answer> {
        let given_up = || Answer::Never("the server has not heard of this mount for too long".into());
        let renew = self.renew.get().ok_or_else(given_up)?;
        self.renewing.store(true, Ordering::Release);
        // What nobody waits for was about open files of before.
        let void = std::mem::take(&mut *self.started.lock());
        void.into_iter().for_each(|started| self.give_back(started.number));
        let era = self.era.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        renew.renew(remote, attached, era).map_err(|e| Answer::Later(e.to_string()))?;
        self.starts.store(attached.starts, Ordering::Release);
        self.session.store(attached.session, Ordering::Release);
        self.renewing.store(false, Ordering::Release);
        Ok(())
    }

    /// Repeats what nobody waits for.
    fn start_again(&self, remote: &dyn Remote) -> Result<(), Answer> {
        let envelopes = |started: &Started| started.envelope.clone();
        let all: Vec<Vec<u8>> = self.started.lock().iter().map(envelopes).collect();
        let lost = |e: RequestError| Answer::Later(e.to_string());
        all.iter().try_for_each(|envelope| remote.start_call(envelope)).map_err(lost)?;
        remote.finish_calls().map_err(lost)
    }

    fn publish(&self, link: Link, began: Instant) -> bool {
        let mut state = self.state.lock();
        if *state == Phase::Over {
            drop(state);
            say_good_bye(&link.remote);
            link.remote.close();
            return false;
        }
        self.era_in_use.store(link.era, Ordering::Release);
        *self.link.write() = Arc::new(link);
        *state = Phase::Up;
        drop(state);
        self.changed.notify_all();
        self.returns.fetch_add(1, Ordering::Relaxed);
        log::warn!("back at the server after {:.1?}", began.elapsed());
        true
    }

    /// Nothing comes any more.
    pub(super) fn end(&self) -> Phase {
        let before = std::mem::replace(&mut *self.state.lock(), Phase::Over);
        self.link.read().lost.store(true, Ordering::Release);
        self.changed.notify_all();
        before
    }
}

/// Tells the server that the mount does not come back. Waits no longer than a moment for it.
pub(super) fn say_good_bye(remote: &Arc<dyn Remote>) {
    let (said, heard) = mpsc::channel();
    let remote = Arc::clone(remote);
    let say = move || {
        let mut bytes = Vec::new();
        encode_request(&Request::Detach, &mut bytes);
        // Who does not hear it waits for the lease.
        let _ = remote.call(&bytes, &mut Vec::new());
        let _ = said.send(());
    };
    if thread::Builder::new().name("detaching".into()).spawn(say).is_ok() {
        let _ = heard.recv_timeout(GOOD_BYE);
    }
}
