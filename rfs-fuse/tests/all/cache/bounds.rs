//! Bounds of caching in the kernel, granularity of times, and appends without the server's
//! involvement.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::common::{Mount, Over, TestServer, each, pairs, providers};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{IoSlice, ReadWriteFlags, pwritev2},
};

const MIB: u64 = 1 << 20;
const LOOKS: u64 = 20;
/// Longer than any timeout given to the kernel.
const LATER: Duration = Duration::from_millis(30);

/// Looks repeatedly at a file that does not change.
fn look(mount: &Mount) {
    for _ in 0..LOOKS {
        fs::metadata(mount.path("file")).expect("attributes");
        thread::sleep(LATER);
    }
}

/// Returns the one-sided reads of a mount over TCP for these looks.
fn reads_for_looks(options: &[&str]) -> u64 {
    let server = TestServer::new(16 * MIB);
    let options = [&["--stats-on-exit"], options].concat();
    let mount = server.mount(Over::Tcp, &options);
    fs::write(mount.path("file"), b"x").expect("written");
    look(&mount);
    let [reads] = mount.counted(["read_requests"]);
    reads
}

#[test]
fn attributes_are_cached_no_longer_than_the_timeout() {
    let (kept, bounded) = (reads_for_looks(&[]), reads_for_looks(&["--attr-timeout", "0.01"]));
    assert!(kept < LOOKS / 2, "{kept} reads for {LOOKS} looks at what is kept");
    assert!(bounded >= LOOKS - 1, "{bounded} reads for {LOOKS} looks at what is not");
}

/// Returns the lookups at the server for these looks.
fn lookups_for_looks(options: &[&str]) -> u64 {
    let server = TestServer::new(16 * MIB);
    let maker = server.mount(Over::Shm, &[]);
    fs::write(maker.path("file"), b"x").expect("written");
    maker.unmount();
    let lookups = || {
        let calls = server.inner.stats().calls;
        calls.iter().filter(|(name, _)| name.starts_with("lookup")).map(|(_, count)| count).sum::<u64>()
    };
    let mount = server.mount(Over::Shm, options);
    let before = lookups();
    look(&mount);
    let made = lookups() - before;
    mount.unmount();
    made
}

#[test]
fn names_are_cached_no_longer_than_the_timeout() {
    assert_eq!(lookups_for_looks(&[]), 1);
    assert_eq!(lookups_for_looks(&["--entry-timeout", "0.01"]), LOOKS);
}

/// Remote fetching (RFP): the client fetches replies from the server's memory, and notifies the
/// server of slow calls. By default only over shared memory, because over TCP replies by message
/// are faster.
#[test]
fn replies_are_fetched_over_shared_memory_and_on_request() {
    for over in providers() {
        let auto = over == Over::Shm;
        for (options, fetches) in
            [(&[][..], auto), (&["--calls", "fetch"], true), (&["--calls", "reply"], false)]
        {
            let server = TestServer::new(16 * MIB);
            let mount = server.mount(over, &[options, &["--stats-on-exit"]].concat());
            // Creates directories, lists them, and removes them.
            (0..100).for_each(|i| fs::create_dir(mount.path(&format!("d{i}"))).expect("made"));
            assert_eq!(fs::read_dir(&mount.point).expect("listed").count(), 100);
            (0..100).for_each(|i| fs::remove_dir(mount.path(&format!("d{i}"))).expect("removed"));
            let counted: u64 = mount.counted(["calls_fetched", "calls_rung"]).iter().sum();
            assert_eq!(counted >= 200, fetches, "{counted} over {over:?} with {options:?}");
            assert!(fetches || counted == 0, "{counted} over {over:?} with {options:?}");
        }
    }
}

fn mtime(path: &Path) -> i128 {
    let attr = fs::metadata(path).expect("attributes");
    i128::from(attr.mtime()) * 1_000_000_000 + i128::from(attr.mtime_nsec())
}

#[test]
fn mtime_of_a_file_under_constant_writes_advances_in_steps() {
    pairs(16 * MIB, &[], |_, a, b| {
        let (here, there) = (a.path("file"), b.path("file"));
        let mut file = File::create(&here).expect("made");
        let over = AtomicBool::new(false);
        let seen = thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    file.write_all(&[1; 64]).expect("written");
                }
            });
            let mut seen = vec![mtime(&there)];
            // The first value is the creation time.
            while seen.len() < 8 {
                let now = mtime(&there);
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
            }
            over.store(true, Ordering::Relaxed);
            seen
        });
        for step in seen[1..].windows(2) {
            assert!(step[1] - step[0] >= 4_000_000, "{seen:?}");
        }
        drop(file);
        assert!(crate::common::eventually(|| mtime(&there) == mtime(&here)));
    });
}

const RECORD: usize = 100;
const RECORDS: usize = 300;

/// Has two threads append records. Each record must appear once and whole.
fn append_side_by_side(path: &Path, append: impl Fn(&File, &[u8]) + Sync) {
    fs::write(path, b"").expect("made");
    thread::scope(|scope| {
        for who in [b'a', b'b'] {
            let append = &append;
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).expect("opened");
                (0..RECORDS).for_each(|_| append(&file, &[who; RECORD]));
            });
        }
    });
    let bytes = fs::read(path).expect("read");
    assert_eq!(bytes.len(), 2 * RECORDS * RECORD);
    let whole = |record: &[u8]| record.iter().all(|byte| *byte == record[0]);
    assert!(bytes.chunks(RECORD).all(whole));
    assert_eq!(bytes.iter().filter(|byte| **byte == b'a').count(), RECORDS * RECORD);
}

#[test]
fn setting_o_append_later_works_on_one_mount() {
    each(16 * MIB, |_, mount| {
        append_side_by_side(&mount.path("flag"), |mut file, record| {
            fcntl_setfl(file, fcntl_getfl(file).expect("flags") | OFlags::APPEND).expect("set");
            file.write_all(record).expect("written");
        });
        append_side_by_side(&mount.path("call"), |file, record| {
            let written = pwritev2(file, &[IoSlice::new(record)], u64::MAX, ReadWriteFlags::APPEND);
            assert_eq!(written, Ok(RECORD));
        });
    });
}
