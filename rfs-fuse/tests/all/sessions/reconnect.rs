//! Mounts that lose their session reconnect: no data is lost, no change is repeated, and programs
//! notice nothing.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

mod model;

use crate::common::{
    Mount, Over, TestServer, directory, eventually,
    mapping::Mapping,
    pattern,
    proxy::Proxy,
    random::{Random, seed},
    stores::Stores,
};
use model::{Model, check, step};
use rfs_server::Config;
use rustix::{
    fs::{FallocateFlags, FlockOperation, copy_file_range, fallocate, flock},
    io::Errno,
};

const MEMORY: u64 = 64 << 20;
/// Minimum number of times that connections are cut.
const CUTS: u64 = 8;

fn mount(proxy: &Proxy, options: &[&str]) -> (Mount, tempfile::TempDir) {
    let dir = directory();
    let mut all = vec!["--provider", "tcp"];
    if !options.contains(&"--timeout") {
        all.extend(["--timeout", "60"]);
    }
    all.extend(options);
    (Mount::start(proxy.address(), dir.path(), &all), dir)
}

fn server() -> TestServer {
    TestServer::with(MEMORY, |config| config.fencing.lease = Some(Duration::from_secs(60)))
}

/// Runs steps until `is_enough`.
fn exercise(dir: PathBuf, seed: u64, is_enough: impl Fn(u32) -> bool) -> Model {
    let (mut random, mut model, mut done) = (Random::new(seed), Model::default(), Vec::new());
    for number in (0..).take_while(|number| !is_enough(*number)) {
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let what = step(&mut random, &dir, &mut model);
            if number % 16 == 0 {
                check(&dir, &model);
            }
            what
        }));
        match tried {
            Ok(what) => done.push(what),
            Err(panic) => {
                eprintln!(
                    "seed {seed}, step {number}; the last were {:?}",
                    &done[done.len().saturating_sub(6)..]
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    model
}

/// Cuts connections at arbitrary bytes. Two programs in directories of their own notice nothing.
fn cut_connections(server: &TestServer, options: &[&str], seed: u64) {
    let proxy = Arc::new(Proxy::to(server.address(Over::Tcp)));
    let (through, _dir) = mount(&proxy, options);
    let over = Arc::new(AtomicBool::new(false));
    let cutter = {
        let (proxy, over) = (Arc::clone(&proxy), Arc::clone(&over));
        thread::spawn(move || {
            let mut random = Random::new(seed);
            while !over.load(Ordering::SeqCst) {
                proxy.cut_after(random.below(120_000));
                while proxy.will_cut() && !over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                // Mostly long enough to reconnect.
                thread::sleep(Duration::from_millis(random.below(120)));
            }
        })
    };
    let workers: Vec<_> = (0..2)
        .map(|number| {
            let dir = through.path(&format!("d{number}"));
            fs::create_dir(&dir).expect("made");
            let proxy = Arc::clone(&proxy);
            thread::spawn(move || {
                exercise(dir, seed.wrapping_add(number), |steps| steps >= 250 && proxy.cuts() >= CUTS)
            })
        })
        .collect();
    let models: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
    over.store(true, Ordering::SeqCst);
    cutter.join().expect("cutter");
    let models: Vec<Model> = models.into_iter().map(|model| model.expect("worker")).collect();
    assert!(proxy.cuts() >= CUTS);
    // Compares the view of this mount with the view of another one.
    let beside = server.mount(Over::Tcp, &[]);
    for (number, model) in models.iter().enumerate() {
        for mount in [&through, &beside] {
            check(&mount.path(&format!("d{number}")), model);
        }
    }
    beside.unmount();
    through.unmount();
    assert!(eventually(|| server.inner.stats().sessions == 0));
}

#[test]
fn cut_connections_have_no_visible_effect() {
    let fresh = seed();
    for (options, seed) in [(&[][..], 42), (&["--cache", "none"][..], 43), (&[][..], fresh)] {
        eprintln!("seed {seed}, {options:?}");
        cut_connections(&server(), options, seed);
    }
}

/// The data of most files lies in stores, whose sessions go on meanwhile.
#[test]
fn cut_connections_to_the_server_have_no_visible_effect_over_stores() {
    let stores = Stores::start(Over::Tcp, 2, MEMORY);
    let lease = Some(Duration::from_secs(60));
    let server = stores.server(MEMORY, rfs_proto::BLOCK, |config| config.fencing.lease = lease);
    let seed = seed();
    eprintln!("seed {seed}");
    cut_connections(&server, &[], seed);
    assert!(eventually(|| stores.clients() == [0, 0]));
}

#[test]
fn open_files_and_locks_survive_the_loss_of_the_session() {
    let server = server();
    let proxy = Proxy::to(server.address(Over::Tcp));
    let (through, _dir) = mount(&proxy, &[]);
    let beside = server.mount(Over::Tcp, &[]);
    let file = File::options().read(true).write(true).create_new(true).open(through.path("a")).expect("made");
    file.write_all_at(b"before", 0).expect("written");
    flock(&file, FlockOperation::LockExclusive).expect("locked");
    let gone =
        File::options().read(true).write(true).create_new(true).open(through.path("gone")).expect("made");
    fs::remove_file(through.path("gone")).expect("removed");
    proxy.close(true);
    proxy.cut();
    let other = File::open(beside.path("a")).expect("opened");
    assert!(flock(&other, FlockOperation::NonBlockingLockShared).is_err(), "the lock is kept");
    let waits = thread::spawn(move || flock(&other, FlockOperation::LockShared).map(|()| other));
    // The mount cannot reconnect for some time, and requests wait meanwhile.
    let asked = {
        let path = through.path("new");
        thread::spawn(move || fs::write(path, b"new"))
    };
    thread::sleep(Duration::from_millis(300));
    assert!(!asked.is_finished() && !waits.is_finished());
    proxy.close(false);
    asked.join().expect("thread").expect("written");
    gone.write_all_at(b"no one sees it", 0).expect("written");
    let mut bytes = [0; 14];
    gone.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"no one sees it");
    file.write_all_at(b"after!", 0).expect("written");
    assert!(!waits.is_finished());
    flock(&file, FlockOperation::Unlock).expect("unlocked");
    let other = waits.join().expect("thread").expect("locked");
    let mut bytes = [0; 6];
    other.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"after!");
    assert_eq!(fs::read(beside.path("new")).expect("read"), b"new");
    drop((file, gone, other));
    through.unmount();
    beside.unmount();
}

