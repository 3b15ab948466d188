//! Exports from which files go by themselves: a cache of values, one in each file, on real mounts.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rdmabox::Fencing;
use rfs_server::{Config, ExportConfig, server::status::EvictionStatus, space::eviction::EvictionPolicy};
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::Signal;

use crate::common::{
    Mount, Over, TestServer, eventually, pattern, providers,
    random::{Random, seed},
};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const LRU: EvictionPolicy = EvictionPolicy { by_use: true, ttl: None };

fn configure(config: &mut Config, memory: u64, eviction: EvictionPolicy) {
    let root = config.root;
    config.exports =
        vec![ExportConfig { name: "kv".into(), memory, max: None, inodes: None, root, eviction }];
    config.fencing = Fencing::new(Some(Duration::from_secs(4)), true);
}

fn cache(memory: u64, eviction: EvictionPolicy) -> TestServer {
    TestServer::with(memory, |config| configure(config, memory, eviction))
}

fn counts(server: &TestServer) -> EvictionStatus {
    server.inner.status_source().status().exports[0].eviction.clone().expect("eviction")
}

/// Opens nothing, so it is for loops: the server does not evict an open file, but the next one.
fn has_no_name(path: &Path) -> bool {
    fs::symlink_metadata(path).err().map(|e| e.kind()) == Some(ErrorKind::NotFound)
}

fn is_gone(path: &Path) -> bool {
    let open = File::open(path).err().map(|e| e.kind());
    open == Some(ErrorKind::NotFound) && has_no_name(path)
}

/// Waits until a file is gone.
fn goes(path: &Path) -> bool {
    eventually(|| has_no_name(path)) && is_gone(path)
}

/// Numbers with the frequencies of Zipf's law.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(weights.collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let all = self.0.last().expect("keys");
        let at = random.below(1 << 40) as f64 / (1u64 << 40) as f64 * all;
        self.0.partition_point(|&sum| sum <= at) as u64
    }
}

/// Returns the length of the value of a key: 4 to 64 KiB.
fn len(key: u64) -> usize {
    (4096 + key * 7919 % 61440) as usize
}

/// An access to a key, by its order.
#[derive(Clone, Copy, Debug)]
struct Access {
    order: u64,
    key: u64,
    hit: bool,
}

/// The load of a cache: gets of keys, and puts of values that are missing.
struct Load {
    zipf: Zipf,
    order: AtomicU64,
    accesses: Mutex<Vec<Access>>,
}

impl Load {
    /// Gets a value, or puts it if it is missing.
    fn get(&self, mount: &Mount, key: u64, worker: usize) {
        let path = mount.path(&format!("k{key}"));
        let hit = match File::open(&path) {
            Ok(mut file) => {
                let mut value = Vec::new();
                file.read_to_end(&mut value).expect("an open file keeps its bytes");
                assert!(value == pattern(len(key), key), "key {key} has {} bytes", value.len());
                true
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let new = mount.path(&format!("new-{worker}"));
                let mut file = File::create(&new).expect("a new file");
                file.write_all(&pattern(len(key), key)).expect("no ENOSPC");
                drop(file);
                fs::rename(&new, &path).expect("renamed");
                false
            }
            Err(e) => panic!("key {key}: {e}"),
        };
        let order = self.order.fetch_add(1, Ordering::Relaxed);
        self.accesses.lock().expect("no panic").push(Access { order, key, hit });
    }

    fn work(&self, mount: &Mount, worker: usize, times: usize, seed: u64) {
        let mut random = Random::new(seed ^ ((worker as u64 + 1) * 0x9e37_79b9));
        for _ in 0..times {
            self.get(mount, self.zipf.draw(&mut random), worker);
        }
    }

    /// Returns the parts of the accesses that were hits here, and in an exact LRU of `capacity`
    /// bytes.
    fn hit_ratios(&self, capacity: u64) -> (f64, f64) {
        let mut accesses = self.accesses.lock().expect("no panic").clone();
        accesses.sort_unstable_by_key(|access| access.order);
        let (mut at, mut uses, mut used, mut hits) = (HashMap::new(), BTreeMap::new(), 0, 0);
        for &Access { order, key, .. } in &accesses {
            let bytes = (len(key) as u64).next_multiple_of(BLOCK);
            match at.insert(key, order) {
                Some(before) => {
                    hits += 1;
                    uses.remove(&before);
                }
                None => used += bytes,
            }
            uses.insert(order, (key, bytes));
            while used > capacity {
                let (_, (key, bytes)) = uses.pop_first().expect("some use the space");
                used -= bytes;
                at.remove(&key);
            }
        }
        let seen = accesses.iter().filter(|access| access.hit).count();
        let all = accesses.len() as f64;
        (seen as f64 / all, f64::from(hits) / all)
    }
}

