//! The server: a host that exports memory and answers calls.

use std::{env, sync::Arc};

use rdmabox::{
    Access, Address, CallError, Export, Host, HostHandle, Memory, Peer, RdmaOptions, Reply, Service,
};

use crate::{
    Result,
    servers::protocol::{self, Lent},
    usage::Usage,
};

/// Exports memory and answers the calls of [`protocol`].
struct MemoryServer {
    export: Export,
}

impl Service for MemoryServer {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> std::result::Result<(), CallError> {
        let lent = || Lent { base: peer.remote_addr(&self.export), len: self.export.memory().len() as u64 };
        Ok(protocol::answer(request, reply, lent, Usage::of_process)?)
    }
}

/// Returns the default listen addresses: a Unix socket, and a free TCP port of the loopback
/// interface. `number` distinguishes the servers of one process.
pub fn default_addresses(number: usize) -> [Address; 2] {
    let name = format!("rdmabox-bench-{}-{number}.sock", std::process::id());
    [Address::Unix(env::temp_dir().join(name)), Address::Tcp { host: "127.0.0.1".into(), port: 0 }]
}

/// Starts a server with `len` bytes of preallocated memory, on its own threads.
pub fn start(addresses: &[Address], len: usize, rdma: RdmaOptions) -> Result<HostHandle> {
    let memory = Arc::new(Memory::shared("rdmabox-bench", len)?);
    memory.populate(0, len);
    // A load uses a word over one provider only.
    let host = Host::new()?.rdma(rdma).allow_mixed_atomics(true);
    let export = host.export(&memory, Access::REMOTE_ALL)?;
    Ok(host.listen(addresses, Arc::new(MemoryServer { export }))?)
}