#[test]
fn a_waiter_for_a_lock_survives_the_loss_of_the_session() {
    let server = server();
    let proxy = Proxy::to(server.address(Over::Tcp));
    let (through, _dir) = mount(&proxy, &[]);
    let beside = server.mount(Over::Tcp, &[]);
    let holder = File::create(beside.path("a")).expect("made");
    for round in 0..4 {
        flock(&holder, FlockOperation::LockExclusive).expect("locked");
        let waiter = File::open(through.path("a")).expect("opened");
        let waits = thread::spawn(move || flock(&waiter, FlockOperation::LockShared).map(|()| waiter));
        thread::sleep(Duration::from_millis(50));
        if round % 2 == 0 {
            // The lock is granted while the waiter's mount is disconnected.
            proxy.close(true);
            proxy.cut();
            flock(&holder, FlockOperation::Unlock).expect("unlocked");
            proxy.close(false);
        } else {
            proxy.cut();
            thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished());
            flock(&holder, FlockOperation::Unlock).expect("unlocked");
        }
        drop(waits.join().expect("thread").expect("locked"));
    }
    through.unmount();
    beside.unmount();
}

#[test]
fn operations_on_an_absent_server_fail_in_time_and_the_mount_can_be_unmounted() {
    let server = server();
    let proxy = Proxy::to(server.address(Over::Tcp));
    let (through, _dir) = mount(&proxy, &["--timeout", "1", "--cache", "none"]);
    fs::write(through.path("a"), b"a").expect("written");
    proxy.close(true);
    proxy.cut();
    let began = Instant::now();
    let failed = fs::metadata(through.path("a")).expect_err("the server does not answer");
    assert_eq!(failed.raw_os_error(), Some(112), "{failed}");
    assert!(began.elapsed() >= Duration::from_millis(900), "it might have come back");
    // From now on operations fail at once, until the server is back.
    fs::write(through.path("b"), b"b").expect_err("the server does not answer");
    proxy.close(false);
    assert!(eventually(|| fs::read(through.path("a")).is_ok_and(|bytes| bytes == b"a")));
    proxy.close(true);
    proxy.cut();
    through.unmount();
}

