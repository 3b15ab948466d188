//! A running server: everything checked first, then memory, export by export, then sockets.
//!
//! Threading: [`Server::start`] returns once the server answers. Dropping the server ends all sessions, removes its
//! Unix sockets and joins its threads. It installs no signal handlers and prints nothing: that is the program's.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use rdmabox::{
    Access, Address, Domain, Host, HostError, KeyFileError, Memory, MemoryError, Running, size,
    tls::{TlsError, TlsServer},
};
use rfs_proto::{Identity, ServerStats, StatFs};

use crate::{
    absences::{Absences, Bell},
    config::{Config, DEFAULT_LEASE, MIN_MEMORY},
    dispatch::{Damage, Dispatcher, Kept, Root},
    durable::{Object, ObjectError, ObjectStore},
    export::ExportConfig,
    keys::{self, Keys},
    patience::{Alarm, Patience},
    persist::{
        Directory, PersistError,
        directory::Snapshots,
        keeper::{Job, Keeper},
        restore::{RestoreError, restore},
    },
    prefault::Prefaulter,
    rights::Rights,
    scrub::{Scrubber, Space},
    service::{FileService, Lent, Reach},
    stats,
    system::{self, Bound},
    upkeep::Upkeep,
};

/// Why a server did not start. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Not worth a file system.
    #[error("cannot lend {}: the least is {}", size::show(*.asked), size::show(MIN_MEMORY))]
    TooLittle {
        /// Bytes asked for.
        asked: u64,
    },
    /// The root directory needs one.
    #[error("a file system needs at least one inode")]
    NoInodes,
    /// One name twice.
    #[error("the export {name:?} is given twice")]
    ExportTwice {
        /// The name.
        name: String,
    },
    /// Clients would lose their sessions for other reasons first.
    #[error("--recall-timeout {patience:?} has to be less than --lease {lease:?}")]
    Patience {
        /// How long a client may take to say that it keeps something no longer.
        patience: Duration,
        /// How long a client that is not heard of keeps its session.
        lease: Duration,
    },
    /// Nobody could ever connect.
    #[error("no address to listen on")]
    NoListener,
    /// One address twice.
    #[error("{address} is given twice")]
    ListenTwice {
        /// The address.
        address: Address,
    },
    /// A listener that anyone on the network could use.
    #[error(
        "{address} can be reached from other machines, and whoever connects could read and write everything: give keys \
         (--keys FILE), or say --allow-remote-without-secret if that is what you want"
    )]
    Remote {
        /// The address.
        address: Address,
    },
    /// The file with keys is missing, or says nothing that makes sense, or others may read it.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// TLS would not be what carries the data.
    #[error(
        "{address}: with --tls-cert there can be no address for RDMA: what its devices carry cannot be encrypted by TLS"
    )]
    TlsRdma {
        /// The address.
        address: Address,
    },
    /// Nobody would speak it.
    #[error("--tls-cert is for addresses of TCP, and there is none: give --listen tcp:HOST:PORT")]
    TlsNowhere,
    /// Certificates that are missing, or do not fit together.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    /// A host name that means nothing here.
    #[error("cannot resolve {address}: {source}")]
    Resolve {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// More than there is.
    #[error("cannot lend {}: {} leaves {}", size::show(*.asked), .bound.what, size::show(.bound.bytes))]
    NotEnough {
        /// Bytes needed.
        asked: u64,
        /// What stands in the way.
        bound: Bound,
    },
    /// The files that have the memory cannot be used.
    #[error("cannot use memory in files: {0}")]
    Object(#[from] ObjectError),
    /// What is kept there is no file system.
    #[error("cannot use memory in files: {path}: {source}", path = .path.display())]
    Damage {
        /// The directory of the export.
        path: PathBuf,
        /// What is wrong.
        source: Damage,
    },
    /// Two things in one place.
    #[error("--memory-dir and --persist need a directory each")]
    SameDirectory,
    /// Snapshots cannot be used, or there is none to begin with.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// The snapshot to begin with cannot be restored.
    #[error("cannot restore {path}: {source}", path = .path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RestoreError,
    },
    /// The system refused the memory.
    #[error("cannot lend memory: {0}")]
    Memory(#[from] MemoryError),
    /// The directory of a Unix socket could not be made.
    #[error("cannot create {path}: {source}", path = .path.display())]
    SocketDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// No random numbers.
    #[error("there are no random numbers: {0}")]
    Random(io::Error),
    /// An address in use, or another network error.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    // In the order in which they go: no session outlives what it uses.
    running: Running,
    _patience: Patience,
    _absences: Absences,
    keeper: Option<Keeper>,
    exports: Vec<Export>,
    /// Keeps other servers away from the memory.
    _store: Option<ObjectStore>,
    /// And from the snapshots.
    _snapshots: Option<Directory>,
    /// The last snapshots are not to be waited for.
    hurry: Arc<AtomicBool>,
    service: Arc<FileService>,
    /// Where the keys come from, and those that count.
    keys: Option<(PathBuf, Arc<Keys>)>,
    tls: Option<Arc<TlsServer>>,
}

/// A file system that is lent, with the threads that work for it.
#[derive(Debug)]
struct Export {
    name: String,
    _prefaulter: Prefaulter,
    _scrubber: Scrubber,
    upkeep: Option<Upkeep>,
    object: Option<Arc<Object>>,
    dispatcher: Arc<Dispatcher>,
}

impl Drop for Export {
    fn drop(&mut self) {
        drop(self.upkeep.take());
        if let Some(object) = self.object.take_if(|_| self.dispatcher.is_settled()) {
            object.end();
        }
    }
}

impl Server {
    /// Starts a server: when this returns, clients can connect.
    pub fn start(config: Config) -> Result<Server, StartError> {
        config.check()?;
        let store = config.memory_dir.as_deref().map(ObjectStore::open).transpose()?;
        if store.is_none() {
            check_memory(&config, system::available_memory())?;
        }
        let directory = config.persist.as_ref().map(|persist| Directory::open(&persist.dir)).transpose()?;
        let asked = config.exports();
        let names: Vec<&str> = asked.iter().map(|export| export.name.as_str()).collect();
        let book = config.keys.as_ref().map(|path| keys::read(path, &names)).transpose()?;
        let tls = config.tls.clone().map(TlsServer::load).transpose()?.map(Arc::new);
        let host = Host::new()?.rdma(config.rdma.clone()).fencing(config.fencing);
        let alarm = Arc::<Alarm>::default();
        // All of the memory before any of it is touched, and before there are sockets.
        let mut domains = HashMap::new();
        let mut found = Vec::new();
        for export in &asked {
            let keep = config.persist.as_ref().map_or(0, |persist| persist.keep);
            let snapshots = directory.as_ref().map(|directory| directory.export(&export.name, keep));
            let object = store.as_ref().map(|store| store.object(&export.name, export.shape()).map(Arc::new));
            found.push((object.transpose()?, snapshots.transpose()?));
        }
        // Before anything is restored, which takes room.
        if let Some(path) = &config.memory_dir {
            check_room(path, found.iter().filter_map(|(object, _)| object.as_deref()))?;
        }
        let mut made = Vec::new();
        let mut jobs = Vec::new();
        for ((at, export), (object, mut snapshots)) in asked.iter().enumerate().zip(found) {
            let own: HashMap<Rights, Domain> = match &book {
                None => HashMap::new(),
                Some(_) => [Rights::Read, Rights::Write]
                    .into_iter()
                    .map(|rights| host.domain().map(|domain| (rights, domain)))
                    .collect::<Result<_, _>>()?,
            };
            let from = From { object, snapshots: snapshots.as_mut() };
            let new = Made::new(&host, export, &own, (&config, from), &alarm)?;
            let (name, dispatcher) = (export.name.clone(), Arc::clone(&new.lent.dispatcher));
            jobs.extend(snapshots.map(|snapshots| Job::new(name, dispatcher, export.shape(), snapshots)));
            made.push(new);
            domains.extend(own.into_iter().map(|(rights, domain)| ((at, rights), domain)));
        }
        let keys = book.map(|book| Arc::new(Keys::new(book, domains)));
        make_socket_directories(&config.listen)?;
        let (mut exports, mut lent) = (Vec::new(), Vec::new());
        for made in made {
            exports.push(made.work(&config)?);
            lent.push(made.lent);
        }
        let bell = Arc::<Bell>::default();
        let service = FileService::new(lent, keys.clone()).waiting(config.fencing.lease, Arc::clone(&bell));
        let service = Arc::new(service);
        let host = match &keys {
            Some(keys) => host.keys(Arc::<Keys>::clone(keys)),
            None => host,
        };
        let host = match &tls {
            Some(tls) => host.tls(Arc::clone(tls)),
            None => host,
        };
        let running = host.listen(&config.listen, Arc::<FileService>::clone(&service))?;
        service.set_ender(running.ender());
        let absences = Absences::start(bell, Arc::downgrade(&service)).map_err(StartError::Thread)?;
        let ending = Arc::clone(&service);
        let end = move |export, session| {
            let why = "it has not said in time that it keeps what has changed no longer";
            ending.end_session(export, session, why);
        };
        let watched = exports.iter().map(|export| Arc::clone(&export.dispatcher)).collect();
        let patience = Patience::start(alarm, watched, config.patience(), end).map_err(StartError::Thread)?;
        let keys = config.keys.clone().zip(keys);
        let keeper = config.persist.as_ref().map(|persist| Keeper::start(jobs, persist.every));
        Ok(Server {
            running,
            _patience: patience,
            _absences: absences,
            keeper: keeper.transpose().map_err(StartError::Thread)?,
            exports,
            _store: store,
            _snapshots: directory,
            hurry: Arc::default(),
            service,
            keys,
            tls,
        })
    }

    /// Reads the certificates again, for those who connect from now on. False for a server without.
    ///
    /// # Errors
    /// They are those of before.
    pub fn reload_certificates(&self) -> Result<bool, TlsError> {
        self.tls.as_ref().map_or(Ok(false), |tls| tls.reload().map(|()| true))
    }

    /// Reads the file with keys again. Sessions whose key is gone from it, or opens something else now, are ended. How many keys there
    /// are; `None` for a server without.
    ///
    /// # Errors
    /// The keys are those of before.
    pub fn reload_keys(&self) -> Result<Option<usize>, KeyFileError> {
        let Some((path, keys)) = &self.keys else { return Ok(None) };
        let names: Vec<&str> = self.exports.iter().map(|export| export.name.as_str()).collect();
        let changed = keys.replace(keys::read(path, &names)?);
        let ender = self.running.ender();
        for session in self.service.sessions_with(&changed) {
            ender.end(session, "its key counts no longer, or for something else");
        }
        Ok(Some(keys.count()))
    }

    /// The addresses that it listens on, with ports resolved.
    pub fn addresses(&self) -> &[Address] {
        self.running.addresses()
    }

    /// Counters of all exports together.
    pub fn stats(&self) -> ServerStats {
        stats::sum(self.exports.iter().map(|export| export.dispatcher.stats()))
    }

    /// Totals of the first export.
    pub fn statfs(&self) -> StatFs {
        self.exports.first().map(|export| export.dispatcher.statfs()).unwrap_or_default()
    }

    /// All exports by name, with their totals, in the order in which they were given.
    pub fn exports(&self) -> impl Iterator<Item = (&str, StatFs)> {
        self.exports.iter().map(|export| (export.name.as_str(), export.dispatcher.statfs()))
    }

    /// Asks for a snapshot of each export now. False if there are none. What comes of it is said in the log.
    pub fn snapshot(&self) -> bool {
        self.keeper.as_ref().inspect(|keeper| keeper.ask()).is_some()
    }

    /// What is to be set when [`Server::shutdown`] is to come to an end, whatever becomes of the last snapshots.
    pub fn hurry(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.hurry)
    }

    /// Ends all sessions, makes the last snapshots, and stops. Returns when no thread of it runs any more.
    pub fn shutdown(self) {
        let Server { running, _patience, _absences, mut keeper, hurry, exports, _store, .. } = self;
        // In this order: nobody is there for whom anything would change.
        drop((running, _patience, _absences));
        if let Some(keeper) = keeper.take() {
            keeper.finish(&hurry);
        }
        drop(exports);
    }
}

