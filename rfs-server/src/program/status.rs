//! `rfs-server status [SOCKET]`: asks a running server for its status. And `Answers`, the side of
//! the server: a control socket, and the address of metrics.
//!
//! The control socket has the name of the server's first Unix socket with `.status` behind it. A
//! server without a Unix socket has one in the directory of the default socket.
//!
//! # Concurrency
//! The main thread. The thread `status` answers on the control socket, and the thread `metrics` on
//! the address.

use std::{
    ffi::OsString,
    fs::DirBuilder,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::{Args, CommandFactory, Parser};
use rdmabox::Address;
use rfs_status::{
    control::{ASK_LIMIT, Asker, ControlSocket, STATUS, SocketPermissions, ask},
    metrics::{BoundEndpoint, Endpoint, EndpointError},
    watch::{ShowOptions, join_interval, show},
};

use super::{pool, resize};
use crate::server::{Server, ServerStatus, config::default_listen};

/// The question for the stores of a server.
pub(super) const POOL: &str = "pool";
/// Ending of the name of a control socket.
const ENDING: &str = ".status";

/// Shows the state of a running server: exports, sessions, requests, and which of them wait for
/// which client.
///
/// The server answers root and its own user, on a control socket beside its Unix socket. With
/// --socket-mode or --socket-group it answers every user that can connect.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-server status",
    bin_name = "rfs-server status",
    max_term_width = 110,
    after_help = "Exit status: 0 if the server has answered, 1 if not, 2 for an invalid command line."
)]
struct StatusCli {
    #[command(flatten)]
    server: ServerArgument,

    #[command(flatten)]
    show: ShowOptions,
}

/// Which server a command asks.
#[derive(Clone, Debug, Args)]
pub(super) struct ServerArgument {
    /// The server's Unix socket, or its first address if it has no Unix socket [default: the
    /// default socket of this user]
    #[arg(value_name = "SOCKET")]
    pub(super) address: Option<Address>,
}

impl ServerArgument {
    /// Returns the address.
    ///
    /// # Errors
    /// There is none, and this user has no default.
    pub(super) fn address(&self) -> Result<Address, String> {
        let address = self.address.clone().or_else(|| default_listen().into_iter().next());
        address.ok_or_else(|| "this user has no default socket: name the server's socket".into())
    }
}

/// Returns the command line of the command.
pub(super) fn command() -> clap::Command {
    StatusCli::command().name("status")
}

/// Returns the arguments of the command if the command line asks for it.
pub(super) fn own_arguments(arguments: &[OsString]) -> Option<&[OsString]> {
    arguments.get(1).filter(|first| *first == "status").map(|_| &arguments[1..])
}

/// Asks a server, and prints its answer.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let StatusCli { server, show: options } = match StatusCli::try_parse_from(join_interval(arguments)) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    let address = match server.address() {
        Ok(address) => address,
        Err(reason) => {
            eprintln!("rfs-server status: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let path = control_path(&address);
    let render = |now: &ServerStatus, before: Option<&ServerStatus>| now.render(before);
    match show(&options, || ask(&path, STATUS, ASK_LIMIT), render) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rfs-server status: server at {address}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the path of the control socket of a server by its address.
pub(super) fn control_path(address: &Address) -> PathBuf {
    let named = |path: &Path, name: String| path.with_file_name(name);
    match address {
        Address::Unix(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            named(path, format!("{name}{ENDING}"))
        }
        other => {
            let default = match default_listen().into_iter().next() {
                Some(Address::Unix(path)) => path,
                _ => PathBuf::from("/tmp/rfs.sock"),
            };
            let stem = default.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            // A host of an address may be any text.
            let address = other.to_string().replace('/', "_");
            named(&default, format!("{stem}-{address}{ENDING}"))
        }
    }
}

/// Answers questions about a running server. Drop it before the server shuts down.
#[derive(Debug)]
pub(super) struct Answers {
    _control: Option<ControlSocket>,
    endpoint: Option<Endpoint>,
}

impl Answers {
    /// Starts to answer. A server without a control socket works; it logs the reason.
    ///
    /// # Errors
    /// There is no thread for the metrics.
    pub(super) fn start(
        server: &Server,
        socket: SocketPermissions,
        metrics: Option<BoundEndpoint>,
    ) -> Result<Answers, EndpointError> {
        let source = Arc::new(server.status_source());
        let for_metrics = Arc::clone(&source);
        let collect = move || for_metrics.status().metrics();
        let endpoint = metrics.map(|bound| bound.serve(collect)).transpose()?;
        let unix = server.addresses().iter().find(|address| matches!(address, Address::Unix(_)));
        let address = unix.or_else(|| server.addresses().first());
        let control = address.and_then(|address| start_control(&control_path(address), socket, source));
        Ok(Answers { _control: control, endpoint })
    }

    /// Returns the address of the metrics.
    pub(super) fn metrics_address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(Endpoint::address)
    }
}

fn start_control(
    path: &Path,
    permissions: SocketPermissions,
    source: Arc<crate::server::StatusSource>,
) -> Option<ControlSocket> {
    if let Some(directory) = path.parent() {
        // A server without a Unix socket may be the first to use the directory.
        DirBuilder::new().mode(0o755).create(directory).ok();
    }
    let answer = move |question: &str, asker: Asker| match question {
        STATUS => serde_json::to_string(&source.status()).ok(),
        other => resize::answer(&source, other, asker).or_else(|| pool::answer(&source, other, asker)),
    };
    let control = ControlSocket::start(path, permissions, "status", answer);
    control.inspect_err(|e| log::warn!("rfs-server status cannot ask this server: {e}")).ok()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        StatusCli::command().debug_assert();
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(own_arguments(&words("rfs-server status")), Some(&words("status")[..]));
        assert_eq!(own_arguments(&words("rfs-server --name status")), None);
        let parsed =
            StatusCli::try_parse_from(join_interval(&words("status --watch /run/x --json"))).unwrap();
        assert_eq!(parsed.server.address, Some(Address::Unix("/run/x".into())));
        assert!(parsed.show.json && parsed.show.watch.is_some());
    }

    #[test]
    fn a_control_socket_lies_beside_the_socket() {
        let path = |address: &str| control_path(&address.parse().unwrap());
        assert_eq!(path("unix:/run/rfs/rfs.sock"), PathBuf::from("/run/rfs/rfs.sock.status"));
        assert_eq!(path("unix:x.sock"), PathBuf::from("x.sock.status"));
        let tcp = path("tcp:10.0.0.7:7440");
        let name = tcp.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("rfs") && name.ends_with("-tcp:10.0.0.7:7440.status"), "{name}");
    }
}
