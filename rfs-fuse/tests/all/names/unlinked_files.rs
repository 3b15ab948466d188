//! Inodes that lose their last name while a mount uses them: through a path it has just walked, a
//! descriptor, or a directory. No call gets ESTALE. The server frees every inode when the last
//! mount has forgotten it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Mount, TestServer, combinations, eventually, fuse_trace::FuseTrace, long, providers, random::Random,
};
use rustix::{
    fs::{
        AtFlags, Mode, OFlags, RawDir, Timespec, Timestamps, fchmod, fstat, futimens, mkdirat, open, openat,
        statat,
    },
    io::Errno,
};

const MIB: u64 = 1 << 20;
/// With all caching, and without caching.
const CACHES: [&[&str]; 2] = [&[], &["--cache", "none"]];

/// Runs a test for every combination of providers and each kind of caching. The arguments are the
/// mount that changes and the mount that uses. Also runs with one mount for both.
fn changer_and_user(test: impl Fn(&TestServer, &Mount, &Mount)) {
    for options in CACHES {
        for (first, second) in combinations() {
            eprintln!("{first:?} and {second:?}, {options:?}");
            let server = TestServer::new(64 * MIB);
            let (a, b) = (server.mount(first, options), server.mount(second, options));
            test(&server, &a, &b);
            all_is_freed(&server);
            b.unmount();
            a.unmount();
        }
        for over in providers() {
            eprintln!("{over:?}, one mount, {options:?}");
            let server = TestServer::new(64 * MIB);
            let mount = server.mount(over, options);
            test(&server, &mount, &mount);
            all_is_freed(&server);
            mount.unmount();
        }
    }
}

/// Checks that the mounts report on their own that they have forgotten all unlinked inodes.
fn all_is_freed(server: &TestServer) {
    assert!(eventually(|| server.inner.idle_inodes() == 0), "{} inodes stay", server.inner.idle_inodes());
}

/// Returns the entries of an open directory, without `.` and `..`.
fn list(dir: &OwnedFd) -> Result<Vec<String>, Errno> {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}

#[test]
fn a_name_that_is_replaced_over_and_over_is_always_opened() {
    let rounds = if long() { 600 } else { 150 };
    changer_and_user(|_, a, b| {
        let content = |round: u32| vec![round as u8; 5000];
        fs::write(a.path("name"), content(0)).expect("written");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        let bytes = fs::read(b.path("name")).expect("read");
                        assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]));
                    }
                });
            }
            for round in 1..=rounds {
                fs::write(a.path("next"), content(round)).expect("written");
                fs::rename(a.path("next"), a.path("name")).expect("replaced");
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(fs::read(b.path("name")).expect("read"), content(rounds));
        fs::remove_file(a.path("name")).expect("removed");
    });
}

/// `open` with O_CREAT creates or opens the file, while the other mount repeatedly creates and
/// removes the name.
#[test]
fn a_name_that_comes_and_goes_is_made_or_opened() {
    let rounds = if long() { 800 } else { 200 };
    changer_and_user(|_, a, b| {
        let open = |path: &Path| OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    drop(open(&b.path("name")).expect("made or opened"));
                }
            });
            for _ in 0..rounds {
                drop(open(&a.path("name")).expect("made or opened"));
                fs::remove_file(a.path("name")).expect("removed");
            }
            over.store(true, Ordering::SeqCst);
        });
        fs::remove_file(a.path("name")).ok();
    });
}

