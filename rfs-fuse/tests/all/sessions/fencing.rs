//! A mount that is stopped for longer than its lease, while its space is given to another client.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        process::ExitStatusExt,
    },
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::common::{Mount, Over, TestServer, eventually, providers, stop};
use rdmabox::Fencing;
use rfs_server::Config;
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
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

/// Writes [`OLD`] bytes to a new file, which stays open.
fn write_old(held: &Mount) -> File {
    let old = direct(&held.path("old"));
    for block in 0..OLD / MIB {
        old.write_all_at(&vec![ITS; MIB], (block * MIB) as u64).expect("written");
    }
    old
}

/// Writes to a file until no space is left. Returns the number of bytes, and the error.
fn fill(new: &mut File) -> (usize, io::Error) {
    let mut len = 0;
    loop {
        match new.write(&vec![OURS; MIB]) {
            Ok(count) => len += count,
            Err(e) => return (len, e),
        }
    }
}

/// Writes blocks of the file in turn until a write fails.
fn write_until_it_fails(old: &File, count: &AtomicUsize, first: usize) -> io::Error {
    let data = vec![ITS; MIB];
    until_it_fails(count, first, |at| old.write_at(&data, at))
}

/// Reads blocks of the file in turn until a read fails. They never have other bytes.
fn read_until_it_fails(old: &File, count: &AtomicUsize, first: usize) -> io::Error {
    let mut back = vec![0; MIB];
    until_it_fails(count, first, |at| {
        let len = old.read_at(&mut back, at)?;
        assert!(back[..len].iter().all(|byte| *byte == ITS), "another file's bytes");
        Ok(len)
    })
}

/// Returns the errors of a resumed mount's requests: over shared memory the server has `killed` it.
/// Otherwise it has reconnected and finds the file removed.
fn errors_of_resumed(killed: bool) -> &'static [Errno] {
    match killed {
        true => &crate::common::KILLED,
        false => &[Errno::STALE, Errno::IO],
    }
}

/// Unmounts, or checks that the server has `killed` the mount.
fn end(mut held: Mount, killed: bool) {
    match killed {
        true => assert_eq!(held.wait().0.signal(), Some(Signal::KILL.as_raw())),
        false => held.unmount(),
    }
}

