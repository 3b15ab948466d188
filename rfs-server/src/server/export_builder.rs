//! Builds the file system of an export: in new memory, over the memory of a previous server, or
//! from a snapshot.
//!
//! # Concurrency
//! The thread that starts the server; nothing else uses the export yet.

use std::{collections::HashMap, io, path::Path, sync::Arc, time::Instant};

use rdmabox::{
    Access, Domain, Host, HostError, Memory,
    memory::{MemoryBound, available_memory},
};
use rfs_proto::Identity;

use super::{
    config::Config,
    error::StartError,
    export_config::ExportConfig,
    log_compactor::LogCompactor,
    prefault::{Prefault, Prefaulter},
    running_export::Export,
    stores::{PoolStores, StoresError, start_drainer, start_fencer, start_newcomers, start_watch},
};
use crate::{
    coherence::alarm::Alarm,
    dispatch::{Dispatcher, RecoveredState},
    memory_object::{object::Object, previous_clients::PreviousClients},
    metadata::root::Root,
    service::{DEFAULT_LEASE, ExportRegions, ServedExport},
    session::access_mode::AccessMode,
    snapshots::{directory::Snapshots, restore::restore},
    space::{account::Space, bytes::Bytes, eviction::Evictor, zeroer::Zeroer},
};

/// Sources of an export's file system.
pub(super) struct Sources<'a> {
    pub(super) object: Option<Arc<Object>>,
    pub(super) snapshots: Option<&'a mut Snapshots>,
    /// Stores that lend memory to the export.
    pub(super) stores: Option<Arc<PoolStores>>,
}

/// An export whose memory is mapped.
pub(super) struct BuiltExport {
    pub(super) lent: ServedExport,
    space: Arc<Space>,
    arena: Arc<Memory>,
    object: Option<Arc<Object>>,
    stores: Option<Arc<PoolStores>>,
}

