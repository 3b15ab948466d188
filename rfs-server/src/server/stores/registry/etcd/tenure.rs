//! The tenure of a server: it has the pool, and is the only one that changes the view.
//!
//! The record of the server has a lease. While it is there, no other server takes the pool. A
//! server that lost its lease gets it again, unless another server has written the view meanwhile.
//! This process has the truth: a view that was written without an answer is written again.
//!
//! # Concurrency
//! The thread that renews the lease, and threads that change the pool. `state` is held during
//! requests to etcd, so a change waits for a renewal. Nothing else takes it.

use std::{
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    LEASE, PoolKeys, RETRY, START_LIMIT,
    key_store::{Entry, Guard, KeyStore, Lease, Put},
    registry_error,
};
use crate::server::stores::registry::{Health, PoolView, RegistryError, ServerRecord};

/// The record of the view.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ViewRecord {
    server: ServerRecord,
    #[serde(flatten)]
    view: PoolView,
}

/// The server's hold on its pool.
#[derive(Debug)]
pub(super) struct Tenure {
    keys: Arc<dyn KeyStore>,
    names: PoolKeys,
    server: ServerRecord,
    /// Interval at which the lease of another server is looked at.
    pause: Duration,
    state: Mutex<State>,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct State {
    held: Option<Held>,
    /// The view of this server.
    view: PoolView,
    /// False after a request whose effect is not known.
    is_settled: bool,
}

/// Revisions of the records as this server wrote them.
#[derive(Clone, Copy, Debug)]
struct Held {
    lease: Lease,
    view: i64,
    server: i64,
}

/// The records of a pool.
struct Found {
    view: Option<ViewRecord>,
    view_revision: i64,
    server: Option<(ServerRecord, Lease)>,
    server_revision: i64,
}

impl Tenure {
    pub(super) fn new(
        keys: Arc<dyn KeyStore>,
        names: PoolKeys,
        server: ServerRecord,
        pause: Duration,
    ) -> Tenure {
        let (state, health) = (Mutex::default(), Mutex::new(Health::Up));
        Tenure { keys, names, server, pause, state, health }
    }

    pub(super) fn place(&self) -> String {
        self.keys.place()
    }

