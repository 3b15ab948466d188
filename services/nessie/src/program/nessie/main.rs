//! `nessie`: see `nessie --help`.

use std::{
    error::Error,
    io::{self, ErrorKind, Read, Write},
    process::ExitCode,
};

use nessie::{
    Command,
    cli::client::{Action, Cli},
};
use program_version::Build;
use rdmabox::{Cancel, Key, RequestError, Session};

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    match run(BUILD.parse::<Cli>()) {
        Ok(code) => code,
        // The reader of the output has seen enough.
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nessie: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error>> {
    let command = match cli.action {
        Action::Get { key } => Command::Get(key.into()),
        Action::Put { key, value } if value == "-" => {
            let mut value = Vec::new();
            std::io::stdin().read_to_end(&mut value)?;
            Command::Put(key.into(), value)
        }
        Action::Put { key, value } => Command::Put(key.into(), value.into()),
        Action::Delete { key } => Command::Delete(key.into()),
        Action::Status => Command::Status,
        Action::Leave => Command::Leave,
    };
    let key = cli.key.as_deref().map(Key::load).transpose()?;
    let session = Session::builder().key(key).connect(&cli.node).map_err(|e| format!("{}: {e}", cli.node))?;
    let mut reply = Vec::new();
    let called = match command {
        // Takes as long as there are values.
        Command::Leave => session.call_waiting(&command.encode(), &mut reply, &Cancel::new()),
        _ => session.call(&command.encode(), &mut reply),
    };
    called.map_err(|e| match e {
        RequestError::Rejected { reason } => reason,
        other => format!("{}: {other}", cli.node),
    })?;
    let mut out = std::io::stdout();
    match (command, reply.split_first()) {
        (Command::Get(_), Some((b'+', value))) => {
            out.write_all(value)?;
            out.write_all(b"\n")?;
        }
        (Command::Get(_), _) => return Ok(ExitCode::from(1)),
        (Command::Status, _) => out.write_all(&reply)?,
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}