#[test]
fn delayed_operations_continue() {
    let server = server();
    let proxy = Proxy::to(server.address(Over::Tcp));
    let (through, _dir) = mount(&proxy, &[]);
    let dir = through.path("d");
    fs::create_dir(&dir).expect("made");
    let worker = thread::spawn(move || exercise(dir, 7, |steps| steps == 200));
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(50));
        proxy.hold_for(Duration::from_millis(300));
    }
    check(&through.path("d"), &worker.join().expect("worker"));
    assert_eq!(proxy.cuts(), 0);
    through.unmount();
}

/// Sets leases of 1500 ms, and recalls that end after 700 ms.
fn short_lease(config: &mut Config) {
    config.fencing.lease = Some(Duration::from_millis(1500));
    config.recall_timeout = Some(Duration::from_millis(700));
}

/// Open files of a mount that stays away.
struct OpenFiles {
    stays: File,
    /// Locked by the mount.
    locked: File,
    /// `locked` again, with a failed attempt to lock, which leaves nothing that could be lost.
    tried: File,
    removed: File,
}

impl OpenFiles {
    fn new(through: &Mount) -> OpenFiles {
        let create = |name: &str| {
            let file = File::create_new(through.path(name)).expect("made");
            file.write_all_at(&pattern(100_000, 5), 0).expect("written");
            file
        };
        let [stays, locked, removed] = ["stays", "locked", "removed"].map(create);
        flock(&locked, FlockOperation::LockExclusive).expect("locked");
        let tried = File::open(through.path("locked")).expect("opened");
        assert_eq!(flock(&tried, FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
        OpenFiles { stays, locked, tried, removed }
    }

    /// Checks that the files have their new content, and that a file whose lock was lost returns
    /// errors.
    fn check(&self) {
        let OpenFiles { stays, locked, tried, removed } = self;
        let mut bytes = vec![0; 50_000];
        stays.read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes == pattern(50_000, 6));
        stays.write_all_at(&pattern(2000, 7), 100).expect("written");
        stays.read_exact_at(&mut bytes[..2100], 0).expect("read");
        assert!(bytes[100..2100] == pattern(2000, 7));
        let errno = |e: std::io::Error| e.raw_os_error();
        assert_eq!(locked.read_at(&mut bytes, 0).map_err(errno), Err(Some(5)));
        assert_eq!(locked.write_at(b"x", 0).map_err(errno), Err(Some(5)));
        // The errors include changes of size and space, and copies in both directions.
        assert_eq!(locked.set_len(5).map_err(errno), Err(Some(5)));
        assert_eq!(fallocate(locked, FallocateFlags::empty(), 0, 200_000), Err(Errno::IO));
        for (from, to) in [(locked, stays), (stays, locked)] {
            // The kernel may fall back to reading and writing, which also fail.
            assert_eq!(copy_file_range(from, Some(&mut 0), to, Some(&mut 0), 10), Err(Errno::IO));
        }
        assert_eq!(tried.read_at(&mut bytes[..1000], 0).map_err(errno), Ok(1000));
        assert!(bytes[..1000] == pattern(100_000, 5)[..1000]);
        assert_eq!(removed.write_at(b"x", 0).map_err(errno), Err(Some(116)));
    }
}

/// Makes a directory whose names and files the mount then has cached.
fn make_cached_directory(through: &Mount) {
    fs::create_dir(through.path("dir")).expect("made");
    fs::write(through.path("dir/old"), b"old").expect("written");
    fs::write(through.path("dir/same"), b"same").expect("written");
    assert_eq!(fs::read(through.path("dir/old")).expect("read"), b"old");
    fs::read_dir(through.path("dir")).expect("listed").for_each(|entry| drop(entry.expect("entry")));
}

/// Changes the files and the directory through another mount.
fn change_all(server: &TestServer) {
    let beside = server.mount(Over::Tcp, &[]);
    fs::remove_file(beside.path("removed")).expect("removed");
    fs::rename(beside.path("dir/old"), beside.path("dir/new")).expect("renamed");
    fs::write(beside.path("dir/same"), b"changed").expect("written");
    // The space of the mount's files is used by other files now.
    fs::write(beside.path("stays"), pattern(50_000, 6)).expect("written");
    fs::write(beside.path("full"), pattern(1 << 20, 9)).expect("written");
    let lock = File::open(beside.path("locked")).expect("opened");
    flock(&lock, FlockOperation::LockExclusive).expect("its lock is free");
    drop(lock);
    beside.unmount();
}

/// A mount that stays away for longer than its lease loses its session, and finds the changes of
/// other mounts.
#[test]
fn a_mount_away_longer_than_its_lease_starts_a_new_session() {
    for options in [&[][..], &["--cache", "none"][..]] {
        let server = TestServer::with(MEMORY, short_lease);
        let proxy = Proxy::to(server.address(Over::Tcp));
        let (through, _dir) = mount(&proxy, options);
        let open = OpenFiles::new(&through);
        make_cached_directory(&through);

        proxy.close(true);
        proxy.cut();
        assert!(eventually(|| server.inner.stats().sessions == 0));
        change_all(&server);
        proxy.close(false);

        // Requests during the absence may have failed. From now on the mount sees the current
        // state.
        assert!(eventually(|| fs::metadata(through.path("dir")).is_ok()));
        assert!(eventually(|| fs::metadata(through.path("dir/old")).is_err()));
        assert_eq!(fs::read(through.path("dir/new")).expect("read"), b"old");
        assert_eq!(fs::read(through.path("dir/same")).expect("read"), b"changed");
        open.check();
        drop(open);
        let again = File::options().read(true).write(true).open(through.path("locked")).expect("opened");
        flock(&again, FlockOperation::LockExclusive).expect("locked");
        again.write_all_at(b"x", 0).expect("written");
        drop(again);
        let beside = server.mount(Over::Tcp, &[]);
        assert!(fs::read(beside.path("full")).expect("read") == pattern(1 << 20, 9));
        beside.unmount();
        through.unmount();
    }
}

/// A write begins under a lock and waits for the reconnect. If the lock was lost meanwhile, the
/// write must fail.
#[test]
fn a_waiting_write_fails_if_its_lock_is_lost() {
    const WRITERS: u64 = 4;
    let kept = [&[][..], &["--cache", "none"][..]];
    for (options, checksum) in kept.into_iter().flat_map(|options| [(options, false), (options, true)]) {
        let server = TestServer::with(MEMORY, |config| {
            short_lease(config);
            config.checksum = checksum;
        });
        let proxy = Proxy::to(server.address(Over::Tcp));
        let (through, _dir) = mount(&proxy, options);
        // Started in advance: starting a program later would close inherited descriptors and wait
        // for the writes.
        let beside = server.mount(Over::Tcp, &[]);
        let len = WRITERS as usize * 4096;
        let [locked, free] = ["locked", "free"].map(|name| {
            let file = File::options().read(true).write(true).create_new(true).open(through.path(name));
            let file = file.expect("made");
            // Half of the blocks have space; the writes of the others must request it.
            file.write_all_at(&pattern(len / 2, 1), 0).expect("written");
            file.set_len(len as u64).expect("grown");
            file
        });
        flock(&locked, FlockOperation::LockExclusive).expect("locked");
        let mut appended = File::options().append(true).create(true).open(through.path("log")).expect("made");
        flock(&appended, FlockOperation::LockExclusive).expect("locked");
        proxy.close(true);
        proxy.cut();
        let outcomes = thread::scope(|scope| {
            let writers: Vec<_> = [&locked, &free]
                .into_iter()
                .flat_map(|file| (0..WRITERS).map(move |block| (file, block * 4096)))
                .map(|(file, at)| scope.spawn(move || file.write_at(&pattern(4096, 2), at)))
                .collect();
            let appender = scope.spawn(|| appended.write(b"mine"));
            assert!(eventually(|| server.inner.stats().sessions == 1));
            for (name, bytes) in [("locked", pattern(len, 3)), ("log", b"theirs".to_vec())] {
                let lock = File::options().write(true).open(beside.path(name)).expect("opened");
                flock(&lock, FlockOperation::LockExclusive).expect("its lock is free");
                lock.write_all_at(&bytes, 0).expect("written");
            }
            proxy.close(false);
            let errno = |e: std::io::Error| e.raw_os_error();
            assert_eq!(appender.join().expect("appender").map_err(errno), Err(Some(5)));
            writers
                .into_iter()
                .map(|writer| writer.join().expect("writer").map_err(errno))
                .collect::<Vec<_>>()
        });
        let (guarded, unguarded) = outcomes.split_at(WRITERS as usize);
        assert_eq!(guarded, [Err(Some(5)); WRITERS as usize]);
        assert_eq!(unguarded, [Ok(4096); WRITERS as usize]);
        assert!(fs::read(beside.path("locked")).expect("read") == pattern(len, 3));
        assert_eq!(fs::read(beside.path("log")).expect("read"), b"theirs");
        assert!(fs::read(beside.path("free")).expect("read") == pattern(4096, 2).repeat(WRITERS as usize));
        beside.unmount();
        drop((locked, free, appended));
        through.unmount();
    }
}

/// A new server at the same address is another file system.
#[test]
fn a_server_that_lost_its_memory_is_not_taken_for_an_empty_one() {
    let server = server();
    let proxy = Proxy::to(server.address(Over::Tcp));
    let (mut through, _dir) = mount(&proxy, &["--lost-server", "stay"]);
    fs::write(through.path("a"), b"a").expect("written");
    let address = server.address(Over::Tcp);
    drop(server);
    let (_, port) = address.rsplit_once(':').expect("a port");
    let port = port.parse().expect("a port");
    let again = TestServer::with(MEMORY, |config| {
        config.listen = vec![rdmabox::Address::Tcp { host: "127.0.0.1".into(), port }];
    });
    assert!(eventually(|| fs::metadata(through.path("a")).is_err_and(|e| e.raw_os_error() == Some(112))));
    fs::read_dir(&through.point).expect_err("nothing is there");
    fs::write(through.path("b"), b"b").expect_err("nothing is there");
    assert_eq!(again.inner.statfs().inodes - again.inner.statfs().inodes_free, 1);
    through.signal(rustix::process::Signal::INT);
    let (status, said) = through.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("has lost its memory"), "{said}");
}