    /// Takes the pool, as `Registry::take` says. Waits for an etcd that does not answer, and for
    /// the end of a server that shows no sign of life.
    pub(super) fn take(&self, now: u64) -> Result<PoolView, RegistryError> {
        let give_up = Instant::now() + START_LIMIT;
        let mut is_new = true;
        loop {
            match self.try_take(now) {
                Ok(Some(view)) => return Ok(view),
                // Another server was faster: look again.
                Ok(None) => sleep(self.pause),
                Err(RegistryError::Away { place, reason }) if Instant::now() >= give_up => {
                    return Err(RegistryError::NoStart { place, reason });
                }
                Err(RegistryError::Away { place, reason }) => {
                    if std::mem::take(&mut is_new) {
                        let seconds = START_LIMIT.as_secs();
                        log::warn!("{place} does not answer: {reason}: the server tries for {seconds} s");
                    }
                    sleep(RETRY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn try_take(&self, now: u64) -> Result<Option<PoolView>, RegistryError> {
        let mut found = self.look()?;
        if let Some((other, lease)) = found.server.take() {
            self.wait_for_end(&other, lease)?;
            found = self.look()?;
            // A record that outlives its lease was not written by a server.
            if found.server.as_ref().is_some_and(|(_, present)| *present != lease) {
                return Ok(None);
            }
        }
        let mut view = found.view.take().unwrap_or_default().view;
        // Tickets of previous servers are void, also if this machine's clock is behind.
        view.epoch = now.max(view.epoch + 1);
        let mut state = self.state.lock();
        state.view = view.clone();
        Ok(self.claim(&mut state, &found)?.then_some(view))
    }

    /// Waits until the lease of another server ends.
    ///
    /// # Errors
    /// The other server keeps it alive.
    fn wait_for_end(&self, other: &ServerRecord, lease: Lease) -> Result<(), RegistryError> {
        let (place, seconds) = (self.place(), LEASE.as_secs());
        let taken = || RegistryError::Taken { place: self.place(), by: other.to_string(), seconds };
        log::info!("{place}: the pool has a server, {other}: waiting to see whether it still runs");
        let (mut least, give_up) = (Duration::MAX, Instant::now() + 3 * LEASE);
        loop {
            let rest = self.keys.rest_of(lease).map_err(|error| registry_error(&place, error))?;
            match rest {
                None => return Ok(()),
                Some(rest) if rest > least || Instant::now() > give_up => return Err(taken()),
                Some(rest) => least = rest,
            }
            sleep(self.pause);
        }
    }

    /// Replaces the view, as `Registry::write` says.
    pub(super) fn write(&self, view: &PoolView) -> Result<(), RegistryError> {
        let mut state = self.state.lock();
        let outcome = self.try_write(&mut state, view);
        drop(state);
        self.note(&outcome);
        outcome
    }

    fn try_write(&self, state: &mut State, view: &PoolView) -> Result<(), RegistryError> {
        self.refuse_if_taken()?;
        // The second attempt is for a lease or a view that was lost without notice.
        for _ in 0..2 {
            if !state.is_settled {
                self.reclaim(state)?;
            }
            let held = state.held.ok_or_else(|| self.contended())?;
            state.is_settled = false;
            if let Some(revision) = self.put_view(held, view)? {
                state.held = Some(Held { view: revision, ..held });
                state.view = view.clone();
                state.is_settled = true;
                return Ok(());
            }
        }
        Err(self.contended())
    }

    /// Keeps the lease alive, and writes the records that were not settled. Returns the health
    /// then.
    pub(super) fn renew(&self) -> Health {
        let mut state = self.state.lock();
        let outcome = self.refuse_if_taken().and_then(|()| match state.held.filter(|_| state.is_settled) {
            Some(held) => match self.keys.keep_alive(held.lease) {
                Ok(true) => Ok(()),
                Ok(false) => self.reclaim(&mut state),
                Err(error) => Err(registry_error(&self.place(), error)),
            },
            None => self.reclaim(&mut state),
        });
        drop(state);
        self.note(&outcome);
        self.health()
    }

    pub(super) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Gives the pool up, so that the next server need not wait.
    pub(super) fn release(&self) {
        let held = self.state.lock().held.take();
        if let Some(held) = held
            && let Err(error) = self.keys.revoke(held.lease)
        {
            let seconds = LEASE.as_secs();
            log::warn!("{}: {error}: another server can start {seconds} s from now", self.place());
        }
    }

    /// Gets a lease again, and writes the view of this server, unless another server has the pool.
    fn reclaim(&self, state: &mut State) -> Result<(), RegistryError> {
        let found = self.look()?;
        let writer = found.view.as_ref().map(|record| &record.server);
        let others = [writer, found.server.as_ref().map(|(server, _)| server)];
        if let Some(other) = others.into_iter().flatten().find(|server| server.run != self.server.run) {
            *self.health.lock() = Health::Taken { by: other.to_string() };
            return self.refuse_if_taken();
        }
        match self.claim(state, &found)? {
            true => Ok(()),
            false => Err(self.contended()),
        }
    }

    /// Writes the server and its view with a new lease, if the records are as found. Returns false
    /// if they are not.
    fn claim(&self, state: &mut State, found: &Found) -> Result<bool, RegistryError> {
        let place = self.place();
        let failed = |error| registry_error(&place, error);
        state.is_settled = false;
        let lease = self.keys.grant(LEASE).map_err(failed)?;
        let (view, server) = (self.names.view(), self.names.server());
        let guards = [
            Guard { key: &view, revision: found.view_revision },
            Guard { key: &server, revision: found.server_revision },
        ];
        let (record, own) = (self.view_bytes(&state.view)?, bytes_of(&self.server)?);
        let puts = [
            Put { key: &view, value: &record, lease: None },
            Put { key: &server, value: &own, lease: Some(lease) },
        ];
        let Some(revision) = self.keys.put_if(&guards, &puts).map_err(failed)? else {
            // A lease that stays ends by itself.
            let _ = self.keys.revoke(lease);
            return Ok(false);
        };
        let earlier = state.held.replace(Held { lease, view: revision, server: revision });
        state.is_settled = true;
        if let Some(earlier) = earlier {
            // It ends by itself, too.
            let _ = self.keys.revoke(earlier.lease);
        }
        Ok(true)
    }

    fn put_view(&self, held: Held, view: &PoolView) -> Result<Option<i64>, RegistryError> {
        let (key, server) = (self.names.view(), self.names.server());
        let guards =
            [Guard { key: &key, revision: held.view }, Guard { key: &server, revision: held.server }];
        let puts = [Put { key: &key, value: &self.view_bytes(view)?, lease: None }];
        self.keys.put_if(&guards, &puts).map_err(|error| registry_error(&self.place(), error))
    }

    fn view_bytes(&self, view: &PoolView) -> Result<Vec<u8>, RegistryError> {
        bytes_of(&ViewRecord { server: self.server.clone(), view: view.clone() })
    }

    /// Reads the records of the pool.
    fn look(&self) -> Result<Found, RegistryError> {
        let listing = self.keys.list(&self.names.prefix);
        let listing = listing.map_err(|error| registry_error(&self.place(), error))?;
        let (view, server) = (listing.get(&self.names.view()), listing.get(&self.names.server()));
        let revision = |entry: Option<&Entry>| entry.map_or(0, |entry| entry.revision);
        let (view_revision, server_revision) = (revision(view), revision(server));
        let view = view.map(|entry| self.read::<ViewRecord>(entry)).transpose()?;
        if let Some(Err(reason)) = view.as_ref().map(|record| record.view.check()) {
            return Err(self.wrong(&self.names.view(), reason));
        }
        let server = server.map(|entry| Ok::<_, RegistryError>((self.read(entry)?, entry.lease)));
        Ok(Found { view, view_revision, server: server.transpose()?, server_revision })
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, entry: &Entry) -> Result<T, RegistryError> {
        serde_json::from_slice(&entry.value).map_err(|error| self.wrong(&entry.key, error.to_string()))
    }

    fn wrong(&self, key: &str, reason: String) -> RegistryError {
        RegistryError::Record { place: self.place(), key: key.into(), reason }
    }

    fn contended(&self) -> RegistryError {
        let reason = "its records change at the same time".into();
        RegistryError::Away { place: self.place(), reason }
    }

    fn refuse_if_taken(&self) -> Result<(), RegistryError> {
        match &*self.health.lock() {
            Health::Taken { by } => Err(RegistryError::Lost { place: self.place(), by: by.clone() }),
            _ => Ok(()),
        }
    }

    /// Notes whether etcd answers, and logs news.
    fn note(&self, outcome: &Result<(), RegistryError>) {
        let mut health = self.health.lock();
        let place = self.keys.place();
        match (outcome, &mut *health) {
            (_, Health::Taken { .. }) => {}
            (Ok(()), Health::Up) => {}
            (Ok(()), Health::Away { .. }) => {
                log::info!("{place} is back: the pool can change again");
                *health = Health::Up;
            }
            (Err(error), Health::Up) => {
                let reason = reason_of(error);
                log::warn!("{place}: {reason}: reads and writes go on, and the pool does not change");
                *health = Health::Away { since: Instant::now(), reason };
            }
            (Err(error), Health::Away { reason, .. }) => *reason = reason_of(error),
        }
    }
}

/// Returns why a registry does not answer, without advice.
fn reason_of(error: &RegistryError) -> String {
    match error {
        RegistryError::Away { reason, .. } | RegistryError::Refused { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn bytes_of(record: &impl Serialize) -> Result<Vec<u8>, RegistryError> {
    serde_json::to_vec(record).map_err(|error| RegistryError::System(error.into()))
}