/// Several readers and writers on two mounts, with five times as many bytes as the export has. No
/// request fails, no value is wrong, and files that are open stay. There are as many hits as in an
/// exact LRU that fills the export up to the high mark.
#[test]
fn a_cache_of_values_has_the_hits_of_an_exact_lru() {
    let seed = seed();
    eprintln!("seed {seed}");
    for over in providers() {
        let server = cache(24 * MIB, LRU);
        let mounts = [server.mount(over, &[]), server.mount(over, &[])];
        let held: Vec<(String, File)> = (0..4u64)
            .map(|at| {
                let name = format!("held-{at}");
                fs::write(mounts[0].path(&name), pattern(65_536, at)).expect("written");
                (name.clone(), File::open(mounts[0].path(&name)).expect("opened"))
            })
            .collect();
        let order = AtomicU64::new(0);
        let load = Load { zipf: Zipf::new(3500, 0.9), order, accesses: Mutex::default() };
        thread::scope(|scope| {
            for worker in 0..4 {
                let (load, mount) = (&load, &mounts[worker % 2]);
                scope.spawn(move || load.work(mount, worker, 1500, seed));
            }
        });
        for (at, (name, file)) in held.iter().enumerate() {
            let bytes = fs::read(mounts[1].path(name)).expect("an open file keeps its name");
            assert!(bytes == pattern(65_536, at as u64), "{name}");
            let mut bytes = vec![0; 65_536];
            file.read_exact_at(&mut bytes, 0).expect("an open file can be read");
        }
        let capacity = server.inner.statfs().blocks * BLOCK / 100 * 90 - 4 * 65_536;
        let (seen, exact) = load.hit_ratios(capacity);
        let status = counts(&server);
        eprintln!("over {over:?}: hit ratio {seen:.4}, exact LRU {exact:.4}; {status:?}");
        assert!(status.evicted_files > 1000 && status.failures == 0, "{status:?}");
        assert!((seen - exact).abs() <= 0.05 * exact, "hit ratio {seen}, of an exact LRU {exact}");
        // The last run ends at the low mark at the latest.
        let filled = || server.inner.statfs().blocks - server.free_blocks();
        assert!(eventually(|| filled() * 100 <= server.inner.statfs().blocks * 90), "{}", filled());
        assert!(filled() * 100 > server.inner.statfs().blocks * 80, "below the low mark");
        drop(held);
        mounts.into_iter().for_each(Mount::unmount);
    }
}

/// Writers that fill the export faster than the evictor empties it wait instead of failing.
#[test]
fn writers_that_find_no_space_get_it() {
    for over in providers() {
        let server = cache(16 * MIB, LRU);
        let mount = server.mount(over, &[]);
        thread::scope(|scope| {
            for worker in 0..4u64 {
                let mount = &mount;
                scope.spawn(move || {
                    for round in 0..12 {
                        let bytes = pattern(3 * MIB as usize, worker + round);
                        let path = mount.path(&format!("{worker}-{round}"));
                        fs::write(&path, &bytes).expect("no ENOSPC");
                    }
                });
            }
        });
        eprintln!("over {over:?}: {:?}", counts(&server));
        // All that is open counts: then there is no space to get.
        let big = File::create(mount.path("big")).expect("a file");
        let bytes = pattern(MIB as usize, 1);
        let refused = (0..20).find_map(|at| big.write_all_at(&bytes, at * MIB).err()).expect("it is full");
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        assert!(counts(&server).failures > 0);
        drop(big);
        mount.unmount();
    }
}

