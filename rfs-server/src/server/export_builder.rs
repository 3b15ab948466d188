//! Builds the file system of an export: in new memory, over the memory of a previous server, or
//! from a snapshot.
//!
//! # Concurrency
//! The thread that starts the server; nothing else uses the export yet.

use std::{collections::HashMap, io, path::Path, sync::Arc, time::Instant};

use rdmabox::{Access, Address, Domain, Host, HostError, Memory, memory::MemoryBound};
use rfs_proto::Identity;

use super::{
    config::Config,
    error::StartError,
    export_config::ExportConfig,
    log_compactor::LogCompactor,
    prefault::{Prefault, Prefaulter},
    running_export::{Export, ExportSize, check_bounds, is_memory},
    stores::{PoolStores, StoresError, start_drainer, start_fencer, start_newcomers, start_watcher},
};
use crate::{
    coherence::alarm::Alarm,
    dispatch::{Dispatcher, RecoveredState},
    memory_object::{object::Object, previous_clients::PreviousClients, replay::State},
    service::{DEFAULT_LEASE, ExportRegions, ServedExport},
    session::access_mode::AccessMode,
    snapshots::{directory::Snapshots, restore::restore},
    space::{
        account::{Space, TooSmall},
        bytes::Bytes,
        eviction::Evictor,
        zeroer::Zeroer,
    },
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
    size: ExportSize,
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
        let Sources { object, snapshots, stores } = from;
        let (arena, table, sums) = memories(export, config, object.as_deref())?;
        let bytes = Bytes::new(Arc::clone(&arena), sums.clone());
        let reach = |domain, rights| reach(host, domain, rights, (&arena, &table, sums.as_ref()));
        let open = reach(Domain::default(), AccessMode::Write)?;
        let keyed = domains.iter().map(|(rights, domain)| Ok((*rights, reach(*domain, *rights)?)));
        let keyed = keyed.collect::<Result<_, HostError>>()?;
        let clock = Arc::clone(&config.clock);
        let persisted = snapshots.is_some();
        let restored = match snapshots {
            Some(snapshots) => restored(snapshots, object.as_deref(), (&bytes, &table), (config, export))?,
            None => None,
        };
        let dispatcher = match (&object, restored) {
            (_, Some(dispatcher)) => dispatcher,
            (Some(object), None) => take_over(object, config, export)?,
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
        let size = export_size(dispatcher.space(), config, object.is_some());
        if grows(export) {
            fit(&size, export, object.as_deref())?;
        }
        let (name, dispatcher) = (export.name.clone(), Arc::new(dispatcher));
        let lent = ServedExport { name, dispatcher, open, keyed };
        Ok(BuiltExport { lent, size, object, stores })
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
        let watch = self.stores.as_ref().map(|stores| start_watcher(stores, &self.lent.dispatcher));
        let fencer = self.stores.as_ref().map(|_| start_fencer(&self.lent.dispatcher));
        let newcomers = self.stores.as_ref().map(|stores| start_newcomers(stores, &self.lent.dispatcher));
        let drainer = self.stores.as_ref().map(|stores| start_drainer(stores, &self.lent.dispatcher));
        Ok(Export {
            _newcomers: newcomers.transpose().map_err(StartError::Thread)?.flatten(),
            _drainer: drainer.transpose().map_err(StartError::Thread)?,
            log_compactor: self.object.as_ref().map(|_| log_compactor()).transpose()?,
            object: self.object.clone(),
            name: self.lent.name.clone(),
            size: self.size.clone(),
            evictor: self.start_evictor().map_err(StartError::Thread)?,
            _zeroer: Zeroer::start(&self.size.space).map_err(StartError::Thread)?,
            _store_watch: watch.transpose().map_err(StartError::Thread)?,
            _fencer: fencer.transpose().map_err(StartError::Thread)?,
            stores: self.stores.clone(),
            _prefaulter: Prefaulter::start(&self.size.space, config.prefault, Arc::clone(all))
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

/// Returns true if the export can be larger than it is at the start.
fn grows(export: &ExportConfig) -> bool {
    export.arena_len() > export.size()
}

/// Arena, table and checksums.
type Memories = (Arc<Memory>, Arc<Memory>, Option<Arc<Memory>>);

/// Returns the memory of an export: that of the memory object, or new memory.
fn memories(export: &ExportConfig, config: &Config, object: Option<&Object>) -> Result<Memories, StartError> {
    if let Some(object) = object {
        return Ok((Arc::clone(&object.arena), Arc::clone(&object.table), object.sums.clone()));
    }
    let memory = |what: &str, len, is_whole: bool| -> Result<Arc<Memory>, StartError> {
        let memory = Memory::shared(&format!("{}-{what}", export.name), in_memory(len)?)?;
        // Without a reservation, a page that cannot be allocated later kills the server.
        if is_whole && config.prefault != Prefault::Never {
            memory.reserve()?;
        }
        Ok(Arc::new(memory))
    };
    let sums = config.checksum.then(|| memory("sums", export.sums_len(), true)).transpose()?;
    let arena = memory("arena", export.arena_len(), !grows(export))?;
    Ok((arena, memory("table", export.table_len(), true)?, sums))
}

/// Returns the handle that changes the size of an export.
fn export_size(space: &Arc<Space>, config: &Config, is_object: bool) -> ExportSize {
    let is_rdma = |address: &Address| matches!(address, Address::Rdma { .. });
    ExportSize {
        space: Arc::clone(space),
        reserves: is_object || config.prefault != Prefault::Never,
        memory_dir: config.memory_dir.clone(),
        is_pinned: config.listen.iter().any(is_rdma),
    }
}

/// Gives an export that can grow the size that it has at the start, and reserves its memory.
fn fit(of: &ExportSize, export: &ExportConfig, object: Option<&Object>) -> Result<(), StartError> {
    let fitted = of.space.resize(export.size(), |_| Ok(()));
    fitted.map_err(|TooSmall { least, quarantined }| too_small(export, least, quarantined))?;
    if !of.reserves {
        return Ok(());
    }
    of.space.reserve().map_err(|source| match object {
        Some(object) => StartError::Reserve { path: object.path().to_owned(), source },
        None => StartError::Memory(source),
    })
}

fn too_small(export: &ExportConfig, least: u64, quarantined: u64) -> StartError {
    StartError::TooSmall { name: export.name.clone(), asked: export.size(), least, quarantined }
}

/// Checks that the files of a state fit in an export, before anything is changed.
fn check_files(state: &State, export: &ExportConfig) -> Result<(), StartError> {
    match RecoveredState::bytes_of_files(state) {
        used if used > export.size() && grows(export) => Err(too_small(export, used, 0)),
        _ => Ok(()),
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
fn take_over(object: &Object, config: &Config, export: &ExportConfig) -> Result<Dispatcher, StartError> {
    let begin = Instant::now();
    let (header, kept) = (object.header(), RecoveredState::of(object)?);
    kept.state.as_ref().map_or(Ok(()), |state| check_files(state, export))?;
    let (starts, inodes) = (kept.starts, kept.state.as_ref().map(|state| state.inodes.len()));
    let bytes = Bytes::new(Arc::clone(&object.arena), object.sums.clone());
    let memory = (bytes, Arc::clone(&object.table));
    let dispatcher = Dispatcher::kept(memory, config.zeroing, export.root, Arc::clone(&config.clock), kept)
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
    (config, export): (&Config, &ExportConfig),
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
    check_files(&contents.state, export)?;
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
/// enough, because the kernel kills processes before it refuses memory. The arena of an export that
/// can grow is reserved when it is known which parts of it files have.
pub(super) fn reserve(path: &Path, objects: &[(&Object, &ExportConfig)]) -> Result<(), StartError> {
    let each = |(object, export): &(&Object, &ExportConfig)| {
        let needed = object.len - (export.arena_len() - export.size());
        needed.saturating_sub(object.present)
    };
    let asked = objects.iter().map(each).sum();
    if !is_memory(path) {
        log::warn!(
            "--memory-dir {}: not on a tmpfs or hugetlbfs, so the kernel writes the memory to a disk: use a directory \
             on a tmpfs, such as /dev/shm",
            path.display()
        );
    }
    check_bounds(Some(path), asked).map_err(|bound| StartError::NotEnough { asked, bound })?;
    for (object, export) in objects {
        object
            .reserve(!grows(export))
            .map_err(|source| StartError::Reserve { path: object.path().to_owned(), source })?;
    }
    Ok(())
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