#[test]
fn a_removed_directory_that_is_open_is_an_empty_directory() {
    for options in CACHES {
        for (first, second) in combinations() {
            eprintln!("{first:?} and {second:?}, {options:?}");
            let server = TestServer::new(64 * MIB);
            let (a, b) = (server.mount(first, options), server.mount(second, options));
            fs::create_dir_all(a.path("dir/sub")).expect("made");
            fs::write(a.path("dir/file"), b"bytes").expect("written");
            let dir = open(b.path("dir"), OFlags::DIRECTORY, Mode::empty()).expect("opened");
            let mut names = list(&dir).expect("listed");
            names.sort();
            assert_eq!(names, ["file", "sub"]);
            fs::remove_dir_all(a.path("dir")).expect("removed");
            let found = fstat(&dir).expect("attributes");
            assert_eq!((found.st_nlink, found.st_mode & 0o170_000), (0, 0o040_000));
            for _ in 0..2 {
                assert_eq!(list(&dir), Ok(Vec::new()));
            }
            // The open directory is still a directory. It is empty, and nothing can be created in
            // it.
            assert_eq!(fchmod(&dir, Mode::RWXU), Ok(()));
            assert_eq!(fstat(&dir).expect("attributes").st_mode & 0o7777, 0o700);
            let time = Timespec { tv_sec: 1, tv_nsec: 0 };
            assert_eq!(futimens(&dir, &Timestamps { last_access: time, last_modification: time }), Ok(()));
            assert_eq!(mkdirat(&dir, "new", Mode::RWXU), Err(Errno::NOENT));
            let make = OFlags::CREATE | OFlags::WRONLY;
            assert_eq!(openat(&dir, "new", make, Mode::RWXU).map(drop), Err(Errno::NOENT));
            for name in ["file", "sub", "new"] {
                assert_eq!(statat(&dir, name, AtFlags::empty()).map(drop), Err(Errno::NOENT));
            }
            // A new directory of that name is another inode.
            fs::create_dir(a.path("dir")).expect("made");
            fs::write(a.path("dir/other"), b"").expect("written");
            assert_eq!(list(&dir), Ok(Vec::new()));
            assert_eq!(fs::read_dir(b.path("dir")).expect("opened").count(), 1);
            assert!(eventually(|| server.inner.idle_inodes() == 1), "the rest of the tree is forgotten");
            drop(dir);
            all_is_freed(&server);
            b.unmount();
            a.unmount();
        }
    }
}

/// A descriptor that names a file without opening it (O_PATH) stays valid after the file has lost
/// its name.
#[test]
fn an_inode_that_was_found_works_after_its_removal() {
    changer_and_user(|server, a, b| {
        let before = server.inner.statfs();
        fs::write(b.path("file"), b"old").expect("written");
        symlink("target", b.path("link")).expect("made");
        let found = ["file", "link"]
            .map(|name| open(b.path(name), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).expect("found"));
        fs::write(a.path("new"), b"new").expect("written");
        fs::rename(a.path("new"), a.path("file")).expect("replaced");
        fs::remove_file(a.path("link")).expect("removed");
        for found in &found {
            assert_eq!(fstat(found).expect("attributes").st_nlink, 0);
        }
        let through = format!("/proc/self/fd/{}", found[0].as_raw_fd());
        assert_eq!(fs::read(&through).expect("read"), b"old");
        fs::set_permissions(&through, fs::Permissions::from_mode(0o600)).expect("changed");
        assert_eq!(fs::metadata(&through).expect("attributes").mode() & 0o7777, 0o600);
        fs::write(&through, b"written through it").expect("written");
        assert_eq!(fs::read(&through).expect("read what was written"), b"written through it");
        let target = rustix::fs::readlinkat(&found[1], "", Vec::new());
        assert_eq!(target.expect("read").to_bytes(), b"target");
        assert_eq!(fs::read(b.path("file")).expect("read"), b"new");
        drop(found);
        all_is_freed(server);
        fs::remove_file(a.path("file")).expect("removed");
        all_is_freed(server);
        assert!(eventually(|| server.inner.statfs() == before), "space and inodes come back");
    });
}