fn held_still(over: Over) {
    let server = TestServer::with(MEMORY as u64, |config| {
        config.fencing = Fencing::new(LEASE, true);
    });
    let held = server.mount(over, &[]);
    let other = server.mount(over, &[]);
    let old = write_old(&held);
    let locked = File::create(held.path("locked")).expect("created");
    flock(&locked, FlockOperation::LockExclusive).expect("locked");
    let free = server.free_blocks();

    let counts = [const { AtomicUsize::new(0) }; 4];
    let killed = over == Over::Shm;
    thread::scope(|scope| {
        let (old, counts) = (&old, &counts);
        let _held = KilledOnPanic(&held);
        let writers =
            [0, 1].map(|first| scope.spawn(move || write_until_it_fails(old, &counts[first], first)));
        let readers =
            [0, 1].map(|first| scope.spawn(move || read_until_it_fails(old, &counts[2 + first], first)));
        // All threads are in the middle of their work.
        assert!(eventually(|| counts.iter().all(|count| count.load(Ordering::SeqCst) > 20)));
        stop(held.pid());
        eprintln!("over {over:?}: stopped");

        // The end of the lease frees the lock, and then the space.
        std::fs::remove_file(other.path("old")).expect("removed");
        let lock = File::open(other.path("locked")).expect("opened");
        flock(&lock, FlockOperation::LockExclusive).expect("locked");
        eprintln!("over {over:?}: locked");
        assert!(eventually(|| server.free_blocks() >= free + (OLD / 4096) as u64));
        let mut new = direct(&other.path("new"));
        let (len, full) = fill(&mut new);
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        // The new file thus covers all of the freed space.
        assert!(len + MIB >= MEMORY, "{len}");

        eprintln!("over {over:?}: filled, resuming");
        held.signal(Signal::CONT);
        for thread in writers.into_iter().chain(readers) {
            assert_is_one_of(&thread.join().expect("no panic"), errors_of_resumed(killed));
        }
        assert_is_whole(&new, len);
    });
    drop((old, locked));
    end(held, killed);
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

/// Checks that a server that may not kill a mount waits for it. Over shared memory the mount has
/// the memory mapped. The server reuses nothing that the mount had open before the mount ends, or
/// resumes and releases the memory. The mount was writing when it was stopped.
fn a_straggler_is_kept(goes_on: bool) {
    let server = TestServer::with(MEMORY as u64, |config| {
        config.fencing = Fencing::new(Duration::from_secs(2), false);
    });
    let mut held = server.mount(Over::Shm, &[]);
    let other = server.mount(Over::Shm, &[]);
    // Started in advance: starting a program later would close inherited descriptors of the stopped
    // mount, and block.
    let clocks = [0; 2].map(|_| server.mount(Over::Tcp, &[]));
    let old = write_old(&held);
    let free = server.free_blocks();
    let count = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (old, count) = (&old, &count);
        let _held = KilledOnPanic(&held);
        let writers = [0, 1].map(|first| scope.spawn(move || write_until_it_fails(old, count, first)));
        assert!(eventually(|| count.load(Ordering::SeqCst) > 20));
        stop(held.pid());
        std::fs::remove_file(other.path("old")).expect("removed");
        // Two leases of other mounts expire one after the other. The stopped mount stays away for
        // longer than both.
        for clock in &clocks {
            let sessions = server.inner.stats().sessions;
            stop(clock.pid());
            assert!(eventually(|| server.inner.stats().sessions < sessions));
            clock.signal(Signal::KILL);
        }
        assert!(!has_ended(held.pid()), "it is not killed");
        assert_eq!(server.free_blocks(), free, "its space is not reused");
        // The other mount takes all of the remaining space.
        let mut new = direct(&other.path("new"));
        let (mut len, _) = fill(&mut new);
        held.signal(if goes_on { Signal::CONT } else { Signal::KILL });
        // The stopped mount has released the memory, or has ended.
        assert!(eventually(|| server.free_blocks() >= (OLD / 4096) as u64));
        len += fill(&mut new).0;
        assert!(len + MIB >= MEMORY, "the new file covers all of its space: {len}");
        for writer in writers {
            assert_is_one_of(&writer.join().expect("no panic"), errors_of_resumed(!goes_on));
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
fn assert_is_one_of(error: &io::Error, expected: &[Errno]) {
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
    let server = TestServer::with(MEMORY as u64, configure);
    let held = server.mount(Over::Shm, &[]);
    let other = server.mount(Over::Shm, &[]);
    let old = write_old(&held);
    let count = AtomicUsize::new(0);
    let server = thread::scope(|scope| {
        let (old, count) = (&old, &count);
        let _held = KilledOnPanic(&held);
        let writers = [0, 1].map(|first| scope.spawn(move || write_until_it_fails(old, count, first)));
        assert!(eventually(|| count.load(Ordering::SeqCst) > 20));
        stop(held.pid());
        let server = server.again(MEMORY as u64, configure);
        // The other mount has reconnected. It does not wait longer for the stopped mount than with
        // the previous server.
        let forgets = server.handled("forget");
        std::fs::remove_file(other.path("old")).expect("removed");
        // Otherwise the stopped mount could open the file again when it resumes.
        assert!(eventually(|| server.handled("forget") > forgets), "the other mount gives the file up");
        let mut new = direct(&other.path("new"));
        let len = match kill {
            true => fill_after_kill(&server, &held, &mut new),
            false => fill_before_and_after_resume(&server, &held, &mut new),
        };
        assert!(len + MIB >= MEMORY, "the new file covers all of its space: {len}");
        for thread in writers {
            assert_is_one_of(&thread.join().expect("no panic"), errors_of_resumed(kill));
        }
        assert_is_whole(&new, len);
        drop(new);
        other.unmount();
        server
    });
    drop(old);
    end(held, kill);
    drop(server);
}

/// Fills a file once the server has killed the stopped mount to remove its mapping. Returns the
/// number of bytes.
fn fill_after_kill(server: &TestServer, held: &Mount, new: &mut File) -> usize {
    assert!(eventually(|| has_ended(held.pid())), "the server kills it to remove its mapping");
    assert!(eventually(|| server.free_blocks() >= (OLD / 4096) as u64));
    let (len, full) = fill(new);
    assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
    len
}

/// Fills a file while the stopped mount holds its space, and again after the mount has resumed. The
/// mount then releases the memory, and finds the file removed. Returns the number of bytes.
fn fill_before_and_after_resume(server: &TestServer, held: &Mount, new: &mut File) -> usize {
    let (len, full) = fill(new);
    assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
    assert!(!has_ended(held.pid()) && len <= MEMORY - OLD, "its space is not reused: {len}");
    held.signal(Signal::CONT);
    assert!(eventually(|| server.free_blocks() >= (OLD / 4096) as u64));
    len + fill(new).0
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
