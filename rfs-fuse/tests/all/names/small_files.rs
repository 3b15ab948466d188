//! Large numbers of small files, and of names in one directory.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::common::{Over, TestServer, eventually, long, pattern, providers};
use rdmabox::SessionOptions;
use rfs_client::{AttachOptions, Client, Creator};
use rfs_proto::ROOT_INO;

const MIB: u64 = 1 << 20;

/// Returns the providers with a number of names each: all over the first provider, and a tenth over
/// the others. The number matters to the server, whose part is the same for each provider. A test
/// that is not long takes a fifth of all.
fn sizes(all: u64) -> impl Iterator<Item = (Over, u64)> {
    let all = if long() { all } else { all / 5 };
    providers().into_iter().enumerate().map(move |(nth, over)| (over, if nth == 0 { all } else { all / 10 }))
}

/// Writes files in the manner of a backup: create, write, close, next.
#[test]
fn many_files_of_one_kib_take_a_block_each() {
    for (over, files) in sizes(100_000) {
        let server = TestServer::with(512 * MIB, |config| config.inodes = Some(files as u32 + 1000));
        let mount = server.mount(over, &[]);
        let free = server.free_blocks();
        let content = pattern(1024, 7);
        for directory in 0..100 {
            let directory = mount.path(&format!("{directory}"));
            fs::create_dir(&directory).expect("made");
            for file in 0..files / 100 {
                let mut file = File::create_new(directory.join(format!("{file}"))).expect("made");
                file.write_all(&content).expect("written");
            }
        }
        // The kernel closes files in the background.
        assert!(eventually(|| free - server.free_blocks() == files));
        let last = files / 100 - 1;
        for name in ["0/0".into(), format!("0/{last}"), format!("57/{}", last / 2), format!("99/{last}")] {
            assert!(fs::read(mount.path(&name)).expect("read") == content, "{name}");
        }
        mount.unmount();
    }
}

/// Number of leading names that come and go.
const RESTLESS: u64 = 1000;

/// Remaining names are listed exactly once, regardless of changes during the listing.
#[test]
fn many_entries_are_listed_completely_while_they_change() {
    sizes(1_000_000).for_each(|(over, names)| many_over(over, names));
}

fn many_over(over: Over, names: u64) {
    let server = TestServer::with(64 * MIB, |config| config.inodes = Some(names as u32 + 10_000));
    let connect = || {
        let address = server.address(over).parse().expect("an address");
        Client::connect(&address, &SessionOptions::default(), &AttachOptions::default()).expect("connected")
    };
    let by = Creator { uid: 0, gid: 0, umask: 0 };
    let client = connect();
    let directory = client.names.mkdir(ROOT_INO, b"many", 0o755, by).expect("made").ino;
    let make = |name: &str| {
        client
            .names
            .mknod(directory, name.as_bytes(), 0o100_644, 0, by)
            .map(|attr| client.lookups.forget(attr.ino, 1))
    };
    thread::scope(|scope| {
        for part in 0..2 {
            let make = &make;
            scope.spawn(move || {
                (part..names).step_by(2).for_each(|n| make(&format!("stays{n}")).expect("made"))
            });
        }
    });
    let mount = server.mount(over, &[]);
    let done = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    let mut listed: HashMap<String, u32> = HashMap::with_capacity(names as usize);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                let name = |n: u64| format!("restless{}", n % RESTLESS);
                make(&name(round)).expect("made");
                if round >= 10 {
                    client.names.unlink(directory, name(round - 10).as_bytes()).expect("removed");
                }
                round += 1;
                changes.store(round, Ordering::Relaxed);
            }
        });
        let mut entries = fs::read_dir(mount.path("many")).expect("opened");
        let mut list = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.expect("listed").file_name().into_string().expect("UTF-8");
            *listed.entry(name).or_default() += 1;
        };
        // Changes the directory a hundred times in the middle of the listing.
        (&mut entries).take(names as usize / 2).for_each(&mut list);
        let before = changes.load(Ordering::Relaxed);
        assert!(eventually(|| changes.load(Ordering::Relaxed) >= before + 100));
        entries.for_each(&mut list);
        done.store(true, Ordering::Relaxed);
    });
    for n in 0..names {
        assert_eq!(listed.get(&format!("stays{n}")), Some(&1), "stays{n}");
    }
    let others = listed.keys().filter(|name| !name.starts_with("stays"));
    assert!(others.clone().all(|name| name.starts_with("restless")), "{:?}", others.collect::<Vec<_>>());
    mount.unmount();
}
