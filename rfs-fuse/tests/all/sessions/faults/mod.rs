//! Clients over a device with injected faults.
//!
//! RDMABOX_FAULT_SEED=N repeats one seed. RDMABOX_FAULT_SEEDS=COUNT tests that many new seeds.

mod data;
mod names;

use std::{sync::Arc, thread, time::Duration};

use rdmabox::{Address, CallsBy, ProviderKind, Session, SessionOptions, provider::fault::Plan};
use rfs_client::Creator;
use rfs_server::{Config, Server};
use tempfile::TempDir;

const BY: Creator = Creator { uid: 0, gid: 0, umask: 0 };
const THREADS: usize = 3;

/// Starts a server over shared memory and TCP. Returns it with its directory.
fn server() -> (Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let listen = vec![
        Address::Unix(directory.path().join("socket")),
        Address::Tcp { host: "127.0.0.1".into(), port: 0 },
    ];
    (Server::start(Config { listen, allow_without_keys: true, ..Config::new(16 << 20) }).unwrap(), directory)
}

/// Runs `work` on several threads, with their numbers. Returns the results.
fn on_threads<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

fn address(server: &Server, provider: ProviderKind) -> &Address {
    server.addresses().iter().find(|a| a.provider() == provider).unwrap()
}

fn options(provider: ProviderKind, calls: CallsBy, faults: Option<Plan>, direct: bool) -> SessionOptions {
    let timeout = if faults.is_some() { Duration::from_millis(500) } else { Duration::from_secs(20) };
    Session::builder()
        .provider(provider)
        .calls(calls)
        .faults(faults.map(Arc::new))
        .direct(direct)
        .operation_timeout(timeout)
        .connect_timeout(Duration::from_secs(30))
        .into_options()
}