/// A mount forgets a cached, unused inode when another mount removes it, without any access.
#[test]
fn a_cached_unused_inode_is_forgotten_on_removal() {
    changer_and_user(|server, a, b| {
        let before = server.inner.statfs();
        fs::create_dir(a.path("dir")).expect("made");
        for at in 0..100 {
            fs::write(a.path(&format!("dir/{at}")), vec![1; 5000]).expect("written");
        }
        for entry in fs::read_dir(b.path("dir")).expect("opened") {
            let entry = entry.expect("entry");
            assert_eq!(entry.metadata().expect("attributes").len(), 5000);
            assert_eq!(fs::read(entry.path()).expect("read").len(), 5000);
        }
        for at in 0..100 {
            fs::remove_file(a.path(&format!("dir/{at}"))).expect("removed");
        }
        // Holds even if the mount has already returned the unused names of the directory.
        all_is_freed(server);
        fs::remove_dir(a.path("dir")).expect("removed");
        all_is_freed(server);
        assert!(eventually(|| server.inner.statfs() == before), "space and inodes come back");
    });
}

/// A full server frees unlinked inodes that are not open before it reports that it is full.
#[test]
fn a_full_server_keeps_nothing_that_has_no_name() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mounts = [server.mount(over, &[]), server.mount(over, &[])];
        let big = vec![7; 9 * MIB as usize];
        fs::write(mounts[0].path("file"), &big).expect("written");
        let found = open(mounts[1].path("file"), OFlags::PATH, Mode::empty()).expect("found");
        fs::remove_file(mounts[0].path("file")).expect("removed");
        assert_eq!(server.inner.idle_inodes(), 1);
        assert!(server.free_blocks() > 15 * MIB / 4096, "what it could free is free");
        fs::write(mounts[0].path("other"), &big).expect("written");
        assert!(fs::read(mounts[1].path("other")).expect("read") == big);
        assert_eq!(server.inner.idle_inodes(), 0);
        let through = format!("/proc/self/fd/{}", found.as_raw_fd());
        assert_eq!(open(through, OFlags::RDONLY, Mode::empty()).map(drop), Err(Errno::STALE));
        drop(found);
        mounts.into_iter().for_each(Mount::unmount);
    }
}

/// Returns a random path in a small tree.
fn some_path(root: &Path, random: &mut Random) -> std::path::PathBuf {
    root.join(random.below(4).to_string()).join(random.below(6).to_string())
}

/// Makes a random change: creates, renames, replaces or removes.
fn change(root: &Path, random: &mut Random) {
    let (path, other) = (some_path(root, random), some_path(root, random));
    // Many changes are impossible in the current state.
    match random.below(7) {
        0 => drop(fs::write(&path, b"bytes")),
        1 => drop(fs::rename(&path, &other)),
        2 => drop(fs::remove_file(&path)),
        3 => drop(fs::create_dir(&path)),
        4 => drop(fs::remove_dir(&path)),
        5 => drop(symlink("t", &path)),
        _ => drop(fs::hard_link(&path, &other)),
    }
}

type Walk = fn(&Path) -> io::Result<()>;

const WALKS: [(&str, Walk); 9] = [
    ("stat", |path| fs::metadata(path).map(drop)),
    ("lstat", |path| fs::symlink_metadata(path).map(drop)),
    ("read", |path| fs::read(path).map(drop)),
    ("list", |path| fs::read_dir(path)?.try_for_each(|entry| entry.map(drop))),
    ("readlink", |path| fs::read_link(path).map(drop)),
    ("getxattr", |path| match rustix::fs::lgetxattr(path, "user.x", &mut [0_u8; 8]) {
        Err(Errno::NODATA) => Ok(()),
        found => Ok(found.map(drop)?),
    }),
    ("open directory", |path| {
        OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(path).map(drop)
    }),
    ("open to write", |path| OpenOptions::new().write(true).open(path).map(drop)),
    ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o755))),
];

/// Returns true if the kernel made the error of this thread's last call: the mount has answered the
/// call's last request without it. Prints the requests.
fn is_of_the_kernel(trace: &FuseTrace, name: &str, error: Errno) -> bool {
    let answers = trace.answers();
    eprintln!("{name}: {error}: {answers:?}");
    answers.last().is_some_and(|(_, answer)| *answer != error.raw_os_error())
}

