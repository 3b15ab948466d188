//! A running server. Starts with checks, then takes memory export by export, then opens sockets.
//!
//! [`Server::start`] returns once the server answers. Dropping the server ends all sessions,
//! removes its Unix sockets and joins its threads. The server installs no signal handlers and
//! prints nothing; the program does.
//!
//! # Concurrency
//! Any thread may call a [`Server`]; it takes no locks of its own.

pub mod config;
mod error;
mod export_builder;
pub mod export_config;
mod log_compactor;
pub mod prefault;
mod recall_timeout;
mod running_export;
mod startup;
pub mod status;
pub mod stores;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use rdmabox::{
    Address, HostHandle, KeyFileError,
    tls::{TlsError, TlsServer},
};
use rfs_proto::{ServerStats, StatFs};

use crate::{
    coherence::alarm::Alarm,
    dispatch::stats,
    memory_object::object::ObjectStore,
    service::{
        FileService,
        keys::{self, Keys},
        session_reaper::{ReaperSignal, SessionReaper},
    },
    snapshots::{
        directory::SnapshotDirectory,
        record::SnapshotRecord,
        snapshotter::{Job, Snapshotter},
    },
};
pub use config::Config;
pub use error::{ResizeError, ShutdownError, StartError};
use export_builder::{BuiltExport, Sources};
pub use export_config::ExportConfig;
pub use prefault::Prefault;
use recall_timeout::RecallTimeout;
use running_export::{Export, differ_in_sizes_only, resize_one};
pub(crate) use startup::directories::check_memory;
use startup::{
    directories::{open_directories, open_sources},
    host::{configure_host, keyed_domains, make_socket_directories, secure_host},
    new_directories::NewDirectories,
};
use status::ObservedExport;
pub use status::{PoolStatus, ServerStatus, StatusSource};
use stores::{PoolStores, StoresError};

/// A running server.
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order: no session outlives the parts that it uses.
    running: Arc<HostHandle>,
    _recall_timeout: RecallTimeout,
    _session_reaper: SessionReaper,
    snapshotter: Option<Snapshotter>,
    exports: Vec<Export>,
    /// Configuration of the exports at the start.
    asked: Vec<ExportConfig>,
    /// If set, shutdown does not wait for the last snapshots.
    hurry: Arc<AtomicBool>,
    service: Arc<FileService>,
    /// Locks the memory directory, and has the tethers of clients. Dropped last, after the host's
    /// reference to the tethers: the drop of the last one removes those that no client holds.
    _store: Option<ObjectStore>,
    /// Locks the snapshot directory.
    _snapshots: Option<SnapshotDirectory>,
    /// Key file and current keys.
    keys: Option<(Mutex<PathBuf>, Arc<Keys>)>,
    tls: Option<Arc<TlsServer>>,
    start: Instant,
    /// The record of the snapshots of each export that has some.
    snapshot_records: HashMap<String, SnapshotRecord>,
}