impl BuiltExport {
    pub(super) fn new(
        host: &Host,
        export: &ExportConfig,
        domains: &HashMap<AccessMode, Domain>,
        (config, from): (&Config, Sources<'_>),
        alarm: &Arc<Alarm>,
    ) -> Result<BuiltExport, StartError> {
        let memory = |what: &str, len| -> Result<Arc<Memory>, StartError> {
            let memory = Memory::shared(&format!("{}-{what}", export.name), in_memory(len)?)?;
            // Without a reservation, a page that cannot be allocated later kills the server.
            if config.prefault != Prefault::Never {
                memory.reserve()?;
            }
            Ok(Arc::new(memory))
        };
        let Sources { object, snapshots, stores } = from;
        let (arena, table) = match &object {
            Some(object) => (Arc::clone(&object.arena), Arc::clone(&object.table)),
            None => (memory("arena", export.arena_len())?, memory("table", export.table_len())?),
        };
        let sums = match &object {
            Some(object) => object.sums.clone(),
            None => config.checksum.then(|| memory("sums", export.sums_len())).transpose()?,
        };
        let bytes = Bytes::new(Arc::clone(&arena), sums.clone());
        let reach = |domain, rights| reach(host, domain, rights, (&arena, &table, sums.as_ref()));
        let open = reach(Domain::default(), AccessMode::Write)?;
        let keyed = domains.iter().map(|(rights, domain)| Ok((*rights, reach(*domain, *rights)?)));
        let keyed = keyed.collect::<Result<_, HostError>>()?;
        let clock = Arc::clone(&config.clock);
        let persisted = snapshots.is_some();
        let restored = match snapshots {
            Some(snapshots) => restored(snapshots, object.as_deref(), (&bytes, &table), config)?,
            None => None,
        };
        let dispatcher = match (&object, restored) {
            (_, Some(dispatcher)) => dispatcher,
            (Some(object), None) => take_over(object, config, export.root)?,
            (None, None) => {
                let space = Arc::new(new_space(bytes, stores.as_ref(), config)?);
                // The table has a slot for the root; the configuration was checked.
                Dispatcher::new(space, table, export.root, clock)
                    .map_err(|_| StartError::NoInodes)?
                    .with_memory(Identity(random()?), 1)
            }
        };
        let dispatcher = dispatcher.with_alarm(Arc::clone(alarm)).with_eviction(export.eviction);
        let dispatcher = if persisted { dispatcher.with_snapshots() } else { dispatcher };
        let space = Arc::clone(dispatcher.space());
        let (name, dispatcher) = (export.name.clone(), Arc::new(dispatcher));
        let lent = ServedExport { name, dispatcher, open, keyed };
        Ok(BuiltExport { lent, space, arena, object, stores })
    }

    /// Starts the threads of the export. `all`: the dispatchers of all exports. `previous_clients`:
    /// the clients of previous servers that may still write.
    pub(super) fn work(
        &self,
        config: &Config,
        all: &Arc<[Arc<Dispatcher>]>,
        previous_clients: &Arc<PreviousClients>,
    ) -> Result<Export, StartError> {
        if let Some(object) = &self.object {
            object.begin();
        }
        let grace = config.fencing.lease.unwrap_or(DEFAULT_LEASE);
        let log_compactor = || {
            let deadline = Instant::now() + grace;
            LogCompactor::start(
                &self.lent.dispatcher,
                deadline,
                Arc::clone(previous_clients),
                config.fencing.kill,
            )
            .map_err(StartError::Thread)
        };
        let watch = self.stores.as_ref().map(|stores| start_watch(stores, &self.lent.dispatcher));
        let fencer = self.stores.as_ref().map(|_| start_fencer(&self.lent.dispatcher));
        let newcomers = self.stores.as_ref().map(|stores| start_newcomers(stores, &self.lent.dispatcher));
        let drainer = self.stores.as_ref().map(|stores| start_drainer(stores, &self.lent.dispatcher));
        Ok(Export {
            _newcomers: newcomers.transpose().map_err(StartError::Thread)?.flatten(),
            _drainer: drainer.transpose().map_err(StartError::Thread)?,
            log_compactor: self.object.as_ref().map(|_| log_compactor()).transpose()?,
            object: self.object.clone(),
            name: self.lent.name.clone(),
            evictor: self.start_evictor().map_err(StartError::Thread)?,
            _zeroer: Zeroer::start(&self.space).map_err(StartError::Thread)?,
            _store_watch: watch.transpose().map_err(StartError::Thread)?,
            _fencer: fencer.transpose().map_err(StartError::Thread)?,
            stores: self.stores.clone(),
            _prefaulter: Prefaulter::start(&self.arena, config.prefault, Arc::clone(all))
                .map_err(StartError::Thread)?,
            dispatcher: Arc::clone(&self.lent.dispatcher),
        })
    }
}

impl BuiltExport {
    /// Starts the thread that evicts files, if the export has eviction.
    fn start_evictor(&self) -> io::Result<Option<Evictor>> {
        let dispatcher = Arc::clone(&self.lent.dispatcher);
        let start = |eviction| Evictor::start(eviction, move || dispatcher.evictions().run());
        self.lent.dispatcher.eviction().map(start).transpose()
    }
}

/// Returns the space of a new file system: the arena, and the stores if there are any.
fn new_space(bytes: Bytes, stores: Option<&Arc<PoolStores>>, config: &Config) -> Result<Space, StoresError> {
    let space = Space::new(bytes, config.zeroing);
    let Some((stores, of)) = stores.zip(config.stores.as_ref()) else { return Ok(space) };
    let lent = Arc::<PoolStores>::clone(stores);
    // The lengths were checked when the stores joined.
    let unusable = || StoresError::NoNumber;
    let space = space.with_stores(lent, stores.lengths(), of.unit).ok_or_else(unusable)?;
    stores.draining().into_iter().for_each(|number| space.drain_store(number, true));
    Ok(space)
}

/// Registers arena, table and checksums in a domain, with the rights that its sessions have.
fn reach(
    host: &Host,
    domain: Domain,
    rights: AccessMode,
    (arena, table, sums): (&Arc<Memory>, &Arc<Memory>, Option<&Arc<Memory>>),
) -> Result<ExportRegions, HostError> {
    let write = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (data, records) = match rights {
        AccessMode::Read => (Access::REMOTE_READ, Access::REMOTE_READ),
        // Only the server changes bytes with checksums.
        AccessMode::Write if sums.is_some() => (Access::REMOTE_READ, write | Access::REMOTE_ATOMIC),
        AccessMode::Write => (write, write | Access::REMOTE_ATOMIC),
    };
    Ok(ExportRegions {
        arena: host.export_in(domain, arena, data)?,
        table: host.export_in(domain, table, records)?,
        sums: sums.map(|sums| host.export_in(domain, sums, Access::REMOTE_READ)).transpose()?,
    })
}

/// Returns the file system of a memory object.
fn take_over(object: &Object, config: &Config, root: Root) -> Result<Dispatcher, StartError> {
    let begin = Instant::now();
    let (header, kept) = (object.header(), RecoveredState::of(object)?);
    let (starts, inodes) = (kept.starts, kept.state.as_ref().map(|state| state.inodes.len()));
    let bytes = Bytes::new(Arc::clone(&object.arena), object.sums.clone());
    let memory = (bytes, Arc::clone(&object.table));
    let dispatcher = Dispatcher::kept(memory, config.zeroing, root, Arc::clone(&config.clock), kept)
        .map_err(|source| StartError::Damage { path: object.path().to_owned(), source })?
        .with_memory(Identity(header.identity.to_be_bytes()), starts);
    if let Some(inodes) = inodes {
        let how = if header.clean { "" } else { ", left by a server that did not end in order" };
        log::info!("{}: {inodes} inodes{how}, after {:?}", object.path().display(), begin.elapsed());
    }
    Ok(dispatcher)
}

/// Restores the newest complete snapshot into new memory. Returns `None` if there is no snapshot,
/// or if a server has used the object: its memory takes precedence over snapshots.
fn restored(
    snapshots: &mut Snapshots,
    object: Option<&Object>,
    memory: (&Bytes, &Arc<Memory>),
    config: &Config,
) -> Result<Option<Dispatcher>, StartError> {
    let begin = Instant::now();
    if let Some(object) = object.filter(|object| object.header().starts > 0) {
        let header = object.header();
        let newest = snapshots.newest_header()?;
        if let Some(other) =
            newest.filter(|newest| newest.identity.to_be_bytes() != header.identity.to_be_bytes())
        {
            log::warn!(
                "{}: ignored: a snapshot of another memory, or of this one before a restore. The server continues \
                 with {}; to start from the snapshot, stop the server, move that directory away, and start again",
                snapshots.file(other.number).display(),
                object.path().display()
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
    let kept = RecoveredState { log, state: Some(state), dirt, starts: 1, clean: true };
    let identity = match object {
        Some(object) => object.header().identity.to_be_bytes(),
        None => random()?,
    };
    let memory = (memory.0.clone(), Arc::clone(memory.1));
    let root = config.root;
    let dispatcher = Dispatcher::kept(memory, config.zeroing, root, Arc::clone(&config.clock), kept)
        .map_err(|source| StartError::Damage { path: path.clone(), source })?
        .with_memory(Identity(identity), 1);
    log::info!("{}: restored, {inodes} inodes, after {:.1?}", path.display(), begin.elapsed());
    Ok(Some(dispatcher))
}

/// Reserves the space of the objects of a directory in its file system. First checks that there is
/// enough, because the kernel kills processes before it refuses memory.
pub(super) fn reserve(path: &Path, objects: &[&Object]) -> Result<(), StartError> {
    let asked = objects.iter().map(|object| object.len.saturating_sub(object.present)).sum();
    let mut bounds = Vec::new();
    if let Ok(there) = rustix::fs::statvfs(path) {
        let bytes = there.f_bavail.saturating_mul(there.f_frsize);
        bounds.push(MemoryBound { bytes, what: format!("space in --memory-dir {}", path.display()) });
    }
    if is_memory(path) {
        bounds.extend(available_memory());
    } else {
        log::warn!(
            "--memory-dir {}: not on a tmpfs or hugetlbfs, so the kernel writes the memory to a disk: use a directory \
             on a tmpfs, such as /dev/shm",
            path.display()
        );
    }
    if let Some(bound) =
        bounds.into_iter().filter(|bound| bound.bytes < asked).min_by_key(|bound| bound.bytes)
    {
        return Err(StartError::NotEnough { asked, bound });
    }
    for object in objects {
        object.reserve().map_err(|source| StartError::Reserve { path: object.path().to_owned(), source })?;
    }
    Ok(())
}

/// Returns true if a file system keeps its files in memory.
fn is_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;
    let magics = [TMPFS_MAGIC, HUGETLBFS_MAGIC];
    rustix::fs::statfs(path).is_ok_and(|system| magics.contains(&system.f_type))
}

/// Returns a random identity.
fn random() -> Result<[u8; 16], StartError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| StartError::Random(io::Error::other(e.to_string())))?;
    Ok(bytes)
}

fn in_memory(bytes: u64) -> Result<usize, StartError> {
    usize::try_from(bytes).map_err(|_| StartError::NotEnough {
        asked: bytes,
        bound: MemoryBound { bytes: usize::MAX as u64, what: "the address space".into() },
    })
}
