//! Files that are made without a name (O_TMPFILE), and that may get one.

use std::{
    fs::{self, File, Permissions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, PermissionsExt, chown},
    },
    path::Path,
    process::Command,
};

use crate::common::{
    Mount, Over, TestServer, each, eventually, is_in_own_process, is_mounted, pairs, providers,
};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat, open},
    io::Errno,
    process::Signal,
};

const MIB: u64 = 1 << 20;

/// Makes a file without a name in a directory.
fn unnamed(directory: &Path, more: OFlags) -> Result<File, Errno> {
    open(directory, OFlags::TMPFILE | OFlags::RDWR | more, Mode::from_raw_mode(0o666)).map(File::from)
}

/// Names a file by its entry in /proc, as a program without privileges does.
fn name(file: &File, path: &Path) -> Result<(), Errno> {
    linkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), CWD, path, AtFlags::SYMLINK_FOLLOW)
}

fn names(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).expect("listed");
    listed.map(|entry| entry.expect("listed").file_name().into_string().expect("UTF-8")).collect()
}

fn inodes_free(server: &TestServer) -> u64 {
    server.inner.statfs().inodes_free
}

/// Detects a name that other mounts see, and missing bytes once the file has its name. Also detects
/// a file that stays unlinked at the server although it has a name.
#[test]
fn a_file_gets_its_name_when_it_is_complete() {
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |server, a, b| {
            fs::create_dir(a.path("directory")).expect("made");
            let before = fs::metadata(a.path("directory")).expect("attributes");
            let file = unnamed(&a.path("directory"), OFlags::empty()).expect("made");
            file.write_all_at(b"complete", 0).expect("written");
            let attributes = file.metadata().expect("attributes");
            assert_eq!((attributes.nlink(), attributes.len()), (0, 8));
            for mount in [a, b] {
                assert_eq!(names(&mount.path("directory")), [""; 0]);
            }
            let after = fs::metadata(a.path("directory")).expect("attributes");
            assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
            // In another directory than the one that it was made for.
            name(&file, &a.path("named")).expect("linked");
            assert_eq!(file.metadata().expect("attributes").nlink(), 1);
            assert_eq!(fs::read(b.path("named")).expect("read"), b"complete");
            assert_eq!(fs::metadata(b.path("named")).expect("attributes").nlink(), 1);
            linkat(&file, "", CWD, a.path("second"), AtFlags::EMPTY_PATH).expect("linked");
            assert_eq!(fs::metadata(b.path("second")).expect("attributes").nlink(), 2);
            file.write_all_at(b"later", 8).expect("written");
            drop(file);
            assert_eq!(fs::read(b.path("second")).expect("read"), b"completelater");
            // Its names go as all names, and the file with them.
            let free = inodes_free(server);
            fs::remove_file(b.path("named")).expect("removed");
            fs::remove_file(a.path("second")).expect("removed");
            assert!(eventually(|| inodes_free(server) == free + 1), "the file stays");
        });
    }
}

/// Detects a file that can get a name again after it has lost its last one.
#[test]
fn a_file_that_has_lost_its_names_gets_no_name() {
    pairs(16 * MIB, &[], |_, a, b| {
        let file = unnamed(&a.point, OFlags::empty()).expect("made");
        name(&file, &a.path("named")).expect("linked");
        fs::remove_file(b.path("named")).expect("removed");
        assert_eq!(name(&file, &a.path("again")), Err(Errno::NOENT));
        let created = File::create(a.path("created")).expect("created");
        fs::remove_file(b.path("created")).expect("removed");
        assert_eq!(name(&created, &a.path("again")), Err(Errno::NOENT));
        let exclusive = unnamed(&a.point, OFlags::EXCL).expect("made");
        assert_eq!(name(&exclusive, &a.path("again")), Err(Errno::NOENT), "O_EXCL");
        let taken = unnamed(&a.point, OFlags::empty()).expect("made");
        fs::write(b.path("taken"), b"by another").expect("written");
        assert_eq!(name(&taken, &a.path("taken")), Err(Errno::EXIST));
        name(&taken, &a.path("free")).expect("linked");
    });
}

/// Detects space or inodes that stay after the last close, also of a client that was killed.
#[test]
fn a_file_without_a_name_goes_with_its_last_descriptor() {
    for over in providers() {
        let server = TestServer::new(32 * MIB);
        let (mut a, b) = (server.mount(over, &[]), server.mount(over, &[]));
        let free = (server.free_blocks(), inodes_free(&server));
        let is_free = || eventually(|| (server.free_blocks(), inodes_free(&server)) == free);
        let file = unnamed(&a.point, OFlags::empty()).expect("made");
        file.write_all_at(&vec![1; 4 << 20], 0).expect("written");
        assert!(server.free_blocks() < free.0 && inodes_free(&server) == free.1 - 1);
        let second = file.try_clone().expect("a descriptor");
        drop(file);
        let mut byte = [0];
        second.read_exact_at(&mut byte, (4 << 20) - 1).expect("read");
        assert_eq!(byte, [1]);
        drop(second);
        assert!(is_free(), "{over:?}: after the last close");
        let killed = unnamed(&a.point, OFlags::empty()).expect("made");
        killed.write_all_at(&vec![1; 4 << 20], 0).expect("written");
        a.signal(Signal::KILL);
        a.wait();
        assert!(is_free(), "{over:?}: after the death of the mount");
        drop(killed);
        assert!(eventually(|| !is_mounted(&a.point)));
        b.unmount();
    }
}

