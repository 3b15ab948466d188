//! The greeting of a mount that works.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use sd_notify::NotifyState;

use super::{
    error::{RunError, os},
    service_manager::notify_manager,
};
use crate::{
    cli::Args,
    daemon,
    mount::{self, ActiveMount, ProbeAction},
};
use rfs_client::Client;
use rfs_status::logging;

/// Says in the log that this process continues a mount.
pub(super) fn announce_again(args: &Args, mounted: &ActiveMount) {
    if args.detached && args.log_file.is_none() {
        // Without a system's log there is no place for messages.
        logging::log_to_syslog("rfs-fuse").ok();
    }
    if let Some(path) = &args.log_file
        && let Err(e) = daemon::log_to(path)
    {
        log::warn!("cannot write to the log file: {e}");
    }
    if args.detached
        && let Err(e) = daemon::detach(args.log_file.as_deref())
    {
        log::warn!("cannot go to the background: {e}");
    }
    log::warn!("the program of {} had ended: this process continues", mounted.path().display());
}

/// Waits until the mount answers, and prints the greeting.
pub(super) fn announce(
    args: &Args,
    mounted: &ActiveMount,
    client: Option<&Arc<Client>>,
) -> Result<(), RunError> {
    let limit = args.session_options().operation_timeout + Duration::from_secs(1);
    let dead = |why: String| RunError::Dead { path: mounted.path().to_owned(), why };
    if let Some(path) = mounted.visible_path() {
        match mount::look(path, ProbeAction::Directory, limit) {
            Some(Ok(())) => {}
            Some(Err(e)) if mounted.may_refuse(&e) => log::debug!("cannot look at the mount: {e}"),
            Some(Err(e)) => return Err(dead(e.to_string())),
            None => return Err(dead("no answer".into())),
        }
    }
    if let Err(e) = mounted.set_readahead(args.settings().max_readahead) {
        log::debug!("the kernel keeps its read-ahead of 128 KiB: {e}");
    }
    let log_to_file = || match &args.log_file {
        Some(path) => daemon::log_to(path).map_err(os("cannot write to the log file")),
        None => Ok(()),
    };
    // Standard output has the counters only, so that a parser can read all of it.
    let greets_on_stderr = args.stats_on_exit && !args.detached;
    // A program that has read the greeting finds later messages in the log file. That file replaces
    // standard error.
    if !greets_on_stderr {
        log_to_file()?;
    }
    // The foreground process waits for the line, and decides whether to print it.
    if args.detached || !args.quiet {
        let over = client.map_or_else(|| "own memory".to_owned(), |client| client.description());
        let (source, path) = (args.source(), mounted.path().display());
        let greeting = format!("rfs-fuse: {source} is mounted on {path} ({over})\n");
        let printed = match greets_on_stderr {
            true => io::stderr().write_all(greeting.as_bytes()),
            false => {
                let mut out = io::stdout().lock();
                out.write_all(greeting.as_bytes()).and_then(|()| out.flush())
            }
        };
        // If the output is closed, the line has no place to go.
        printed.ok();
    }
    notify_manager(NotifyState::Ready);
    if args.detached && args.log_file.is_none() {
        // Without a system's log there is no place for messages.
        logging::log_to_syslog("rfs-fuse").ok();
    }
    if args.detached {
        daemon::detach(args.log_file.as_deref()).map_err(os("cannot go to the background"))?;
    }
    if greets_on_stderr {
        log_to_file()?;
    }
    Ok(())
}
