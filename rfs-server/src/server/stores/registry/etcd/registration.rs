//! The registration of a store.
//!
//! # Concurrency
//! The thread `rfs-etcd` keeps the lease alive, and registers the store again when the lease has
//! ended. Dropping the registration ends it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::sleep,
    time::Instant,
};

use parking_lot::Mutex;
use rdmabox::KeyId;

use super::{
    EtcdUrl, LEASE, PoolKeys, RENEWAL, RETRY, START_LIMIT,
    gateway::Gateway,
    key_store::{Guard, KeyStore, KeyStoreError, Lease, Put},
    registry_error,
    renewal::{RenewalThread, Turn},
};
use crate::server::stores::registry::{RegistryError, StoreRecord};

/// Renewals of the lease after which the store looks if its record is still there.
const RENEWALS_PER_LOOK: u32 = 10;

/// The registration of a store. Dropping it removes the store's record.
#[derive(Debug)]
pub struct Registration {
    pool: KeyId,
    registrant: Arc<Registrant>,
    renewal: Option<RenewalThread>,
}

#[derive(Debug)]
struct Registrant {
    keys: Arc<dyn KeyStore>,
    key: String,
    record: Vec<u8>,
    lease: Mutex<Option<Lease>>,
    renewals: AtomicU32,
    is_up: AtomicBool,
}

impl Registration {
    /// Registers a store of a pool, which has the name of its key. Waits for an etcd that does not
    /// answer.
    ///
    /// # Errors
    /// etcd refuses, or has not answered for 30 s.
    pub fn start(urls: &[EtcdUrl], pool: KeyId, record: &StoreRecord) -> Result<Registration, RegistryError> {
        Registration::over(Arc::new(Gateway::new(urls)), pool, record)
    }

    /// Returns the registry and the pool, in words.
    pub fn place(&self) -> String {
        format!("{}, pool {}", self.registrant.keys.place(), self.pool)
    }

    pub(super) fn over(
        keys: Arc<dyn KeyStore>,
        pool: KeyId,
        record: &StoreRecord,
    ) -> Result<Registration, RegistryError> {
        let key = format!("{}{}", PoolKeys::new(&pool.to_string()).stores(), record.address);
        let record = serde_json::to_vec(record).map_err(|error| RegistryError::System(error.into()))?;
        let (lease, renewals, is_up) = (Mutex::default(), AtomicU32::new(0), AtomicBool::new(true));
        let registrant = Arc::new(Registrant { keys, key, record, lease, renewals, is_up });
        registrant.begin()?;
        let renewing = Arc::clone(&registrant);
        let renewal = RenewalThread::start("rfs-etcd", RENEWAL, move || renewing.turn())?;
        Ok(Registration { pool, registrant, renewal: Some(renewal) })
    }
}

impl Registrant {
    fn begin(&self) -> Result<(), RegistryError> {
        let give_up = Instant::now() + START_LIMIT;
        let mut is_new = true;
        loop {
            let error = match self.register() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let place = self.keys.place();
            match error {
                KeyStoreError::Away(reason) if Instant::now() < give_up => {
                    if std::mem::take(&mut is_new) {
                        let seconds = START_LIMIT.as_secs();
                        log::warn!("{place} does not answer: {reason}: the store tries for {seconds} s");
                    }
                    sleep(RETRY);
                }
                KeyStoreError::Away(reason) => return Err(RegistryError::NoStart { place, reason }),
                refused => return Err(registry_error(&place, refused)),
            }
        }
    }

    /// Writes the record with a new lease. It replaces that of an earlier run at this address.
    fn register(&self) -> Result<(), KeyStoreError> {
        let lease = self.keys.grant(LEASE)?;
        self.keys.put_if(&[], &[Put { key: &self.key, value: &self.record, lease: Some(lease) }])?;
        *self.lease.lock() = Some(lease);
        Ok(())
    }

    /// Writes the record again if it is gone: deleted, or ended with a store of the same address.
    fn restore(&self, lease: Lease) -> Result<(), KeyStoreError> {
        if !(self.renewals.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(RENEWALS_PER_LOOK) {
            return Ok(());
        }
        let is_gone = Guard { key: &self.key, revision: 0 };
        let again = Put { key: &self.key, value: &self.record, lease: Some(lease) };
        if self.keys.put_if(&[is_gone], &[again])?.is_some() {
            log::warn!("{}: the record of the store was gone, and is written again", self.keys.place());
        }
        Ok(())
    }

    fn turn(&self) -> Turn {
        let lease = *self.lease.lock();
        let renewed = match lease.map(|lease| (lease, self.keys.keep_alive(lease))) {
            Some((lease, Ok(true))) => self.restore(lease),
            Some((_, Ok(false))) | None => self.register(),
            Some((_, Err(error))) => Err(error),
        };
        let was_up = self.is_up.swap(renewed.is_ok(), Ordering::AcqRel);
        let place = self.keys.place();
        match &renewed {
            Err(error) if was_up => {
                log::warn!("{place}: {error}: the store goes on, and registers again when etcd is back");
            }
            Ok(()) if !was_up => log::info!("{place} is back, and has the store"),
            _ => {}
        }
        Turn::After(if renewed.is_ok() { RENEWAL } else { RETRY })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.renewal.take());
        let lease = self.registrant.lease.lock().take();
        if let Some(Err(error)) = lease.map(|lease| self.registrant.keys.revoke(lease)) {
            log::debug!("{}: the registration ends by itself: {error}", self.registrant.keys.place());
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmabox::Address;

    use super::{super::fake::FakeEtcd, *};

    /// Catches a store that keeps its lease alive, and is registered no more.
    #[test]
    fn a_record_that_is_gone_is_written_again() {
        let etcd = Arc::<FakeEtcd>::default();
        let keys = || Arc::<FakeEtcd>::clone(&etcd);
        let address: Address = "tcp:s:1".parse().unwrap();
        let store = || StoreRecord::of_this_process(address.clone(), 4096).unwrap();
        let pool = "pool".parse().unwrap();
        let first = Registration::over(keys(), pool, &store()).unwrap();
        // A second run at the same address ends.
        drop(Registration::over(keys(), pool, &store()).unwrap());
        let key = first.registrant.key.clone();
        assert_eq!(etcd.value(&key), None);
        for _ in 0..RENEWALS_PER_LOOK {
            first.registrant.turn();
        }
        assert!(etcd.value(&key).is_some());
    }
}