/// Detects a file with the permissions, the group or the ACL of a file in another directory.
#[test]
fn a_file_inherits_from_its_directory() {
    const GROUP: u32 = 1234;
    // The umask is the process's.
    if !is_in_own_process(module_path!(), "a_file_inherits_from_its_directory") {
        return;
    }
    each(16 * MIB, |_, mount| {
        let mode = |file: &File| file.metadata().expect("attributes").mode() & 0o7777;
        let umask = rustix::process::umask(Mode::from_raw_mode(0o027));
        let masked = unnamed(&mount.point, OFlags::empty()).expect("made");
        fs::create_dir(mount.path("shared")).expect("made");
        chown(mount.path("shared"), None, Some(GROUP)).expect("chown");
        fs::set_permissions(mount.path("shared"), Permissions::from_mode(0o2775)).expect("chmod");
        let shared = unnamed(&mount.path("shared"), OFlags::empty()).expect("made");
        fs::create_dir(mount.path("acl")).expect("made");
        let acl = ["-d", "-m", "u::rw,g::r,o::r,u:1001:rw,m::rw"];
        let set = Command::new("setfacl").args(acl).arg(mount.path("acl")).status();
        assert!(set.expect("setfacl(1)").success());
        let acl = unnamed(&mount.path("acl"), OFlags::empty()).expect("made");
        rustix::process::umask(umask);
        assert_eq!(mode(&masked), 0o640);
        assert_eq!((mode(&shared), shared.metadata().expect("attributes").gid()), (0o640, GROUP));
        assert_eq!(mode(&acl), 0o664, "the default ACL replaces the umask");
        name(&acl, &mount.path("acl/file")).expect("linked");
        let said =
            Command::new("getfacl").arg("-np").arg(mount.path("acl/file")).output().expect("getfacl(1)");
        assert!(String::from_utf8_lossy(&said.stdout).contains("user:1001:rw-"), "{said:?}");
    });
}

/// Detects a file that is made without a free inode, or in a directory that is gone.
#[test]
fn a_file_needs_a_free_inode_and_a_directory() {
    for over in providers() {
        let server = TestServer::with(16 * MIB, |config| config.inodes = Some(16));
        let mount = server.mount(over, &[]);
        let full: Vec<File> = (0..64).map_while(|_| unnamed(&mount.point, OFlags::empty()).ok()).collect();
        assert!(!full.is_empty() && full.len() < 16);
        assert_eq!(unnamed(&mount.point, OFlags::empty()).map(drop), Err(Errno::NOSPC));
        drop(full);
        assert!(eventually(|| unnamed(&mount.point, OFlags::empty()).is_ok()));
        fs::create_dir(mount.path("gone")).expect("made");
        let gone = File::open(mount.path("gone")).expect("opened");
        fs::remove_dir(mount.path("gone")).expect("removed");
        let there = format!("/proc/self/fd/{}", gone.as_raw_fd());
        assert_eq!(unnamed(Path::new(&there), OFlags::empty()).map(drop), Err(Errno::NOENT));
        drop(gone);
        mount.unmount();
    }
}

/// Detects an open file that is lost at a restart of the server, or cannot get its name after the
/// restart. Also detects a file whose space is never freed.
#[test]
fn a_file_without_a_name_survives_a_restart_of_the_server() {
    let restarts = |over: Over, memory: &Path| {
        let configure = |config: &mut rfs_server::Config| config.memory_dir = Some(memory.to_owned());
        let server = TestServer::with(16 * MIB, configure);
        let mount: Mount = server.mount(over, &[]);
        let free = inodes_free(&server);
        let [named, gone] = [0; 2].map(|_| unnamed(&mount.point, OFlags::empty()).expect("made"));
        for file in [&named, &gone] {
            file.write_all_at(b"before", 0).expect("written");
        }
        let server = server.again(16 * MIB, configure);
        named.write_all_at(b" and after", 6).expect("written after the restart");
        name(&named, &mount.path("named")).expect("linked after the restart");
        drop(named);
        assert_eq!(fs::read(mount.path("named")).expect("read"), b"before and after");
        drop(gone);
        assert!(eventually(|| inodes_free(&server) == free - 1), "{over:?}: the space stays");
        mount.unmount();
    };
    for over in providers() {
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        restarts(over, &memory.path().join("memory"));
    }
}
