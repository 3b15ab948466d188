//! The host of a server: its options, keys, certificates and sockets.
//!
//! # Concurrency
//! The thread that starts the server. No locks.

use std::{collections::HashMap, fs::DirBuilder, io, os::unix::fs::DirBuilderExt, sync::Arc};

use rdmabox::{Address, Domain, Host, HostError, Limits, tls::TlsServer};

use crate::{
    memory_object::{
        object::ObjectStore,
        ownership::{self, OwnershipError},
        previous_clients::PreviousClients,
    },
    server::{config::Config, error::StartError},
    service::keys::Keys,
    session::access_mode::AccessMode,
};

/// Returns a host with the configured options, and the clients of previous servers.
pub(in crate::server) fn configure_host(
    config: &Config,
    store: Option<&ObjectStore>,
) -> Result<(Host, Arc<PreviousClients>), StartError> {
    let host = Host::new()?.rdma(config.rdma.clone()).fencing(config.fencing).engine_look(config.look);
    let host = host.any_local_user(config.allow_without_keys).allow_mixed_atomics(config.allow_mixed_atomics);
    let mut limits = Limits::default();
    limits.sessions_per_key = config.sessions_per_key;
    let host = host.limits(limits).socket_permissions(config.socket.mode, config.socket.group);
    Ok(match store {
        Some(store) => {
            let tethers = Arc::clone(store.tethers());
            let host = host.tether(move |process| tethers.descriptor(process.as_ref()));
            (host, Arc::clone(store.previous_clients()))
        }
        None => (host, Arc::default()),
    })
}

/// Makes the host ask for keys and speak TLS, if there are keys and certificates.
pub(in crate::server) fn secure_host(
    host: Host,
    keys: Option<&Arc<Keys>>,
    tls: Option<&Arc<TlsServer>>,
) -> Host {
    let host = match keys {
        Some(keys) => host.keys(Arc::<Keys>::clone(keys)),
        None => host,
    };
    match tls {
        Some(tls) => host.tls(Arc::clone(tls)),
        None => host,
    }
}

/// Returns a domain for each access right of a key.
pub(in crate::server) fn keyed_domains(host: &Host) -> Result<HashMap<AccessMode, Domain>, HostError> {
    let rights = [AccessMode::Read, AccessMode::Write].into_iter();
    rights.map(|rights| host.domain().map(|domain| (rights, domain))).collect()
}

/// Creates the directory of each Unix socket, if only its last component is missing, and checks its
/// owner.
pub(in crate::server) fn make_socket_directories(listen: &[Address]) -> Result<(), StartError> {
    for address in listen {
        let Address::Unix(path) = address else { continue };
        let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { continue };
        let failed = |source| StartError::SocketDirectory { path: directory.to_owned(), source };
        match DirBuilder::new().mode(0o755).create(directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(OwnershipError::Os(e)));
            }
            _ => ownership::check_socket_directory(directory).map_err(failed)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_directories() {
        let root = tempfile::tempdir().unwrap();
        let address = |path: &str| [Address::Unix(root.path().join(path))];
        make_socket_directories(&address("a/rfs.sock")).unwrap();
        assert!(root.path().join("a").is_dir());
        make_socket_directories(&address("a/rfs.sock")).unwrap();
        make_socket_directories(&address("b/c/rfs.sock")).unwrap_err();
        make_socket_directories(&[Address::Unix("rfs.sock".into())]).unwrap();
        // In a directory that all users write to, the sticky bit protects the sockets.
        let mode = std::os::unix::fs::PermissionsExt::from_mode;
        for (bits, passes) in [(0o777, false), (0o1777, true), (0o775, true)] {
            std::fs::set_permissions(root.path().join("a"), mode(bits)).unwrap();
            assert_eq!(make_socket_directories(&address("a/rfs.sock")).is_ok(), passes, "{bits:o}");
        }
    }
}
