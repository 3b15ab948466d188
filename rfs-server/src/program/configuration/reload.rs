//! SIGHUP: reads the options, the keys and the certificates again.
//!
//! A file of options that is invalid changes no option. Keys and certificates are read again
//! nevertheless, from the files that the server uses: a removed key ends its sessions. Each changed
//! option is applied, or needs a restart, and the log says which. Options that need a restart are
//! named at each SIGHUP until then.
//!
//! # Concurrency
//! The main thread, between two signals.

use option_file::{Change, NewOptions};
use rfs_status::logging::{self, SIGNAL};

use super::{Configuration, check::expiry_warning};
use crate::{program::cli::Cli, server::Server};

/// Reads everything again that can change while the server runs.
pub(in crate::program) fn reload(server: &Server, configuration: Option<&mut Configuration>) {
    if let Some(configuration) = configuration.filter(|configuration| configuration.has_file()) {
        reload_options(server, configuration);
    }
    reload_keys(server);
    reload_certificates(server);
}

/// Reads the file of options again. An invalid file changes no option.
fn reload_options(server: &Server, configuration: &mut Configuration) {
    let refuse = |why: String| {
        log::error!(
            target: SIGNAL,
            "the options stay as they were, and only keys and certificates are read again: {why}"
        );
    };
    let new = match configuration.read_again() {
        Ok(new) => new,
        Err(e) => return refuse(e.one_line()),
    };
    if !new.options.pool.store
        && let Err(e) = new.options.clone().into_config().check()
    {
        return refuse(e.to_string());
    }
    if new.changes.is_empty() {
        log::info!("SIGHUP: no option has changed");
    }
    for change in &new.changes {
        match apply(server, &new, change) {
            Ok(true) => {
                configuration.applied(change, &new);
                log::info!("SIGHUP: {change}: applied");
            }
            Ok(false) => log::warn!(target: SIGNAL, "SIGHUP: {change}: needs a restart of the server"),
            Err(e) => log::error!(target: SIGNAL, "SIGHUP: {change}: not applied: {e}"),
        }
    }
}

/// Applies a changed option. Returns false if that needs a restart.
///
/// # Errors
/// The reason why the option stays as it was.
fn apply(server: &Server, new: &NewOptions<Cli>, change: &Change) -> Result<bool, String> {
    let cli = &new.options;
    match change.key.as_str() {
        "keys" => match (&cli.access.keys, &change.old) {
            // A server without keys has no domains for them.
            (Some(path), Some(_)) => {
                server.use_keys(path).map(|count| count.is_some()).map_err(|e| e.to_string())
            }
            _ => Ok(false),
        },
        "log-format" => {
            logging::set_format(cli.log_format);
            Ok(true)
        }
        // Their values of the command line and of the file are in the new options, too.
        "memory" | "export" => server.resize_exports(&cli.clone().into_config().exports()),
        "persist-every" if cli.snapshots.persist.is_some() => {
            Ok(server.set_snapshot_interval(cli.snapshots.persist_every.interval()))
        }
        _ => Ok(false),
    }
}

/// Reads the keys again. A mistake in their file does not affect the certificates.
fn reload_keys(server: &Server) {
    match server.reload_keys() {
        Ok(Some(count)) => log::info!("reloaded {count} keys"),
        Ok(None) => log::info!("SIGHUP: the server has no key file to reload"),
        Err(e) => log::error!(target: SIGNAL, "the keys stay as they were: {e}"),
    }
}

fn reload_certificates(server: &Server) {
    match server.reload_certificates() {
        Ok(true) => {
            log::info!("reloaded the certificates");
            warn_of_expiry(server);
        }
        Ok(false) => {}
        Err(e) => log::error!(target: SIGNAL, "the certificates stay as they were: {e}"),
    }
}

/// Warns if the server's certificate has expired, or expires soon.
pub(in crate::program) fn warn_of_expiry(server: &Server) {
    if let Some(warning) = expiry_warning(server.certificate_expiry()) {
        log::warn!(target: SIGNAL, "{warning}");
    }
}