/// What a file system is begun with.
struct From<'a> {
    object: Option<Arc<Object>>,
    snapshots: Option<&'a mut Snapshots>,
}

/// An export whose memory is there.
struct Made {
    lent: Lent,
    space: Arc<Space>,
    arena: Arc<Memory>,
    object: Option<Arc<Object>>,
}

impl Made {
    fn new(
        host: &Host,
        export: &ExportConfig,
        domains: &HashMap<Rights, Domain>,
        (config, from): (&Config, From<'_>),
        alarm: &Arc<Alarm>,
    ) -> Result<Made, StartError> {
        let memory = |what: &str, len| -> Result<Arc<Memory>, StartError> {
            Ok(Arc::new(Memory::shared(&format!("{}-{what}", export.name), in_memory(len)?)?))
        };
        let From { object, snapshots } = from;
        let (arena, table) = match &object {
            Some(object) => (Arc::clone(&object.arena), Arc::clone(&object.table)),
            None => (memory("arena", export.arena_len())?, memory("table", export.table_len())?),
        };
        let reach = |domain, rights| -> Result<Reach, HostError> {
            let (data, records) = match rights {
                Rights::Read => (Access::REMOTE_READ, Access::REMOTE_READ),
                Rights::Write => {
                    let data = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
                    (data, data | Access::REMOTE_ATOMIC)
                }
            };
            let arena = host.export_in(domain, &arena, data)?;
            Ok(Reach { arena, table: host.export_in(domain, &table, records)? })
        };
        let open = reach(Domain::default(), Rights::Write)?;
        let keyed = domains.iter().map(|(rights, domain)| Ok((*rights, reach(*domain, *rights)?)));
        let keyed = keyed.collect::<Result<_, HostError>>()?;
        let clock = Arc::clone(&config.clock);
        let persisted = snapshots.is_some();
        let restored = match snapshots {
            Some(snapshots) => restored(snapshots, object.as_deref(), (&arena, &table), config)?,
            None => None,
        };
        let dispatcher = match (&object, restored) {
            (_, Some(dispatcher)) => dispatcher,
            (Some(object), None) => take_over(object, config, export.root)?,
            (None, None) => {
                let space = Arc::new(Space::new(Arc::clone(&arena), config.scrub));
                // A table has a slot for the root, or the configuration would not have passed.
                Dispatcher::new(space, table, export.root, clock)
                    .map_err(|_| StartError::NoInodes)?
                    .with_memory(Identity(random()?), 1)
            }
        };
        let dispatcher = dispatcher.with_alarm(Arc::clone(alarm));
        let dispatcher = if persisted { dispatcher.with_snapshots() } else { dispatcher };
        let space = Arc::clone(dispatcher.space());
        let (name, dispatcher) = (export.name.clone(), Arc::new(dispatcher));
        let lent = Lent { name, dispatcher, open, keyed };
        Ok(Made { lent, space, arena, object })
    }

    /// Starts the threads that work for it.
    fn work(&self, config: &Config) -> Result<Export, StartError> {
        if let Some(object) = &self.object {
            object.begin();
        }
        let grace = config.fencing.lease.unwrap_or(DEFAULT_LEASE);
        let upkeep =
            || Upkeep::start(&self.lent.dispatcher, Instant::now() + grace).map_err(StartError::Thread);
        Ok(Export {
            upkeep: self.object.as_ref().map(|_| upkeep()).transpose()?,
            object: self.object.clone(),
            name: self.lent.name.clone(),
            _scrubber: Scrubber::start(&self.space).map_err(StartError::Thread)?,
            _prefaulter: Prefaulter::start(&self.arena, config.prefault).map_err(StartError::Thread)?,
            dispatcher: Arc::clone(&self.lent.dispatcher),
        })
    }
}

/// The file system that a memory object keeps.
fn take_over(object: &Object, config: &Config, root: Root) -> Result<Dispatcher, StartError> {
    let begin = Instant::now();
    let header = object.header();
    let (log, state) = object.log()?;
    let inodes = state.as_ref().map(|state| state.inodes.len());
    let kept = Kept {
        log: Some(log),
        state,
        dirt: Some(object.dirt()),
        starts: header.starts + 1,
        clean: header.clean,
    };
    let memory = (Arc::clone(&object.arena), Arc::clone(&object.table));
    let dispatcher = Dispatcher::kept(memory, config.scrub, root, Arc::clone(&config.clock), kept)
        .map_err(|source| StartError::Damage { path: object.path().to_owned(), source })?
        .with_memory(Identity(header.identity.to_be_bytes()), header.starts + 1);
    if let Some(inodes) = inodes {
        let how = if header.clean { "" } else { ", left by a server that did not end in order" };
        log::info!(
            "{}: {inodes} inodes are there{how}, after {:?}",
            object.path().display(),
            begin.elapsed()
        );
    }
    Ok(dispatcher)
}

/// The file system of the newest snapshot that is whole, in memory that is new. Nothing if there is none, or if there is memory that a server has
/// worked with: that is newer.
fn restored(
    snapshots: &mut Snapshots,
    object: Option<&Object>,
    memory: (&Arc<Memory>, &Arc<Memory>),
    config: &Config,
) -> Result<Option<Dispatcher>, StartError> {
    let begin = Instant::now();
    if let Some(header) = object.map(Object::header).filter(|header| header.starts > 0) {
        let newest = snapshots.newest_header()?;
        if let Some(other) =
            newest.filter(|newest| newest.identity.to_be_bytes() != header.identity.to_be_bytes())
        {
            log::warn!(
                "{}: it is of another memory, or of this one before it was restored: what goes on is the memory that is there",
                snapshots.file(other.number).display()
            );
        }
        return Ok(None);
    }
    let Some(contents) = snapshots.newest()? else { return Ok(None) };
    let (number, inodes) = (contents.header.number, contents.state.inodes.len());
    let path = snapshots.file(number);
    let (log, dirt) = match object {
        Some(object) => (Some(object.log()?.0), Some(object.dirt())),
        None => (None, None),
    };
    let state = restore(contents, snapshots.open(number)?, memory, dirt.as_ref())
        .map_err(|source| StartError::Restore { path: path.clone(), source })?;
    let kept = Kept { log, state: Some(state), dirt, starts: 1, clean: true };
    let identity = match object {
        Some(object) => object.header().identity.to_be_bytes(),
        None => random()?,
    };
    let memory = (Arc::clone(memory.0), Arc::clone(memory.1));
    let root = config.root;
    let dispatcher = Dispatcher::kept(memory, config.scrub, root, Arc::clone(&config.clock), kept)
        .map_err(|source| StartError::Damage { path: path.clone(), source })?
        .with_memory(Identity(identity), 1);
    log::info!("{}: restored, {inodes} inodes, after {:.1?}", path.display(), begin.elapsed());
    Ok(Some(dispatcher))
}

/// Checks that the file system of a directory has room for what its objects have not taken yet.
fn check_room<'a>(path: &Path, objects: impl Iterator<Item = &'a Object>) -> Result<(), StartError> {
    let lent = |object: &Object| {
        (object.arena.len() as u64 + object.table.len() as u64).saturating_sub(object.present)
    };
    let asked = objects.map(lent).sum();
    // What cannot tell has to be trusted.
    let Ok(there) = rustix::fs::statvfs(path) else { return Ok(()) };
    let bytes = there.f_bavail.saturating_mul(there.f_frsize);
    match bytes < asked {
        true => {
            Err(StartError::NotEnough { asked, bound: Bound { bytes, what: path.display().to_string() } })
        }
        false => Ok(()),
    }
}