impl Server {
    /// Starts a server. Clients can connect when it returns.
    ///
    /// # Errors
    /// The first check or step that failed; everything is undone.
    pub fn start(config: Config) -> Result<Server, StartError> {
        config.check()?;
        let new_directories = NewDirectories::before(&config);
        let asked = config.exports();
        let names: Vec<&str> = asked.iter().map(|export| export.name.as_str()).collect();
        let (store, directory) = open_directories(&config, &names)?;
        let book = config.keys.as_ref().map(|path| keys::read(path, &names)).transpose()?;
        let tls = config.tls.clone().map(TlsServer::load).transpose()?.map(Arc::new);
        let (host, previous_clients) = configure_host(&config, store.as_ref())?;
        let stores = join_stores(&config)?;
        let alarm = Arc::<Alarm>::default();
        // All memory is mapped before it is touched and before there are sockets.
        let mut domains = HashMap::new();
        let found = open_sources(&config, &asked, store.as_ref(), directory.as_ref())?;
        let (mut made, mut jobs) = (Vec::new(), Vec::new());
        for ((at, export), (object, mut snapshots)) in asked.iter().enumerate().zip(found) {
            let own = if book.is_some() { keyed_domains(&host)? } else { HashMap::new() };
            let from = Sources { object, snapshots: snapshots.as_mut(), stores: stores.clone() };
            let new = BuiltExport::new(&host, export, &own, (&config, from), &alarm)?;
            let (name, dispatcher) = (export.name.clone(), Arc::clone(&new.lent.dispatcher));
            jobs.extend(
                snapshots
                    .map(|snapshots| Job::new(name, dispatcher, export.shape(config.checksum), snapshots)),
            );
            made.push(new);
            domains.extend(own.into_iter().map(|(rights, domain)| ((at, rights), domain)));
        }
        let keys = book.map(|book| Arc::new(Keys::new(book, domains)));
        make_socket_directories(&config.listen)?;
        let (mut exports, mut lent) = (Vec::new(), Vec::new());
        let all: Arc<[_]> = made.iter().map(|made| Arc::clone(&made.lent.dispatcher)).collect();
        for made in made {
            exports.push(made.work(&config, &all, &previous_clients)?);
            lent.push(made.lent);
        }
        let reaper_signal = Arc::<ReaperSignal>::default();
        let service = FileService::new(lent, keys.clone()).waiting(
            config.fencing,
            Arc::clone(&reaper_signal),
            previous_clients,
        );
        let service = Arc::new(service);
        let host = secure_host(host, keys.as_ref(), tls.as_ref());
        let running = host.listen(&config.listen, Arc::<FileService>::clone(&service))?;
        service.set_terminator(running.ender());
        // Clients use the files from now on.
        store.iter().for_each(ObjectStore::keep);
        new_directories.keep();
        let session_reaper =
            SessionReaper::start(reaper_signal, Arc::downgrade(&service)).map_err(StartError::Thread)?;
        let recall_timeout = start_recall_timeout(&config, alarm, &exports, &service)?;
        let snapshot_records = jobs.iter().map(|job| (job.name.clone(), job.record())).collect();
        let snapshotter = config.persist.as_ref().map(|persist| Snapshotter::start(jobs, persist.every));
        Ok(Server {
            running: Arc::new(running),
            _recall_timeout: recall_timeout,
            _session_reaper: session_reaper,
            snapshotter: snapshotter.transpose().map_err(StartError::Thread)?,
            exports,
            asked,
            hurry: Arc::default(),
            service,
            _store: store,
            _snapshots: directory,
            keys: config.keys.clone().map(Mutex::new).zip(keys),
            tls,
            start: Instant::now(),
            snapshot_records,
        })
    }

    /// Returns where the status of the server comes from. Any thread may ask it. Drop it before the
    /// server shuts down, because it keeps the memory of the exports.
    pub fn status_source(&self) -> StatusSource {
        let observed = |export: &Export| ObservedExport {
            name: export.name.clone(),
            dispatcher: Arc::clone(&export.dispatcher),
            size: export.size.clone(),
            snapshots: self.snapshot_records.get(&export.name).cloned(),
        };
        StatusSource {
            start: self.start,
            addresses: self.addresses().iter().map(Address::to_string).collect(),
            exports: self.exports.iter().map(observed).collect(),
            service: Arc::clone(&self.service),
            host: Arc::downgrade(&self.running),
            pool: self.exports.first().and_then(|export| export.stores.clone()),
        }
    }

    /// Reads the certificates again, for new connections. Returns false for a server without
    /// certificates.
    ///
    /// # Errors
    /// The certificates are unchanged.
    pub fn reload_certificates(&self) -> Result<bool, TlsError> {
        self.tls.as_ref().map_or(Ok(false), |tls| tls.reload().map(|()| true))
    }