/// Walks a tree during changes of other mounts. Returns the number of walks, and the errors by
/// call. Leaves out ESTALE that the kernel made, as far as `trace` shows that.
fn churn(
    changed: &Path,
    walked: &Path,
    time: Duration,
    trace: Option<&FuseTrace>,
) -> (u32, BTreeMap<(&'static str, i32), u32>) {
    (0..4).for_each(|at| fs::create_dir(changed.join(at.to_string())).expect("made"));
    let (end, walks) = (Instant::now() + time, AtomicU32::new(0));
    let makes = |seed| {
        let mut random = Random::new(seed);
        while Instant::now() < end {
            change(changed, &mut random);
        }
    };
    let walker = |seed| {
        let (mut random, mut errors) = (Random::new(seed), BTreeMap::new());
        while Instant::now() < end {
            let path = match random.below(10) {
                0 => walked.join(random.below(4).to_string()),
                _ => some_path(walked, &mut random),
            };
            let (name, walk) = WALKS[random.below(WALKS.len() as u64) as usize];
            walks.fetch_add(1, Ordering::Relaxed);
            trace.inspect(|trace| trace.mark());
            let Err(e) = walk(&path) else { continue };
            let error = e.raw_os_error().expect("an error of the system");
            let is_stale = error == Errno::STALE.raw_os_error();
            if !(is_stale && trace.is_some_and(|trace| is_of_the_kernel(trace, name, Errno::STALE))) {
                *errors.entry((name, error)).or_insert(0) += 1;
            }
        }
        errors
    };
    let (makes, walker) = (&makes, &walker);
    let errors = thread::scope(|scope| {
        for seed in [1, 3] {
            scope.spawn(move || makes(seed));
        }
        let walkers = [5, 7].map(|seed| scope.spawn(move || walker(seed)));
        walkers.map(|walker| walker.join().expect("thread"))
    });
    (0..4).for_each(|at| fs::remove_dir_all(changed.join(at.to_string())).expect("removed"));
    let mut sum = BTreeMap::new();
    errors.into_iter().flatten().for_each(|(error, count)| *sum.entry(error).or_insert(0) += count);
    (walks.into_inner(), sum)
}

/// A walker beside two changing mounts gets only errors that a local file system returns.
#[test]
fn a_walker_gets_the_errors_of_a_local_file_system() {
    let allowed =
        [Errno::NOENT, Errno::NOTDIR, Errno::INVAL, Errno::ISDIR, Errno::LOOP].map(Errno::raw_os_error);
    let check = |what: &str, (walks, errors): (u32, BTreeMap<(&'static str, i32), u32>)| {
        let wrong: Vec<_> = errors.iter().filter(|((_, error), _)| !allowed.contains(error)).collect();
        assert!(wrong.is_empty(), "{what}: of {walks} calls: {wrong:?}");
        assert!(walks > 100, "{what}: {walks} calls");
    };
    let local = tempfile::tempdir_in("/dev/shm").expect("a directory in a tmpfs");
    check("tmpfs", churn(local.path(), local.path(), Duration::from_secs(1), None));
    let trace = FuseTrace::start().inspect_err(|e| eprintln!("not run: a trace of requests: {e}")).ok();
    let time = Duration::from_secs(if long() { 4 } else { 1 });
    let walk = |a: &Mount, b: &Mount| churn(&a.point, &b.point, time, trace.as_ref());
    changer_and_user(|_, a, b| check("rfs", walk(a, b)));
}

/// A file that one mount has open, and that other mounts have cached, is freed at the last close.
#[test]
fn an_open_file_goes_with_its_last_close() {
    changer_and_user(|server, a, b| {
        let before = server.inner.statfs();
        fs::write(a.path("file"), b"bytes").expect("written");
        let file = File::open(b.path("file")).expect("opened");
        fs::remove_file(a.path("file")).expect("removed");
        assert_eq!(io::read_to_string(&file).expect("read"), "bytes");
        assert_eq!(file.metadata().expect("attributes").nlink(), 0);
        drop(file);
        assert!(eventually(|| server.inner.statfs() == before));
        all_is_freed(server);
    });
}
