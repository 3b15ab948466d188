//! A mount that is stopped for longer than its lease, while its space is given to another client.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::common::{Lender, Mount, Over, eventually, providers, stop};
use rdmabox::Fencing;
use rfs_server::Config;
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    process::{Pid, Signal, WaitId, WaitIdOptions, waitid},
};

const MIB: usize = 1 << 20;
/// All memory of the server.
const MEMORY: usize = 24 * MIB;
/// Most of the memory.
const OLD: usize = 16 * MIB;

/// Long enough for a running mount to renew it on a busy machine.
const LEASE: Duration = Duration::from_secs(8);

const ITS: u8 = 0xaa;
const OURS: u8 = 0x55;

/// Kills a mount when the test fails, so that the test's threads do not wait for it.
struct KilledOnPanic<'a>(&'a Mount);

impl Drop for KilledOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.signal(Signal::KILL);
        }
    }
}

/// Opens with O_DIRECT, so that every request reaches rfs-fuse.
fn direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path)
        .expect("opened")
}

/// Runs an operation on one block after the other until it fails.
fn until_it_fails(
    count: &AtomicUsize,
    first: usize,
    mut act: impl FnMut(u64) -> io::Result<usize>,
) -> io::Error {
    for block in (first..OLD / MIB).step_by(2).cycle() {
        if let Err(e) = act((block * MIB) as u64) {
            return e;
        }
        count.fetch_add(1, Ordering::SeqCst);
    }
    unreachable!("there is always another one")
}

fn has_ended(process: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(process), options).expect("its process").is_some()
}