    /// Returns the time at which the server's certificate expires. `None` without a certificate.
    pub fn certificate_expiry(&self) -> Option<SystemTime> {
        self.tls.as_ref()?.expiry()
    }

    /// Reads the key file again. Ends sessions whose key was removed or changed. Returns the number
    /// of keys; `None` for a server without keys.
    ///
    /// # Errors
    /// The keys are unchanged.
    pub fn reload_keys(&self) -> Result<Option<usize>, KeyFileError> {
        let path = self.keys.as_ref().map(|(path, _)| path.lock().clone());
        path.map_or(Ok(None), |path| self.use_keys(&path))
    }

    /// Reads another key file, which takes the place of the present one. The rest is as for
    /// [`reload_keys`](Self::reload_keys).
    ///
    /// # Errors
    /// The keys are unchanged, and so is the file that they come from.
    pub fn use_keys(&self, path: &Path) -> Result<Option<usize>, KeyFileError> {
        let Some((present, keys)) = &self.keys else { return Ok(None) };
        let names: Vec<&str> = self.exports.iter().map(|export| export.name.as_str()).collect();
        let changed = keys.replace(keys::read(path, &names)?);
        path.clone_into(&mut present.lock());
        let terminator = self.running.ender();
        for session in self.service.sessions_with(&changed) {
            terminator.revoke(session, "session closed: its key was removed or its rights changed");
        }
        Ok(Some(keys.count()))
    }

    /// Returns the addresses that the server listens on, with ports resolved.
    pub fn addresses(&self) -> &[Address] {
        self.running.addresses()
    }

    /// Returns the sums of the counters of all exports.
    pub fn stats(&self) -> ServerStats {
        stats::sum(self.exports.iter().map(|export| export.dispatcher.stats()))
    }

    /// Returns the totals of the first export.
    pub fn statfs(&self) -> StatFs {
        self.exports.first().map(|export| export.dispatcher.statfs()).unwrap_or_default()
    }

    /// Returns how many inodes of the first export have no name and are not open. They stay for
    /// mounts that may still use them. Totals count them as free.
    pub fn idle_inodes(&self) -> u64 {
        self.exports.first().map_or(0, |export| export.dispatcher.idle_inodes())
    }

    /// Returns the names and totals of all exports, in configuration order.
    pub fn exports(&self) -> impl Iterator<Item = (&str, StatFs)> {
        self.exports.iter().map(|export| (export.name.as_str(), export.dispatcher.statfs()))
    }

    /// Changes the size of an export, rounded down to whole blocks. Returns the old and the new
    /// size of the server's own memory for it.
    ///
    /// Clients go on meanwhile. The size is that of the configuration again after a restart.
    ///
    /// # Errors
    /// Why not, such as files that need more. The size is unchanged.
    pub fn resize(&self, export: &str, size: u64) -> Result<(u64, u64), ResizeError> {
        let exports = self.exports.iter().map(|export| (export.name.as_str(), &export.size));
        resize_one(exports, export, size)
    }

    /// Gives exports the sizes of another configuration. Returns false, without a change, if it
    /// differs in more than sizes.
    ///
    /// # Errors
    /// The first export that keeps its size, and why. Exports before it have their new size.
    pub fn resize_exports(&self, wanted: &[ExportConfig]) -> Result<bool, String> {
        if !differ_in_sizes_only(&self.asked, wanted) {
            return Ok(false);
        }
        for export in wanted {
            let (old, new) = self
                .resize(&export.name, export.size())
                .map_err(|why| format!("export {:?} keeps its size: {why}", export.name))?;
            if old != new {
                log::info!("export {:?}: {} -> {}", export.name, byte_size::show(old), byte_size::show(new));
            }
        }
        Ok(true)
    }

