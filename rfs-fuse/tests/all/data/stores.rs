//! Mounts of a server whose files are spread over stores, with pieces of a block or two.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    time::Duration,
};

use super::exerciser::{exercise, step};
use crate::common::{
    Mount, Over, directory, eventually, pattern,
    proxy::Proxy,
    random::{Random, seed},
    stores::Stores,
};
use rfs_proto::BLOCK;

const MIB: u64 = 1 << 20;
const WRITEBACK: &[&str] = &["--cache", "writeback"];
/// Long enough for a running mount to renew it on a busy machine.
const LEASE: Duration = Duration::from_secs(6);

/// The next mount reads the bytes that a mount with the writeback cache has written.
#[test]
fn a_writeback_mount_writes_to_the_right_stores() {
    for (over, count) in [(Over::Shm, 1), (Over::Tcp, 3)] {
        let stores = Stores::start(over, count, 16 * MIB);
        let server = stores.server(16 * MIB, BLOCK, |_| {});
        let (seed, mut model) = (seed(), Vec::new());
        eprintln!("{over:?}, seed {seed}");
        let mut random = Random::new(seed);
        for round in 0..6 {
            let mount = server.mount(over, WRITEBACK);
            let path = mount.path("file");
            File::options().create(true).truncate(false).write(true).open(&path).expect("a file");
            let steps = random.below(80) + 1;
            (0..steps).for_each(|_| _ = step(&mut random, &path, &mut model));
            mount.unmount();
            // Its kernel has no pages of the mount before.
            let next = server.mount(over, if round % 2 == 0 { &[] } else { WRITEBACK });
            let found = fs::read(next.path("file")).expect("read");
            let wrong = found.iter().zip(&model).position(|(is, should)| is != should);
            assert_eq!((found.len(), wrong), (model.len(), None), "round {round}");
            next.unmount();
        }
        assert!(stores.stores.iter().all(|store| store.report().chunks == 1));
    }
}

#[test]
fn two_mounts_in_turn_are_one_file_system_over_stores() {
    for (over, count, unit) in [(Over::Shm, 3, 2 * BLOCK), (Over::Tcp, 2, BLOCK)] {
        let stores = Stores::start(over, count, 32 * MIB);
        let server = stores.server(32 * MIB, unit, |_| {});
        let (a, b) = (server.mount(over, &[]), server.mount(over, &[]));
        let seed = seed();
        eprintln!("{over:?}, seed {seed}");
        exercise(&a, &b, (seed, 400));
        assert!(stores.clients().iter().all(|clients| *clients == 2), "{:?}", stores.clients());
        b.unmount();
        a.unmount();
    }
}

fn mount_through(proxy: &Proxy) -> (Mount, tempfile::TempDir) {
    let dir = directory();
    (Mount::start(proxy.address(), dir.path(), &["--provider", "tcp", "--timeout", "60"]), dir)
}

/// Data in stores can be used without a connection to the server. A mount that comes back in time
/// goes on as the same client of the stores. A mount that comes back too late goes on as another
/// client.
#[test]
fn a_lost_server_connection_takes_no_data_in_stores_with_it() {
    let stores = Stores::start(Over::Tcp, 2, 16 * MIB);
    let server = stores.server(16 * MIB, BLOCK, |config| config.fencing.lease = Some(LEASE));
    let proxy = Proxy::to(server.address(Over::Tcp));
    let (mount, _dir) = mount_through(&proxy);
    let data = pattern(40 * BLOCK as usize, 5);
    fs::write(mount.path("file"), &data).expect("written");
    let file = File::options().read(true).write(true).open(mount.path("file")).expect("opened");
    assert_eq!(stores.clients(), [1, 1]);
    // It comes back in time: its session, its open file and its access to the stores go on.
    assert_eq!(server.handled("reachstore"), 2);
    proxy.cut();
    assert!(eventually(|| {
        (20..23).for_each(|piece| file.write_all_at(&data[..100], BLOCK * piece).expect("written"));
        // More, if it asks before the stores have ended its earlier sessions: more than two of
        // these requests can be of one store. So it writes until both stores have a session again.
        server.handled("reachstore") >= 4 && stores.clients() == [1, 1]
    }));
    assert_eq!(server.inner.stats().sessions, 1);
    // It comes back too late: the server has ended its session, and the stores have.
    proxy.close(true);
    proxy.cut();
    assert!(eventually(|| server.inner.stats().sessions == 0), "the lease ends");
    assert!(eventually(|| stores.clients() == [0, 0]), "{:?}", stores.clients());
    proxy.close(false);
    drop(file);
    let mut expected = data;
    (20..23).for_each(|piece| expected.copy_within(..100, BLOCK as usize * piece));
    assert!(eventually(|| fs::read(mount.path("file")).is_ok()));
    assert!(fs::read(mount.path("file")).expect("read") == expected);
    let file = File::options().write(true).open(mount.path("file")).expect("opened");
    file.write_all_at(&expected[..5000], BLOCK * 30).expect("written");
    assert_eq!(stores.clients(), [1, 1]);
    let beside = server.mount(Over::Tcp, &[]);
    expected.copy_within(..5000, BLOCK as usize * 30);
    assert!(fs::read(beside.path("file")).expect("read") == expected);
    drop(file);
    beside.unmount();
    mount.unmount();
}
