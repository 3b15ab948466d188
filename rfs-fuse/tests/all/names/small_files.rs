//! Large numbers of small files, and of names in one directory.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::common::{Lender, Over, eventually, pattern, providers};
use rdmabox::SessionOptions;
use rfs_client::{AttachOptions, Client, Creator};
use rfs_proto::ROOT_INO;

const MIB: u64 = 1 << 20;

/// Writes files in the manner of a backup: create, write, close, next.
#[test]
fn a_hundred_thousand_files_of_one_kib_take_a_block_each() {
    const FILES: u64 = 100_000;
    for over in providers() {
        let lender = Lender::with(512 * MIB, |config| config.inodes = Some(FILES as u32 + 1000));
        let mount = lender.mount(over, &[]);
        let free = lender.free_blocks();
        let content = pattern(1024, 7);
        for directory in 0..100 {
            let directory = mount.path(&format!("{directory}"));
            fs::create_dir(&directory).expect("made");
            for file in 0..FILES / 100 {
                let mut file = File::create_new(directory.join(format!("{file}"))).expect("made");
                file.write_all(&content).expect("written");
            }
        }
        // The kernel closes files in the background.
        assert!(eventually(|| free - lender.free_blocks() == FILES));
        for name in ["0/0", "0/999", "57/123", "99/999"] {
            assert!(fs::read(mount.path(name)).expect("read") == content, "{name}");
        }
        mount.unmount();
    }
}

const NAMES: u64 = 1_000_000;
/// Number of leading names that come and go.
const RESTLESS: u64 = 1000;

/// Remaining names are listed exactly once, regardless of changes during the listing.
#[test]
fn a_million_entries_are_listed_completely_while_they_change() {
    providers().into_iter().for_each(a_million_over);
}

fn a_million_over(over: Over) {
    let lender = Lender::with(64 * MIB, |config| config.inodes = Some(NAMES as u32 + 10_000));
    let connect = || {
        let address = lender.address(over).parse().expect("an address");
        Client::connect(&address, &SessionOptions::default(), &AttachOptions::default()).expect("connected")
    };
    let by = Creator { uid: 0, gid: 0, umask: 0 };
    let client = connect();
    let directory = client.mkdir(ROOT_INO, b"many", 0o755, by).expect("made").ino;
    let make = |name: &str| {
        client.mknod(directory, name.as_bytes(), 0o100_644, 0, by).map(|attr| client.forget(attr.ino, 1))
    };
    thread::scope(|scope| {
        for part in 0..2 {
            let make = &make;
            scope.spawn(move || {
                (part..NAMES).step_by(2).for_each(|n| make(&format!("stays{n}")).expect("made"))
            });
        }
    });
    let mount = lender.mount(over, &[]);
    let done = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    let mut listed: HashMap<String, u32> = HashMap::with_capacity(NAMES as usize);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                let name = |n: u64| format!("restless{}", n % RESTLESS);
                make(&name(round)).expect("made");
                if round >= 10 {
                    client.unlink(directory, name(round - 10).as_bytes()).expect("removed");
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
        (&mut entries).take(NAMES as usize / 2).for_each(&mut list);
        let before = changes.load(Ordering::Relaxed);
        assert!(eventually(|| changes.load(Ordering::Relaxed) >= before + 100));
        entries.for_each(&mut list);
        done.store(true, Ordering::Relaxed);
    });
    for n in 0..NAMES {
        assert_eq!(listed.get(&format!("stays{n}")), Some(&1), "stays{n}");
    }
    let others = listed.keys().filter(|name| !name.starts_with("stays"));
    assert!(others.clone().all(|name| name.starts_with("restless")), "{:?}", others.collect::<Vec<_>>());
    mount.unmount();
}
