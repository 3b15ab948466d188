//! The pool of a server in etcd: its tenure, the watch of stores, and the thread that keeps the
//! tenure alive.
//!
//! # Concurrency
//! Any thread. The thread `rfs-etcd` renews the lease every three seconds.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdmabox::KeyId;

use super::{
    EtcdUrl, PoolKeys, RENEWAL, RETRY,
    gateway::Gateway,
    key_store::KeyStore,
    renewal::{RenewalThread, Turn},
    stores_watch::StoresWatch,
    tenure::Tenure,
};
use crate::server::stores::registry::{
    Health, PoolView, RegisteredStores, Registry, RegistryError, ServerRecord,
};

/// Interval at which the lease of another server is looked at.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The pool of a server in etcd. Dropping it gives the pool up.
#[derive(Debug)]
pub(crate) struct EtcdRegistry {
    pool: KeyId,
    tenure: Arc<Tenure>,
    watch: Arc<StoresWatch>,
    renewal: Mutex<Option<RenewalThread>>,
}

impl EtcdRegistry {
    /// Returns the registry of a pool, which has the name of its key. Nothing is asked yet.
    pub(crate) fn new(urls: &[EtcdUrl], pool: KeyId, server: ServerRecord) -> EtcdRegistry {
        EtcdRegistry::over(Arc::new(Gateway::new(urls)), pool, server, LEASE_CHECK_INTERVAL)
    }

    pub(super) fn over(
        keys: Arc<dyn KeyStore>,
        pool: KeyId,
        server: ServerRecord,
        pause: Duration,
    ) -> EtcdRegistry {
        let names = PoolKeys::new(&pool.to_string());
        let watch = Arc::new(StoresWatch::new(Arc::clone(&keys), names.stores()));
        let tenure = Arc::new(Tenure::new(keys, names, server, pause));
        EtcdRegistry { pool, tenure, watch, renewal: Mutex::default() }
    }

    /// Renews the lease. Starts another watch after an outage.
    fn turn(tenure: &Tenure, watch: &Arc<StoresWatch>, was_up: &mut bool) -> Turn {
        let health = tenure.renew();
        let is_up = matches!(health, Health::Up);
        if is_up
            && !*was_up
            && let Err(error) = watch.start()
        {
            log::error!("cannot watch the stores in etcd: {error}");
        }
        *was_up = is_up;
        match health {
            Health::Up => Turn::After(RENEWAL),
            Health::Away { .. } => Turn::After(RETRY),
            Health::Taken { by } => {
                log::error!(
                    "{}: another server has taken the pool, {by}: this server changes it no more, and loses its \
                     stores to the other",
                    tenure.place()
                );
                Turn::End
            }
        }
    }
}

impl Registry for EtcdRegistry {
    fn place(&self) -> Option<String> {
        Some(format!("{}, pool {}", self.tenure.place(), self.pool))
    }

    fn take(&self, now: u64) -> Result<PoolView, RegistryError> {
        let view = self.tenure.take(now)?;
        let (tenure, watch) = (Arc::clone(&self.tenure), Arc::clone(&self.watch));
        if let Err(error) = watch.read() {
            log::warn!("the stores cannot be listed yet: {error}");
        }
        watch.start()?;
        let mut was_up = true;
        let renew = move || EtcdRegistry::turn(&tenure, &watch, &mut was_up);
        *self.renewal.lock() = Some(RenewalThread::start("rfs-etcd", RENEWAL, renew)?);
        Ok(view)
    }

    fn write(&self, view: &PoolView) -> Result<(), RegistryError> {
        self.tenure.write(view)
    }

    fn health(&self) -> Option<Health> {
        Some(self.tenure.health())
    }

    fn registered(&self) -> Option<RegisteredStores> {
        Some(self.watch.registered())
    }
}

impl Drop for EtcdRegistry {
    fn drop(&mut self) {
        self.watch.end();
        drop(self.renewal.get_mut().take());
        self.tenure.release();
    }
}