/// The kernel's cached pages of such a mount may conflict with later writes of other mounts. All
/// operations fail, and no page is written back.
#[test]
fn an_exclusive_mount_away_longer_than_its_lease_fails() {
    let server = TestServer::with(MEMORY, |config| config.fencing.lease = Some(Duration::from_millis(1500)));
    let proxy = Proxy::to(server.address(Over::Tcp));
    let options = ["--cache", "writeback", "--timeout", "5", "--lost-server", "stay"];
    let (mut through, _dir) = mount(&proxy, &options);
    fs::write(through.path("file"), pattern(100_000, 1)).expect("written");
    let file = File::options().read(true).write(true).open(through.path("file")).expect("opened");
    let map = File::options().read(true).write(true).open(through.path("file")).expect("opened");
    let mut mapped = Mapping::new(&map, 8192);
    // The pages are dirty in the kernel, and not at the server.
    file.write_all_at(&pattern(50_000, 2), 10_000).expect("written");
    mapped.write(5000, b"in memory");
    proxy.close(true);
    proxy.cut();
    assert!(eventually(|| server.inner.stats().sessions == 0));
    let beside = server.mount(Over::Tcp, &[]);
    assert!(fs::read(beside.path("file")).expect("read") == pattern(100_000, 1));
    fs::write(beside.path("file"), pattern(70_000, 3)).expect("written");
    proxy.close(false);

    let over = |what: &str, result: std::io::Result<()>| {
        let errno = result.expect_err(what).raw_os_error();
        let expected = [Errno::HOSTDOWN, Errno::IO].map(|errno| Some(errno.raw_os_error()));
        assert!(expected.contains(&errno), "{what}: {errno:?}");
    };
    over("fsync", file.sync_all());
    over("a new file", fs::write(through.path("new"), "x"));
    over("a new name", fs::rename(through.path("file"), through.path("moved")));
    over("another write, synchronized", file.write_all_at(b"x", 0).and_then(|()| file.sync_all()));
    over("opening", File::open(through.path("file")).map(drop));
    // Ending the mount must not write them back either.
    drop((mapped, map, file));
    through.signal(rustix::process::Signal::TERM);
    let (status, said) = through.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(fs::read(beside.path("file")).expect("read") == pattern(70_000, 3));
    assert_eq!(fs::read_dir(&beside.point).expect("listed").count(), 1);
    beside.unmount();
}