/// Another mount has the name, the attributes and the pages of a file in its caches.
#[test]
fn an_evicted_file_is_gone_on_all_mounts() {
    for over in providers() {
        let server = cache(16 * MIB, LRU);
        let long = ["--attr-timeout", "3600", "--entry-timeout", "3600"];
        let [a, b] = [server.mount(over, &long), server.mount(over, &long)];
        fs::create_dir(a.path("pinned")).expect("a directory");
        setxattr(a.path("pinned"), "user.rfs.pin", b"1", XattrFlags::empty()).expect("pinned");
        fs::write(a.path("pinned/kept"), pattern(MIB as usize, 5)).expect("written");
        let old = pattern(2 * MIB as usize, 1);
        fs::write(a.path("old"), &old).expect("written");
        assert!(fs::read(b.path("old")).expect("read") == old);
        assert_eq!(fs::read_dir(b.path("")).expect("listed").count(), 2);
        for at in 0..4u64 {
            fs::write(a.path(&format!("new-{at}")), pattern(3 * MIB as usize, at)).expect("written");
        }
        assert!(goes(&b.path("old")), "over {over:?}: {:?}", counts(&server));
        assert!(goes(&a.path("old")), "over {over:?}");
        let names: Vec<_> = fs::read_dir(b.path("")).expect("listed").collect();
        assert!(names.iter().all(|entry| entry.as_ref().expect("an entry").file_name() != "old"));
        assert!(fs::read(b.path("pinned/kept")).expect("read") == pattern(MIB as usize, 5));
        // The name is free again.
        fs::write(b.path("old"), b"new").expect("written");
        assert_eq!(fs::read(a.path("old")).expect("read"), b"new");
        [a, b].into_iter().for_each(Mount::unmount);
    }
}

/// A file that a mount has open stays until the server has ended the session of the killed mount.
#[test]
fn a_file_of_a_killed_mount_stays_until_its_session_ends() {
    for over in providers() {
        let server = cache(16 * MIB, LRU);
        let a = server.mount(over, &[]);
        let mut b = server.mount(over, &[]);
        fs::write(a.path("held"), pattern(2 * MIB as usize, 9)).expect("written");
        let held = File::open(b.path("held")).expect("opened");
        let fill = |round: u64| {
            for at in 0..6u64 {
                let name = format!("fill-{round}-{at}");
                fs::write(a.path(&name), pattern(3 * MIB as usize, at)).expect("no ENOSPC");
            }
        };
        fill(0);
        assert!(fs::read(a.path("held")).expect("it is open on b") == pattern(2 * MIB as usize, 9));
        b.signal(Signal::KILL);
        b.wait();
        drop(held);
        let mut round = 1;
        assert!(eventually(|| {
            round += 1;
            fill(round);
            is_gone(&a.path("held"))
        }));
        a.unmount();
    }
}

/// Files go by their age while there is space, on mounts that have them in their caches.
#[test]
fn old_files_go_by_themselves() {
    let ttl = Some(Duration::from_secs(2));
    let server = cache(16 * MIB, EvictionPolicy { by_use: false, ttl });
    let mount = server.mount(Over::Shm, &["--attr-timeout", "3600", "--entry-timeout", "3600"]);
    fs::write(mount.path("a"), b"one").expect("written");
    let open = File::create(mount.path("open")).expect("a file");
    assert_eq!(fs::read(mount.path("a")).expect("it is young"), b"one");
    assert!(goes(&mount.path("a")));
    let status = counts(&server);
    assert_eq!((status.expired_files, status.evicted_files), (1, 0), "{status:?}");
    assert!(fs::symlink_metadata(mount.path("open")).is_ok(), "it is open");
    drop(open);
    assert!(goes(&mount.path("open")));
    mount.unmount();
}

/// The log has evictions as any unlink, and the next server evicts the files of this one.
#[test]
fn evicted_files_stay_gone_after_a_restart() {
    let kept = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let with_memory = |config: &mut Config| {
        configure(config, 16 * MIB, LRU);
        config.memory_dir = Some(kept.path().to_owned());
    };
    let server = TestServer::with(16 * MIB, with_memory);
    let mount = server.mount(Over::Shm, &[]);
    let value = |at: u64| pattern(2 * MIB as usize, at);
    let write =
        |mount: &Mount, at: u64| fs::write(mount.path(&format!("v{at}")), value(at)).expect("no ENOSPC");
    fs::create_dir(mount.path("pinned")).expect("a directory");
    setxattr(mount.path("pinned"), "user.rfs.pin", b"", XattrFlags::empty()).expect("pinned");
    fs::write(mount.path("pinned/kept"), value(99)).expect("written");
    (0..8).for_each(|at| write(&mount, at));
    assert!(goes(&mount.path("v0")));
    mount.unmount();
    let server = server.again(16 * MIB, with_memory);
    let mount = server.mount(Over::Shm, &[]);
    assert!(is_gone(&mount.path("v0")));
    assert!(fs::read(mount.path("v7")).expect("the newest file") == value(7));
    (8..16).for_each(|at| write(&mount, at));
    assert!(goes(&mount.path("v6")), "files of the previous server");
    assert!(fs::read(mount.path("v15")).expect("the newest file") == value(15));
    assert!(fs::read(mount.path("pinned/kept")).expect("it is pinned") == value(99));
    mount.unmount();
}