    /// Changes the time between two snapshots. `None`: only on request and when the server stops.
    /// Returns false if there are no snapshots.
    pub fn set_snapshot_interval(&self, every: Option<Duration>) -> bool {
        self.snapshotter.as_ref().inspect(|snapshotter| snapshotter.set_interval(every)).is_some()
    }

    /// Requests a snapshot of each export. Returns false if there are no snapshots. The server logs
    /// the result.
    pub fn snapshot(&self) -> bool {
        self.snapshotter.as_ref().inspect(|snapshotter| snapshotter.ask()).is_some()
    }

    /// Returns a flag that makes [`Server::shutdown`] return without waiting for the last
    /// snapshots.
    pub fn hurry(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.hurry)
    }

    /// Ends all sessions, makes the last snapshots, and stops. Returns when no thread of the server
    /// runs.
    ///
    /// # Errors
    /// A last snapshot failed. The server has stopped nevertheless.
    pub fn shutdown(self) -> Result<(), ShutdownError> {
        self.end(None)
    }

    /// Shuts down like [`shutdown`](Self::shutdown), after a thread has failed. Sessions that do
    /// not end within `limit` are left behind, so that the last snapshots are made. The caller ends
    /// the process.
    ///
    /// # Errors
    /// A last snapshot failed.
    pub fn shutdown_failed(self, limit: Duration) -> Result<(), ShutdownError> {
        self.end(Some(limit))
    }

    fn end(self, limit: Option<Duration>) -> Result<(), ShutdownError> {
        let Server {
            running,
            _recall_timeout,
            _session_reaper,
            snapshotter,
            hurry,
            exports,
            service,
            _store,
            ..
        } = self;
        // Sessions end first, so that the last snapshots have all changes.
        let ended = within(limit, move || drop((running, _recall_timeout, _session_reaper)));
        let failed = snapshotter.map(|snapshotter| snapshotter.finish(&hurry)).unwrap_or_default();
        let kept = _store.as_ref().map(|store| store.path().to_owned());
        match ended {
            true => drop((exports, service, _store)),
            // Sessions still use them, and the process ends.
            false => std::mem::forget((exports, service, _store)),
        }
        if failed.is_empty() { Ok(()) } else { Err(ShutdownError { failed, kept }) }
    }
}

/// Takes the stores over, if there are some.
fn join_stores(config: &Config) -> Result<Option<Arc<PoolStores>>, StoresError> {
    let Some(stores) = &config.stores else { return Ok(None) };
    Ok(Some(Arc::new(PoolStores::join(stores, &config.listen)?)))
}

/// Starts the thread that ends sessions that miss the recall timeout.
fn start_recall_timeout(
    config: &Config,
    alarm: Arc<Alarm>,
    exports: &[Export],
    service: &Arc<FileService>,
) -> Result<RecallTimeout, StartError> {
    let service = Arc::clone(service);
    let end = move |export, session| {
        service.end_session(export, session, "it did not acknowledge a recall in time");
    };
    let watched = exports.iter().map(|export| Arc::clone(&export.dispatcher)).collect();
    RecallTimeout::start(alarm, watched, config.effective_recall_timeout(), end).map_err(StartError::Thread)
}

/// Runs `end` on this thread, or with a limit on a thread of its own. Returns false if that takes
/// longer.
fn within(limit: Option<Duration>, end: impl FnOnce() + Send + 'static) -> bool {
    let Some(limit) = limit else {
        end();
        return true;
    };
    let (done, wait) = mpsc::channel();
    let end = move || {
        end();
        // The server may have stopped waiting.
        let _ = done.send(());
    };
    let started = thread::Builder::new().name("rfs-end".into()).spawn(end);
    started.is_ok() && wait.recv_timeout(limit).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_any_machine_has() {
        let error = Server::start(Config::new(1 << 60)).unwrap_err();
        assert!(matches!(error, StartError::NotEnough { .. }), "{error}");
        assert!(error.to_string().starts_with("cannot lend 1"), "{error}");
    }
}
