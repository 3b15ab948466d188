//! `rfs-paging`: see `rfs-paging --help`.

mod nbd;
mod run;
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
    lender_status,
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
        Command::Status { address, key } => status(&address, key),
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
    Ok(PagerOptions::new(options.local).redundancy(options.redundancy).session(session))
}

fn status(address: &Address, key: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let status = lender_status(address, &session_options(key.as_deref())?)?;
    let size = |chunks: u32| byte_size::show(u64::from(chunks) * status.chunk_bytes);
    say(&format!("{} of {} lent", size(status.chunks - status.free_chunks), size(status.chunks)));
    for (session, chunks) in &status.borrowers {
        say(&format!("session {session}: {}", size(*chunks)));
    }
    Ok(())
}
