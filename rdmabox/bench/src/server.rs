//! The other end: a host that lends memory and answers calls.

use std::{env, sync::Arc};

use rdmabox::{Access, Address, Export, Host, Memory, Peer, RdmaOptions, Reply, Running, Service};

use crate::{
    Result,
    protocol::{self, Lent},
    usage::Usage,
};

/// Lends memory and answers the calls of [`protocol`].
struct Lender {
    export: Export,
}

impl Service for Lender {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> std::result::Result<(), String> {
        let lent = || Lent { base: peer.remote_addr(&self.export), len: self.export.memory().len() as u64 };
        protocol::answer(request, reply, lent, Usage::of_process)
    }
}

/// Where to listen unless told otherwise: a Unix socket of its own, and a free TCP port of the loopback. `number` tells
/// servers of one process apart.
pub fn default_addresses(number: usize) -> [Address; 2] {
    let name = format!("rdmabox-bench-{}-{number}.sock", std::process::id());
    [Address::Unix(env::temp_dir().join(name)), Address::Tcp { host: "127.0.0.1".into(), port: 0 }]
}

/// Starts a server of `len` bytes, all of which are taken from the system first, on threads of its own.
pub fn start(addresses: &[Address], len: usize, rdma: RdmaOptions) -> Result<Running> {
    let memory = Arc::new(Memory::shared("rdmabox-bench", len)?);
    memory.populate(0, len);
    let host = Host::new()?.rdma(rdma);
    let export = host.export(&memory, Access::REMOTE_ALL)?;
    Ok(host.listen(addresses, Arc::new(Lender { export }))?)
}