/// For an identity that nothing else has.
fn random() -> Result<[u8; 16], StartError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| StartError::Random(io::Error::other(e.to_string())))?;
    Ok(bytes)
}

fn in_memory(bytes: u64) -> Result<usize, StartError> {
    usize::try_from(bytes).map_err(|_| StartError::NotEnough {
        asked: bytes,
        bound: Bound { bytes: usize::MAX as u64, what: "the address space".into() },
    })
}

fn check_memory(config: &Config, bound: Option<Bound>) -> Result<(), StartError> {
    let each = |export: &ExportConfig| export.arena_len().saturating_add(export.table_len());
    let asked = config.exports().iter().map(each).fold(0, u64::saturating_add);
    match bound {
        Some(bound) if bound.bytes < asked => Err(StartError::NotEnough { asked, bound }),
        _ => Ok(()),
    }
}

/// Makes the directory of a Unix socket, if just that one is missing.
fn make_socket_directories(listen: &[Address]) -> Result<(), StartError> {
    for address in listen {
        let Address::Unix(path) = address else { continue };
        let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { continue };
        match fs::create_dir(directory) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StartError::SocketDirectory { path: directory.to_owned(), source });
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_with_the_table() {
        let config = Config { inodes: Some(8), ..Config::new(1 << 20) };
        let bound = |bytes| Some(Bound { bytes, what: "the purse".into() });
        let needed = (1 << 20) + 8 * 128;
        assert!(check_memory(&config, None).is_ok());
        assert!(check_memory(&config, bound(needed)).is_ok());
        let error = check_memory(&config, bound(needed - 1)).unwrap_err();
        assert_eq!(error.to_string(), "cannot lend 1.0 MiB: the purse leaves 1.0 MiB");
        // All exports together.
        let twice = Config { exports: [config.exports(), config.exports()].concat(), ..config };
        assert!(check_memory(&twice, bound(2 * needed)).is_ok());
        assert!(check_memory(&twice, bound(2 * needed - 1)).is_err());
    }

    #[test]
    fn more_than_any_machine_has() {
        let error = Server::start(Config::new(1 << 60)).unwrap_err();
        assert!(matches!(error, StartError::NotEnough { .. }), "{error}");
        assert!(error.to_string().starts_with("cannot lend 1"), "{error}");
    }

    #[test]
    fn socket_directories() {
        let root = tempfile::tempdir().unwrap();
        let address = |path: &str| [Address::Unix(root.path().join(path))];
        make_socket_directories(&address("a/rfs.sock")).unwrap();
        assert!(root.path().join("a").is_dir());
        make_socket_directories(&address("a/rfs.sock")).unwrap();
        make_socket_directories(&address("b/c/rfs.sock")).unwrap_err();
        make_socket_directories(&[Address::Unix("rfs.sock".into())]).unwrap();
    }
}
