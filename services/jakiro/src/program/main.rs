//! `jakiro-server`: see `jakiro-server --help`.

mod memory;
mod status;

use std::{error::Error, process::ExitCode, sync::Arc};

use jakiro::{
    Server, ServerOptions, Store, StoreOptions,
    cli::{Cli, Command, ServeArgs},
    protocol,
    text::{TextOptions, TextServer, TextServerError},
};
use program_version::Build;
use rdmabox::Key;
use service_program::{StopSignals, say};

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("protocol", protocol::VERSION as u32), ("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    let cli = BUILD.parse::<Cli>();
    cli.log.start("info");
    let outcome = match (cli.command, cli.serve) {
        (Some(Command::Status(args)), _) => status::show(&args),
        (None, Some(args)) => serve(&args),
        (None, None) => Err("--memory and --listen are missing: see --help".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jakiro-server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal comes.
fn serve(args: &ServeArgs) -> Result<(), Box<dyn Error>> {
    let stop = StopSignals::take()?;
    memory::check(args.memory)?;
    let keys = args.key.iter().map(|path| Key::load(path)).collect::<Result<_, _>>()?;
    let store = StoreOptions::new(args.memory).partitions(args.threads()).max_value(args.max_value());
    let options = ServerOptions::new(store)
        .keys(keys)
        .allow_without_keys(args.allow_without_keys)
        .clients(args.clients)
        .poll(args.poll());
    let server = Server::listen(&args.listen, &options)?;
    let text = serve_text(args, server.store())?;
    server.addresses().iter().for_each(|address| say(&address.to_string()));
    text.iter().for_each(|text| say(&format!("text {}", text.address())));
    let (memory, partitions) = (byte_size::show(args.memory), server.store().partitions());
    say(&format!("ready: {memory} in {partitions} partitions"));
    stop.wait();
    let counters = server.store().counters();
    drop(text);
    drop(server);
    let (items, gets, stores) = (counters.items, counters.gets(), counters.stores);
    say(&format!("stopped: {items} items, {gets} gets, {stores} stores"));
    Ok(())
}

/// Starts the server of the text protocol, if there is an address for it.
fn serve_text(args: &ServeArgs, store: &Arc<Store>) -> Result<Option<TextServer>, TextServerError> {
    let Some(address) = &args.text else { return Ok(None) };
    let options = TextOptions::default()
        .allow_anyone(args.text_allow_anyone)
        .workers(args.text_threads())
        .max_connections(args.text_connections);
    TextServer::listen(address, &options, Arc::clone(store)).map(Some)
}
