//! `rfs-paging nbd`: serves memory of lenders as a block device.
//!
//! # Concurrency
//! One thread waits for signals. The server has its own.

use std::error::Error;

use rfs_paging::{RemotePager, nbd::NbdServer};
use service_program::{StopSignals, say};

use rfs_paging::cli::NbdOptions;

/// Serves until a signal comes.
pub(crate) fn serve(options: &NbdOptions) -> Result<(), Box<dyn Error>> {
    let stop = StopSignals::take()?;
    let pager = RemotePager::connect(&options.pager.server, super::pager_options(&options.pager)?)?;
    let memory = pager.map(usize::try_from(options.size)?)?;
    let server = NbdServer::listen(&options.listen, &options.name, memory)?;
    say(&format!("ready: serving {} at {}", byte_size::show(options.size), server.address()));
    stop.wait();
    Ok(())
}
