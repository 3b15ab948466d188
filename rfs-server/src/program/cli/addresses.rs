//! Options of the addresses that the server listens on, of its sockets and of its RDMA device.
//! Relative paths of sockets need the current directory.
//!
//! # Concurrency
//! Plain values.

use clap::Args;
use rdmabox::Address;

use crate::{
    program::socket_access::{parse_group, parse_mode},
    server::config::{Config, SocketPermissions},
};

/// Permissions of the Unix sockets of a server with `--socket-group`.
const GROUP_MODE: u32 = 0o660;

/// Where the server listens.
#[derive(Clone, Debug, Args)]
pub struct ListenArguments {
    /// Address to listen on: unix:/path, tcp:host:port or rdma:host:port; may be repeated. Port 0
    /// selects a free port.
    ///
    /// tcp: and rdma: need --keys, also on loopback, where programs of every local user can
    /// connect. Default: a Unix socket, /run/rfs/rfs.sock for root, $XDG_RUNTIME_DIR/rfs.sock or
    /// /tmp/rfs-UID.sock for other users.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// Permissions of the server's Unix sockets, in octal, such as 0660: connecting needs the right
    /// to write. Beyond its own user and root, a server without keys accepts other users only with
    /// --allow-without-keys. With this option or --socket-group, the socket of `rfs-server status`
    /// has the permissions, too. It then answers every user that can connect [default: by the
    /// umask; 0660 with --socket-group]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub socket_mode: Option<u32>,

    /// Group of the server's Unix sockets: a name or a number. Only root, or a user of the group,
    /// can give them to it [default: the group of the server process]
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub socket_group: Option<u32>,

    /// RDMA device for rdma: addresses, such as mlx5_0 or rxe0 [default: the first with an active
    /// port]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: the first active port]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub port: Option<u8>,

    /// Index of the local address in the port's GID table [default: the entry of the network
    /// address that sets up connections, else a RoCE v2 entry]
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
}

impl ListenArguments {
    /// Writes these options into the configuration.
    pub(super) fn apply_to(self, config: &mut Config) {
        if !self.listen.is_empty() {
            config.listen = self.listen.into_iter().map(from_anywhere).collect();
        }
        // A group that could not connect would be of no use.
        let mode = self.socket_mode.or(self.socket_group.map(|_| GROUP_MODE));
        config.socket = SocketPermissions { mode, group: self.socket_group };
        config.rdma.device = self.device;
        (config.rdma.port, config.rdma.gid_index) = (self.port, self.gid_index);
    }
}

/// Returns an address that does not depend on the current directory: clients and `status` use it,
/// too.
pub(super) fn from_anywhere(address: Address) -> Address {
    match address {
        Address::Unix(path) => Address::Unix(std::path::absolute(&path).unwrap_or(path)),
        address => address,
    }
}
