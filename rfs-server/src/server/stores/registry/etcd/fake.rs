//! An etcd in this process, for tests: with a clock of its own, outages and lost answers.
//!
//! # Concurrency
//! One lock, held for moments. A watch waits on a condition.

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

use parking_lot::{Condvar, Mutex};

use super::key_store::{Entry, Guard, KeyChange, KeyStore, KeyStoreError, Lease, Listing, Put};

#[derive(Debug, Default)]
pub(super) struct FakeEtcd {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    revision: i64,
    entries: BTreeMap<String, Entry>,
    changes: Vec<(i64, KeyChange)>,
    /// Time and end of each lease, in seconds of the clock.
    leases: BTreeMap<i64, (u64, u64)>,
    leases_made: i64,
    clock: u64,
    is_away: bool,
    /// Transactions are done, and their answers are lost.
    loses_answers: bool,
    /// Ends all watches that began before.
    outages: u64,
}

impl State {
    fn change(&mut self, change: KeyChange) {
        match &change {
            KeyChange::Put(entry) => _ = self.entries.insert(entry.key.clone(), entry.clone()),
            KeyChange::Deleted(key) => _ = self.entries.remove(key),
        }
        self.changes.push((self.revision, change));
    }

    fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let keys: Vec<String> = self
            .entries
            .values()
            .filter(|entry| entry.lease.0 == lease)
            .map(|entry| entry.key.clone())
            .collect();
        for key in keys {
            self.revision += 1;
            self.change(KeyChange::Deleted(key));
        }
    }
}

impl FakeEtcd {
    /// Lets time pass.
    pub(super) fn pass(&self, seconds: u64) {
        let mut state = self.state.lock();
        state.clock += seconds;
        let clock = state.clock;
        let over: Vec<i64> =
            state.leases.iter().filter(|(_, (_, end))| *end <= clock).map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| state.end_lease(lease));
        self.changed.notify_all();
    }

    /// Begins or ends an outage.
    pub(super) fn set_away(&self, is_away: bool) {
        let mut state = self.state.lock();
        state.is_away = is_away;
        state.outages += 1;
        self.changed.notify_all();
    }

    /// Lets transactions be done without an answer, or not any more.
    pub(super) fn set_loses_answers(&self, loses: bool) {
        self.state.lock().loses_answers = loses;
    }

    /// Forgets everything, as an etcd whose disk was lost.
    pub(super) fn wipe(&self) {
        let mut state = self.state.lock();
        *state = State { outages: state.outages + 1, ..State::default() };
        self.changed.notify_all();
    }

    /// Writes an entry, as an administrator does.
    pub(super) fn set(&self, key: &str, value: &str) {
        self.put_if(&[], &[Put { key, value: value.as_bytes(), lease: None }]).expect("etcd is there");
    }

    pub(super) fn value(&self, key: &str) -> Option<String> {
        let state = self.state.lock();
        state.entries.get(key).map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
    }

    fn there(&self) -> Result<parking_lot::MutexGuard<'_, State>, KeyStoreError> {
        let state = self.state.lock();
        if state.is_away { Err(KeyStoreError::Away("Connection refused".into())) } else { Ok(state) }
    }
}

impl KeyStore for FakeEtcd {
    fn place(&self) -> String {
        "etcd at http://fake:1".into()
    }

    fn list(&self, prefix: &str) -> Result<Listing, KeyStoreError> {
        let state = self.there()?;
        let entries = state.entries.values().filter(|entry| entry.key.starts_with(prefix)).cloned().collect();
        Ok(Listing { revision: state.revision, entries })
    }

    fn put_if(&self, guards: &[Guard<'_>], puts: &[Put<'_>]) -> Result<Option<i64>, KeyStoreError> {
        let mut state = self.there()?;
        let holds = |guard: &Guard<'_>| {
            state.entries.get(guard.key).map_or(0, |entry| entry.revision) == guard.revision
        };
        if !guards.iter().all(holds) {
            return Ok(None);
        }
        state.revision += 1;
        let revision = state.revision;
        for Put { key, value, lease } in puts {
            let (key, value, lease) = ((*key).to_owned(), value.to_vec(), lease.unwrap_or(Lease(0)));
            if lease.0 != 0 && !state.leases.contains_key(&lease.0) {
                return Err(KeyStoreError::Refused("etcdserver: requested lease not found".into()));
            }
            state.change(KeyChange::Put(Entry { key, value, revision, lease }));
        }
        self.changed.notify_all();
        match state.loses_answers {
            true => Err(KeyStoreError::Away("timeout: global".into())),
            false => Ok(Some(revision)),
        }
    }

    fn grant(&self, time: Duration) -> Result<Lease, KeyStoreError> {
        let mut state = self.there()?;
        state.leases_made += 1;
        let (lease, seconds) = (state.leases_made, time.as_secs());
        let end = state.clock + seconds;
        state.leases.insert(lease, (seconds, end));
        Ok(Lease(lease))
    }

    fn keep_alive(&self, lease: Lease) -> Result<bool, KeyStoreError> {
        let mut state = self.there()?;
        let clock = state.clock;
        Ok(state.leases.get_mut(&lease.0).map(|(seconds, end)| *end = clock + *seconds).is_some())
    }

    fn rest_of(&self, lease: Lease) -> Result<Option<Duration>, KeyStoreError> {
        let state = self.there()?;
        Ok(state.leases.get(&lease.0).map(|(_, end)| Duration::from_secs(end - state.clock)))
    }

    fn revoke(&self, lease: Lease) -> Result<(), KeyStoreError> {
        let mut state = self.there()?;
        state.end_lease(lease.0);
        self.changed.notify_all();
        Ok(())
    }

    fn watch(
        &self,
        prefix: &str,
        from: i64,
        changed: &mut dyn FnMut(Vec<KeyChange>) -> ControlFlow<()>,
    ) -> Result<(), KeyStoreError> {
        let outages = self.there()?.outages;
        let mut from = from;
        loop {
            let mut state = self.there()?;
            if state.outages != outages {
                return Err(KeyStoreError::Away("the watch has ended".into()));
            }
            let key_of = |change: &KeyChange| match change {
                KeyChange::Put(entry) => entry.key.clone(),
                KeyChange::Deleted(key) => key.clone(),
            };
            let of_prefix = |(revision, change): &&(i64, KeyChange)| {
                *revision >= from && key_of(change).starts_with(prefix)
            };
            let news = state.changes.iter().filter(of_prefix).map(|(_, change)| change.clone()).collect();
            from = state.revision + 1;
            if parking_lot::MutexGuard::unlocked(&mut state, || changed(news)).is_break() {
                return Ok(());
            }
            if state.revision < from && state.outages == outages {
                self.changed.wait_for(&mut state, Duration::from_millis(20));
            }
        }
    }
}
