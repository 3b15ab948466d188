//! `--check-config`: the checks of a start that take no memory and no port.
//!
//! # Concurrency
//! The main thread. Reads files, and changes nothing.

use std::{
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rdmabox::{Key, memory::available_memory, tls::TlsServer};
use rfs_status::expiry;

use crate::{
    memory_object::ownership::{OwnershipError, open_directory},
    program::{cli::Cli, lend::LendError},
    server::{Config, StartError, check_memory, stores},
    service::keys,
};

/// Reason why a server would not start with some options.
#[derive(Debug, thiserror::Error)]
pub(in crate::program) enum CheckError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    PoolKey(#[from] rdmabox::KeyFileError),
    #[error(transparent)]
    Lend(#[from] LendError),
    #[error("{option} {path}: {source}", path = path.display())]
    Directory { option: &'static str, path: PathBuf, source: OwnershipError },
}

/// Checks the options of a server. Returns warnings: the server might not start, or not for long.
///
/// # Errors
/// The first check that fails.
pub(in crate::program) fn check(cli: &Cli) -> Result<Vec<String>, CheckError> {
    if cli.pool.store {
        cli.pool.pool_key.as_deref().map(Key::load).transpose()?;
        return Ok(Vec::new());
    }
    let config = cli.clone().into_config();
    config.check()?;
    let mut warnings = Vec::new();
    let exports = config.exports();
    let names: Vec<&str> = exports.iter().map(|export| export.name.as_str()).collect();
    if let Some(path) = &config.keys {
        keys::read(path, &names).map_err(StartError::from)?;
    }
    if let Some(files) = config.tls.clone() {
        let tls = TlsServer::load(files).map_err(StartError::from)?;
        warnings.extend(expiry_warning(tls.expiry()));
    }
    if let Some(pool) = &config.stores {
        stores::check(pool).map_err(StartError::from)?;
    }
    cli.lending.check(&cli.listening.listen, cli.access.allow_without_keys)?;
    check_directory("--memory-dir", config.memory_dir.as_deref())?;
    check_directory("--persist", config.persist.as_ref().map(|persist| persist.dir.as_path()))?;
    warnings.extend(memory_warning(&config));
    Ok(warnings)
}

/// Returns a warning if the server's certificate has expired, or expires soon.
pub(super) fn expiry_warning(end: Option<SystemTime>) -> Option<String> {
    let next_step = "renew it, then send SIGHUP to rfs-server";
    expiry::warning("--tls-cert", end?, SystemTime::now(), next_step)
}

/// Checks a directory that a server opens, or creates in a directory that is there.
fn check_directory(option: &'static str, path: Option<&Path>) -> Result<(), CheckError> {
    let Some(path) = path else { return Ok(()) };
    let failed = |source| CheckError::Directory { option, path: path.to_owned(), source };
    match open_directory(path) {
        Ok(_) => Ok(()),
        Err(OwnershipError::Os(e)) if e.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            open_directory(above).map(drop).map_err(failed)
        }
        Err(e) => Err(failed(e)),
    }
}

/// Returns a warning if the memory is not free now: a server that runs may have it.
fn memory_warning(config: &Config) -> Option<String> {
    check_memory(config, available_memory()).err().map(|e| format!("{e} now, which a running server may use"))
}
