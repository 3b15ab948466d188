//! `rfs-server resize`: changes the size of an export of a running server, over its control socket.
//!
//! # Concurrency
//! The main thread, and the thread `status` of a running server, which answers.

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser};
use rdmabox::Address;
use rfs_status::control::{Asker, ask};
use serde::{Deserialize, Serialize};

use super::status::{ServerArgument, control_path};
use crate::server::StatusSource;

/// Begins the question. The size in bytes follows, and the name of the export.
const RESIZE: &str = "resize ";
/// Limit of a change. The kernel needs about a second for 4 GiB more, and free space may have to be
/// zeroed.
const CHANGE_LIMIT: Duration = Duration::from_secs(600);

/// The answer of a server that has changed a size.
#[derive(Debug, Serialize, Deserialize)]
struct Resized {
    /// The old size in bytes.
    old_bytes: u64,
    /// The new size in bytes.
    new_bytes: u64,
}

/// Changes the size of an export of a running server, while clients work.
///
/// An export grows up to the largest size that it was started with (--max-memory, max= of
/// --export), and shrinks down to the space in use. Its free memory then goes back to the system. A
/// size that is impossible changes nothing. After a restart, the size is that of the server's
/// options again.
///
/// The server answers root and its own user, on a control socket beside its Unix socket.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-server resize",
    bin_name = "rfs-server resize",
    max_term_width = 110,
    after_help = "Exit status: 0 if the export has the size, 1 if not, 2 for an invalid command line."
)]
struct ResizeCli {
    /// Name of the export: rfs, unless the server has another --name, or --export
    #[arg(value_name = "EXPORT")]
    export: String,

    /// The new size: a number of bytes, or of powers of 1024 such as 512m, 4g, 1.5t
    #[arg(value_name = "SIZE", value_parser = byte_size::parse)]
    size: u64,

    #[command(flatten)]
    server: ServerArgument,
}

/// Returns the command line of the command.
pub(super) fn command() -> clap::Command {
    ResizeCli::command().name("resize")
}

/// Returns the arguments of the command if the command line asks for it.
pub(super) fn own_arguments(arguments: &[OsString]) -> Option<&[OsString]> {
    arguments.get(1).filter(|first| *first == "resize").map(|_| &arguments[1..])
}

/// Asks a server, and prints its answer.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let ResizeCli { export, size, server } = match ResizeCli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    let address = match server.address() {
        Ok(address) => address,
        Err(reason) => {
            eprintln!("rfs-server resize: {reason}");
            return ExitCode::FAILURE;
        }
    };
    match change(&address, &export, size) {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("rfs-server resize: server at {address}: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Has a server change a size. Returns its action, in words for people.
fn change(address: &Address, export: &str, size: u64) -> Result<String, String> {
    let question = format!("{RESIZE}{size} {export}");
    let document = ask(&control_path(address), &question, CHANGE_LIMIT).map_err(|e| e.to_string())?;
    let Resized { old_bytes, new_bytes } = serde_json::from_str(&document).map_err(|e| e.to_string())?;
    let [old, new] = [old_bytes, new_bytes].map(byte_size::show);
    Ok(format!("export {export}: {old} -> {new}; the next start of the server needs it in its options"))
}

/// Answers a question for another size. Returns `None` for another question.
pub(super) fn answer(source: &StatusSource, question: &str, asker: Asker) -> Option<String> {
    let arguments = question.strip_prefix(RESIZE)?;
    let refusal = |reason: &str| serde_json::json!({ "error": reason }).to_string();
    if asker != Asker::Owner {
        return Some(refusal("only root and the user of the server may change a size"));
    }
    let parsed = arguments.split_once(' ').and_then(|(size, export)| Some((size.parse().ok()?, export)));
    let Some((size, export)) = parsed else { return Some(refusal("the question has no size or no export")) };
    Some(match source.resize(export, size) {
        Ok((old_bytes, new_bytes)) => {
            log::info!("export {export:?}: {} -> {}", byte_size::show(old_bytes), byte_size::show(new_bytes));
            serde_json::json!(Resized { old_bytes, new_bytes }).to_string()
        }
        Err(reason) => refusal(&reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        ResizeCli::command().debug_assert();
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(own_arguments(&words("rfs-server resize a 1G")), Some(&words("resize a 1G")[..]));
        assert_eq!(own_arguments(&words("rfs-server --name resize")), None);
        let parsed = ResizeCli::try_parse_from(words("resize a 1.5g /run/x")).unwrap();
        let address = Some(Address::Unix("/run/x".into()));
        assert_eq!((parsed.export.as_str(), parsed.size, parsed.server.address), ("a", 3 << 29, address));
        for wrong in ["resize a", "resize a lots", "resize a 1g /x y"] {
            assert!(ResizeCli::try_parse_from(words(wrong)).is_err(), "{wrong}");
        }
    }
}