fn held_still(over: Over) {
    let lender = Lender::with(MEMORY as u64, |config| {
        config.fencing = Fencing::new(LEASE, true);
    });
    let mut held = lender.mount(over, &[]);
    let other = lender.mount(over, &[]);
    let old = direct(&held.path("old"));
    for block in 0..OLD / MIB {
        old.write_all_at(&vec![ITS; MIB], (block * MIB) as u64).expect("written");
    }
    let locked = File::create(held.path("locked")).expect("created");
    flock(&locked, FlockOperation::LockExclusive).expect("locked");
    let free = lender.free_blocks();

    let counts = [const { AtomicUsize::new(0) }; 4];
    let data = vec![ITS; MIB];
    thread::scope(|scope| {
        let (old, counts, data) = (&old, &counts, &data);
        let _held = KilledOnPanic(&held);
        let writers = [0, 1].map(|first| {
            scope.spawn(move || until_it_fails(&counts[first], first, |at| old.write_at(data, at)))
        });
        let readers = [0, 1].map(|first| {
            scope.spawn(move || {
                let mut back = vec![0; MIB];
                until_it_fails(&counts[2 + first], first, |at| {
                    let len = old.read_at(&mut back, at)?;
                    assert!(back[..len].iter().all(|byte| *byte == ITS), "another file's bytes");
                    Ok(len)
                })
            })
        });
        // All threads are in the middle of their work.
        assert!(eventually(|| counts.iter().all(|count| count.load(Ordering::SeqCst) > 20)));
        stop(held.pid());

        // The end of the lease frees the lock, and then the space.
        std::fs::remove_file(other.path("old")).expect("removed");
        let lock = File::open(other.path("locked")).expect("opened");
        flock(&lock, FlockOperation::LockExclusive).expect("locked");
        assert!(eventually(|| lender.free_blocks() >= free + (OLD / 4096) as u64));
        let mut new = direct(&other.path("new"));
        let mut len = 0;
        let full = loop {
            match new.write(&vec![OURS; MIB]) {
                Ok(count) => len += count,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        // The new file thus covers all of the freed space.
        assert!(len + MIB >= MEMORY, "{len}");

        held.signal(Signal::CONT);
        for thread in writers.into_iter().chain(readers) {
            use rustix::io::Errno;
            let expected: &[Errno] = match over {
                Over::Shm => &crate::common::KILLED,
                // The mount has reconnected and finds the file removed.
                _ => &[Errno::STALE, Errno::IO],
            };
            assert_is_one_of(&thread.join().expect("no panic"), expected);
        }
        assert_is_whole(&new, len);
    });
    drop((old, locked));
    match over {
        Over::Shm => {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(held.wait().0.signal(), Some(Signal::KILL.as_raw()));
        }
        _ => held.unmount(),
    }
    other.unmount();
}

#[test]
fn a_stopped_mount_does_no_harm_when_it_resumes() {
    // Runs concurrently, so that the leases expire at the same time.
    thread::scope(|scope| {
        for over in providers() {
            scope.spawn(move || held_still(over));
        }
    });
}

/// Over shared memory a mount has the memory mapped. A server that may not kill it must wait. It
/// reuses nothing that the mount had open before the mount ends, or resumes and releases the
/// memory. The mount was writing when it was stopped.
fn a_straggler_is_kept(goes_on: bool) {
    let lender = Lender::with(MEMORY as u64, |config| {
        config.fencing = Fencing::new(Duration::from_secs(2), false);
    });
    let mut held = lender.mount(Over::Shm, &[]);
    let other = lender.mount(Over::Shm, &[]);
    // Started in advance: starting a program later would close inherited descriptors of the stopped
    // mount, and block.
    let clocks = [0; 2].map(|_| lender.mount(Over::Tcp, &[]));
    let old = direct(&held.path("old"));
    (0..OLD / MIB)
        .for_each(|block| old.write_all_at(&vec![ITS; MIB], (block * MIB) as u64).expect("written"));
    let free = lender.free_blocks();
    let (count, data) = (AtomicUsize::new(0), vec![ITS; MIB]);
    thread::scope(|scope| {
        let (old, count, data) = (&old, &count, &data);
        let _held = KilledOnPanic(&held);
        let writers = [0, 1]
            .map(|first| scope.spawn(move || until_it_fails(count, first, |at| old.write_at(data, at))));
        assert!(eventually(|| count.load(Ordering::SeqCst) > 20));
        stop(held.pid());
        std::fs::remove_file(other.path("old")).expect("removed");
        // Two leases of other mounts expire one after the other. The stopped mount stays away for
        // longer than both.
        for clock in &clocks {
            let sessions = lender.server.stats().sessions;
            stop(clock.pid());
            assert!(eventually(|| lender.server.stats().sessions < sessions));
            clock.signal(Signal::KILL);
        }
        assert!(!has_ended(held.pid()), "it is not killed");
        assert_eq!(lender.free_blocks(), free, "its space is not reused");
        // The other mount takes all of the remaining space.
        let mut new = direct(&other.path("new"));
        let mut len = 0;
        let take_all = |new: &mut File, len: &mut usize| {
            while let Ok(count) = new.write(&vec![OURS; MIB]) {
                *len += count;
            }
        };
        take_all(&mut new, &mut len);
        held.signal(if goes_on { Signal::CONT } else { Signal::KILL });
        // The stopped mount has released the memory, or has ended.
        assert!(eventually(|| lender.free_blocks() >= (OLD / 4096) as u64));
        take_all(&mut new, &mut len);
        assert!(len + MIB >= MEMORY, "the new file covers all of its space: {len}");
        use rustix::io::Errno;
        let expected: &[Errno] = match goes_on {
            // The file has been removed.
            true => &[Errno::STALE, Errno::IO],
            false => &crate::common::KILLED,
        };
        for writer in writers {
            assert_is_one_of(&writer.join().expect("no panic"), expected);
        }
        assert_is_whole(&new, len);
    });
    drop((old, clocks));
    match goes_on {
        true => held.unmount(),
        false => drop(held.wait()),
    }
    other.unmount();
}

#[test]
fn a_kept_straggler_keeps_its_open_files_until_it_ends() {
    if providers().contains(&Over::Shm) {
        a_straggler_is_kept(false);
    }
}

#[test]
fn a_kept_straggler_does_no_harm_when_it_resumes() {
    if providers().contains(&Over::Shm) {
        a_straggler_is_kept(true);
    }
}

/// Checks that the new file is complete, without bytes of the stopped mount.
#[track_caller]
fn assert_is_whole(new: &File, len: usize) {
    let mut back = vec![0; len];
    new.read_exact_at(&mut back, 0).expect("read");
    assert_eq!(back.iter().position(|byte| *byte != OURS), None, "written by the stopped mount");
}

#[track_caller]
fn assert_is_one_of(error: &io::Error, expected: &[rustix::io::Errno]) {
    let told = error.raw_os_error();
    assert!(expected.iter().any(|errno| Some(errno.raw_os_error()) == told), "{error}");
}

/// Stops a mount while the server ends and its successor starts. The successor reuses nothing
/// that the mount had open before the mount ends, or resumes and releases the memory.
fn held_still_over_a_restart(kill: bool) {
    let memory = crate::common::directory();
    let configure = |config: &mut Config| {
        config.memory_dir = Some(memory.path().join("memory"));
        config.fencing = Fencing::new(LEASE, kill);
    };
    let lender = Lender::with(MEMORY as u64, configure);
    let mut held = lender.mount(Over::Shm, &[]);
    let other = lender.mount(Over::Shm, &[]);
    let old = direct(&held.path("old"));
    (0..OLD / MIB)
        .for_each(|block| old.write_all_at(&vec![ITS; MIB], (block * MIB) as u64).expect("written"));
    let count = AtomicUsize::new(0);
    let data = vec![ITS; MIB];
    let process = held.pid();
    let lender = thread::scope(|scope| {
        let (old, count, data) = (&old, &count, &data);
        let _held = KilledOnPanic(&held);
        let writers = [0, 1]
            .map(|first| scope.spawn(move || until_it_fails(count, first, |at| old.write_at(data, at))));
        assert!(eventually(|| count.load(Ordering::SeqCst) > 20));
        stop(held.pid());
        let lender = lender.again(MEMORY as u64, configure);
        // The other mount has reconnected. It does not wait longer for the stopped mount than with
        // the previous server.
        let forgets = lender.handled("forget");
        std::fs::remove_file(other.path("old")).expect("removed");
        // Otherwise the stopped mount could open the file again when it resumes.
        assert!(eventually(|| lender.handled("forget") > forgets), "the other mount gives the file up");
        if kill {
            assert!(eventually(|| has_ended(process)), "the server kills it to remove its mapping");
            assert!(eventually(|| lender.free_blocks() >= (OLD / 4096) as u64));
        }
        let mut new = direct(&other.path("new"));
        let mut len = 0;
        let full = loop {
            match new.write(&vec![OURS; MIB]) {
                Ok(count) => len += count,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        if kill {
            assert!(len + MIB >= MEMORY, "the new file covers all of its space: {len}");
        } else {
            assert!(!has_ended(process) && len <= MEMORY - OLD, "its space is not reused: {len}");
            held.signal(Signal::CONT);
            // The mount releases the memory, and finds the file removed.
            assert!(eventually(|| lender.free_blocks() >= (OLD / 4096) as u64));
            while let Ok(count) = new.write(&vec![OURS; MIB]) {
                len += count;
            }
            assert!(len + MIB >= MEMORY, "{len}");
        }
        use rustix::io::Errno;
        let expected: &[Errno] = match kill {
            true => &crate::common::KILLED,
            false => &[Errno::STALE, Errno::IO],
        };
        for thread in writers {
            assert_is_one_of(&thread.join().expect("no panic"), expected);
        }
        assert_is_whole(&new, len);
        drop(new);
        other.unmount();
        lender
    });
    drop(old);
    match kill {
        true => {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(held.wait().0.signal(), Some(Signal::KILL.as_raw()));
        }
        false => held.unmount(),
    }
    drop(lender);
}

#[test]
fn a_mount_stopped_during_a_restart_does_no_harm() {
    if !providers().contains(&Over::Shm) {
        return eprintln!("not run: RDMABOX_TEST_PROVIDERS does not name shm");
    }
    // Runs concurrently, so that the leases expire at the same time.
    thread::scope(|scope| {
        for kill in [true, false] {
            scope.spawn(move || held_still_over_a_restart(kill));
        }
    });
}
