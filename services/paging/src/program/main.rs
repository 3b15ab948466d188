//! `rfs-paging`: see `rfs-paging --help`.

mod nbd;
mod run;
mod status;
mod swap;

use std::{
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
};

use program_version::Build;
use rdmabox::{Address, Key, SessionOptions};
use rfs_paging::{
    Lender, LenderOptions, PROTOCOL, PagerOptions,
    cli::{Cli, Command, PagerArgs},
};
use service_program::{StopSignals, say};

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("protocol", PROTOCOL), ("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    let cli = BUILD.parse::<Cli>();
    cli.log.start("info");
    let outcome = match cli.command {
        Command::Lend { memory, listen, key, allow_without_keys } => {
            lend(memory, &listen, &key, allow_without_keys)
        }
        Command::Status { address: Some(address), key, json } => status::lender(&address, key, json),
        Command::Status { address: None, json, .. } => status::pagers(json),
        Command::Run(options) => run::run(options),
        Command::Swapon(options) => swap::on(&options),
        Command::Swapoff => swap::off(),
        Command::Nbd(options) => nbd::serve(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rfs-paging: {error}");
            ExitCode::FAILURE
        }
    }
}

fn lend(memory: u64, listen: &[Address], keys: &[PathBuf], open: bool) -> Result<(), Box<dyn Error>> {
    let keys = keys.iter().map(|path| Key::load(path)).collect::<Result<_, _>>()?;
    let options = LenderOptions::new(memory).keys(keys).allow_without_keys(open);
    let stop = StopSignals::take()?;
    let lender = Lender::listen(listen, &options)?;
    lender.addresses().iter().for_each(|address| say(&address.to_string()));
    let status = lender.status();
    say(&format!("ready: lending {}", byte_size::show(u64::from(status.chunks) * status.chunk_bytes)));
    stop.wait();
    Ok(())
}

/// Returns the options of sessions with a key from a file.
fn session_options(key: Option<&Path>) -> Result<SessionOptions, Box<dyn Error>> {
    let mut options = SessionOptions::default();
    options.key = key.map(Key::load).transpose()?;
    Ok(options)
}

/// Returns the options of a pager from the command line.
fn pager_options(options: &PagerArgs) -> Result<PagerOptions, Box<dyn Error>> {
    let mut session = session_options(options.key.as_deref())?;
    options.switches.apply(&mut session);
    Ok(PagerOptions::new(options.local).redundancy(options.redundancy()).session(session))
}
