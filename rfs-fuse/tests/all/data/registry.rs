//! A mount of a server whose stores register in etcd: reads and writes need no etcd.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rdmabox::Key;
use rfs_server::{
    Config, EtcdUrl, Membership, Registration, Server, StoreRecord, StoresConfig,
    server::status::pool::RegistryState,
};

use crate::common::{Mount, Over, TestServer, eventually, pattern, stores::Stores};

#[path = "../../../../rfs-server/tests/support/etcd.rs"]
mod etcd;
use etcd::Etcd;

const MIB: u64 = 1 << 20;
/// Interval at which each lease is renewed.
const RENEWAL: Duration = Duration::from_secs(3);

/// Stores in this process, and the etcd that they register in.
struct Site {
    etcd: Etcd,
    stores: Stores,
}

impl Site {
    fn url(&self) -> EtcdUrl {
        self.etcd.url().parse().expect("a URL")
    }

    fn register(&self, store: usize) -> Registration {
        let key = Key::load(&self.stores.key).expect("a key");
        let address = self.stores.stores[store].addresses()[0].clone();
        let record = StoreRecord::of_this_process(address, 16 * MIB).expect("a record");
        Registration::start(&[self.url()], key.id, &record).expect("registered")
    }

    fn configure(&self, config: &mut Config) {
        let (members, key) = (Membership::Etcd(vec![self.url()]), self.stores.key.clone());
        config.checksum = false;
        config.stores = Some(StoresConfig { members, key, unit: 64 << 10 });
    }
}

/// Writes and reads files until `stop`. Returns the number of files.
fn work(mount: &Mount, stop: &AtomicBool, done: &AtomicU64) {
    let data = pattern(MIB as usize, 3);
    while !stop.load(Ordering::Acquire) {
        let path = mount.path(&format!("file{}", done.load(Ordering::Relaxed) % 8));
        fs::write(&path, &data).expect("written");
        assert!(fs::read(&path).expect("read") == data);
        done.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn reads_and_writes_need_no_etcd() {
    let Some(etcd) = Etcd::start() else { return };
    let mut site = Site { etcd, stores: Stores::start(Over::Tcp, 3, 16 * MIB) };
    let _registered = [site.register(0), site.register(1)];
    let server = TestServer::with(16 * MIB, |config| site.configure(config));
    assert_eq!(server.inner.statfs().blocks * 4096, 48 * MIB);
    let mount = server.mount(Over::Tcp, &[]);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let pool = || server.inner.status_source().pool().expect("a pool");
    let state = || pool().registry.expect("a registry").state;
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&mount, &stop, &done));
        let goes_on = || {
            let before = done.load(Ordering::Acquire);
            assert!(eventually(|| worker.is_finished() || done.load(Ordering::Acquire) >= before + 3));
            assert!(!worker.is_finished(), "reads and writes fail");
        };
        goes_on();
        assert_eq!(site.stores.clients()[..2], [1, 1], "the data is in the stores");
        // Two stores and the server renew their leases. Nothing else is asked.
        let (before, begin, files) = (site.etcd.requests(), Instant::now(), done.load(Ordering::Acquire));
        assert!(eventually(|| begin.elapsed() > 2 * RENEWAL && done.load(Ordering::Acquire) > files + 20));
        let mut asked = site.etcd.requests();
        asked.retain(|method, count| *count > before.get(method).copied().unwrap_or(0));
        let renewals = 3 * (begin.elapsed().as_secs() / RENEWAL.as_secs() + 1);
        let count = asked.remove("LeaseKeepAlive").unwrap_or(0);
        let renewed = count - before.get("LeaseKeepAlive").copied().unwrap_or(0);
        eprintln!(
            "{} files of 1 MiB in {:.1?}: {renewed} renewals of leases, and {asked:?}",
            done.load(Ordering::Acquire) - files,
            begin.elapsed()
        );
        assert!(asked.is_empty() && renewed <= renewals, "{renewed} renewals, and {asked:?}");
        site.etcd.kill();
        assert!(eventually(|| state() == RegistryState::Away));
        goes_on();
        let refusal = server.inner.status_source().drain_store("1", true).expect_err("no etcd");
        assert!(refusal.contains("does not answer"), "{refusal}");
        goes_on();
        site.etcd.restart();
        assert!(eventually(|| state() == RegistryState::Up));
        goes_on();
        stop.store(true, Ordering::Release);
        worker.join().expect("reads and writes");
    });
    // Another server would use the same memory.
    let dir = crate::common::directory();
    let mut other = Config::new(16 * MIB);
    other.listen = vec![rdmabox::Address::Unix(dir.path().join("other"))];
    site.configure(&mut other);
    let refusal = Server::start(other).map(drop).expect_err("a second server").to_string();
    assert!(refusal.contains("the pool has a server, process"), "{refusal}");
    // A store that comes later has new space, and gets new data.
    let _third = site.register(2);
    assert!(eventually(|| server.inner.statfs().blocks * 4096 == 64 * MIB));
    let data = pattern(8 * MIB as usize, 4);
    fs::write(mount.path("new"), &data).expect("written");
    assert!(fs::read(mount.path("new")).expect("read") == data);
    assert_eq!(site.stores.clients(), [1, 1, 1]);
    mount.unmount();
}
