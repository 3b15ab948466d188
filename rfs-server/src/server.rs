//! A running server: everything checked first, then memory, export by export, then sockets.
//!
//! Threading: [`Server::start`] returns once the server answers. Dropping the server ends all sessions, removes its
//! Unix sockets and joins its threads. It installs no signal handlers and prints nothing: that is the program's.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use rdmabox::{Access, Address, Host, HostError, Memory, MemoryError, Running, size};
use rfs_proto::{ServerStats, StatFs};

use crate::{
    config::{Config, MIN_MEMORY},
    dispatch::Dispatcher,
    export::ExportConfig,
    patience::{Alarm, Patience},
    prefault::Prefaulter,
    scrub::{Scrubber, Space},
    service::{FileService, Lent},
    stats,
    system::{self, Bound},
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
        "{address} can be reached from other machines, and this server cannot authenticate clients yet: whoever \
         connects can read and write everything; say --allow-remote-without-secret if that is what you want"
    )]
    Remote {
        /// The address.
        address: Address,
    },
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
    exports: Vec<Export>,
}

/// A file system that is lent, with the threads that work for it.
#[derive(Debug)]
struct Export {
    name: String,
    _prefaulter: Prefaulter,
    _scrubber: Scrubber,
    dispatcher: Arc<Dispatcher>,
}

impl Server {
    /// Starts a server: when this returns, clients can connect.
    pub fn start(config: Config) -> Result<Server, StartError> {
        config.check()?;
        check_memory(&config, system::available_memory())?;
        let host = Host::new()?.rdma(config.rdma.clone()).fencing(config.fencing);
        let alarm = Arc::<Alarm>::default();
        // All of the memory before any of it is touched, and before there are sockets.
        let made: Vec<Made> = config
            .exports()
            .into_iter()
            .map(|export| Made::new(&host, export, &config, &alarm))
            .collect::<Result<_, _>>()?;
        make_socket_directories(&config.listen)?;
        let (mut exports, mut lent) = (Vec::new(), Vec::new());
        for made in made {
            exports.push(made.work(&config)?);
            lent.push(made.lent);
        }
        let running = host.listen(&config.listen, Arc::new(FileService::new(lent)))?;
        let ender = running.ender();
        let end = move |session| {
            // It may have ended by itself meanwhile.
            ender.end(session, "it has not said in time that it keeps what has changed no longer");
        };
        let watched = exports.iter().map(|export| Arc::clone(&export.dispatcher)).collect();
        let patience = Patience::start(alarm, watched, config.patience(), end).map_err(StartError::Thread)?;
        Ok(Server { running, _patience: patience, exports })
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

    /// Ends all sessions and stops. Returns when no thread of it runs any more.
    pub fn shutdown(self) {}
}

/// An export whose memory is there.
struct Made {
    lent: Lent,
    space: Arc<Space>,
    arena: Arc<Memory>,
}

impl Made {
    fn new(
        host: &Host,
        export: ExportConfig,
        config: &Config,
        alarm: &Arc<Alarm>,
    ) -> Result<Made, StartError> {
        let memory = |what: &str, len| -> Result<Arc<Memory>, StartError> {
            Ok(Arc::new(Memory::shared(&format!("{}-{what}", export.name), in_memory(len)?)?))
        };
        let arena = memory("arena", export.arena_len())?;
        let table = memory("table", export.table_len())?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let arena_export = host.export(&arena, rights)?;
        let table_export = host.export(&table, rights | Access::REMOTE_ATOMIC)?;
        let space = Arc::new(Space::new(Arc::clone(&arena), config.scrub));
        // A table has a slot for the root, or the configuration would not have passed.
        let dispatcher = Dispatcher::new(Arc::clone(&space), table, export.root, Arc::clone(&config.clock))
            .map_err(|_| StartError::NoInodes)?
            .with_alarm(Arc::clone(alarm));
        let (name, dispatcher) = (export.name, Arc::new(dispatcher));
        let lent = Lent { name, dispatcher, arena: arena_export, table: table_export };
        Ok(Made { lent, space, arena })
    }

    /// Starts the threads that work for it.
    fn work(&self, config: &Config) -> Result<Export, StartError> {
        Ok(Export {
            name: self.lent.name.clone(),
            _scrubber: Scrubber::start(&self.space).map_err(StartError::Thread)?,
            _prefaulter: Prefaulter::start(&self.arena, config.prefault).map_err(StartError::Thread)?,
            dispatcher: Arc::clone(&self.lent.dispatcher),
        })
    }
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
