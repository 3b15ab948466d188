//! The host of a node: its addresses, its keys, and the two exports of its memory.

use std::sync::{
    Arc, OnceLock, Weak,
    mpsc::{Receiver, channel},
};

use rdmabox::{Access, Address, Grant, Host, HostHandle, PendingReply};

use super::{
    memory::table::OwnTable,
    options::NodeOptions,
    service::{Command, Execute, NodeService},
    stats::Counters,
};
use crate::error::NessieError;

/// Commands of local programs, and where their replies go.
pub(super) type Commands = Receiver<(Command, PendingReply)>;
/// Where a node puts the store that executes requests.
pub(super) type Executor = Arc<OnceLock<Weak<dyn Execute>>>;

/// Starts the host of a node.
///
/// # Errors
/// [`NessieError::Host`] and [`NessieError::InvalidOption`]; nothing is left behind.
pub(super) fn listen(
    options: &NodeOptions,
    table: &OwnTable,
    counters: &Arc<Counters>,
) -> Result<(HostHandle, Commands, Executor), NessieError> {
    let listed = options.members.address(options.id).into_iter();
    let addresses: Vec<Address> =
        if options.listen.is_empty() { listed.cloned().collect() } else { options.listen.clone() };
    let needs_key = options.key.is_none() && !options.allow_without_keys;
    if let Some(address) = addresses.iter().find(|address| needs_key && address.is_network()) {
        return Err(NessieError::InvalidOption(format!(
            "{address} is a network address, and without a key every program that reaches it can read \
             and write the store: give --key, or --allow-without-keys"
        )));
    }
    let mut host = Host::new()?.any_local_user(options.allow_without_keys);
    let export = host.export(&table.memory, Access::REMOTE_ALL)?;
    let mut keyed = None;
    if let Some(key) = &options.key {
        let domain = host.domain()?;
        keyed = Some(host.export_in(domain, &table.memory, Access::REMOTE_ALL)?);
        host = host.keys(Grant::keyring(std::slice::from_ref(key), domain));
    }
    let (sender, commands) = channel();
    let executor = Executor::default();
    let service = NodeService {
        export,
        keyed,
        counters: counters.clone(),
        commands: sender,
        executor: executor.clone(),
        server_driven: options.server_driven,
    };
    Ok((host.listen(&addresses, Arc::new(service))?, commands, executor))
}
