//! The unsupported features that docs/semantics lists, and their errors. A feature that begins to
//! work must be removed from that list.

use std::{
    fs::{self, File, OpenOptions},
    io::IoSlice,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::MetadataExt,
    },
    process::Command,
};

use crate::common::{Mount, each, locking, pairs};
use rustix::{
    fs::{
        CWD, FallocateFlags, FlockOperation, XattrFlags, fallocate, flock, ioctl_ficlone, ioctl_getflags,
        setxattr, statvfs,
    },
    io::{Errno, ReadWriteFlags, pwritev2},
};

const MIB: u64 = 1 << 20;
/// Flag of pwritev2(2), from Linux 6.9 on.
const RWF_NOAPPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

fn made(mount: &Mount, name: &str) -> File {
    locking::open(&mount.path(name))
}

#[test]
fn modes_of_fallocate_that_move_bytes() {
    each(16 * MIB, |_, mount| {
        let file = made(mount, "file");
        for mode in
            [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE, FallocateFlags::UNSHARE_RANGE]
        {
            assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::OPNOTSUPP), "{mode:?}");
        }
    });
}

/// A kernel protects running programs from writers, and files open for writing from execution, on
/// its own mounts only.
#[test]
fn programs_that_other_mounts_write_to() {
    let busy = Some(Errno::TXTBSY.raw_os_error());
    let to_write = |path: &std::path::Path| OpenOptions::new().write(true).open(path);
    let errno = |e: std::io::Error| e.raw_os_error();
    pairs(16 * MIB, &[], |_, a, b| {
        fs::copy("/bin/sleep", a.path("sleep")).expect("copied");
        let mut runs = Command::new(a.path("sleep")).arg("1000").spawn().expect("it runs");
        assert_eq!(to_write(&a.path("sleep")).map(drop).map_err(errno), Err(busy));
        let writes = to_write(&b.path("sleep")).expect("no recall blocks it");
        let run = |mount: &Mount| Command::new(mount.path("sleep")).arg("0").status().map_err(errno);
        assert!(run(a).expect("it runs").success());
        assert_eq!(run(b), Err(busy));
        drop(writes);
        runs.kill().expect("killed");
        runs.wait().expect("it ends");
    });
}

#[test]
fn clones_and_flags_of_inodes() {
    each(16 * MIB, |_, mount| {
        let (file, other) = (made(mount, "file"), made(mount, "other"));
        assert_eq!(ioctl_getflags(&file).map(drop), Err(Errno::NOTTY));
        assert_eq!(ioctl_ficlone(&other, &file), Err(Errno::OPNOTSUPP));
    });
}

/// The kernel limits the value to one page.
#[test]
fn acls_of_more_than_a_page() {
    let acl = |users: u32| {
        let entry =
            |tag: u16, id: u32| [&tag.to_le_bytes()[..], &6u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let mut value = [2u32.to_le_bytes().to_vec(), entry(1, u32::MAX)].concat();
        (0..users).for_each(|user| value.extend(entry(2, user)));
        [4, 16, 32].into_iter().for_each(|tag| value.extend(entry(tag, u32::MAX)));
        value
    };
    each(16 * MIB, |_, mount| {
        made(mount, "file");
        let set =
            |users| setxattr(mount.path("file"), "system.posix_acl_access", &acl(users), XattrFlags::empty());
        // 4 bytes of header, and 8 for each of the four entries other than users.
        assert_eq!(set((4096 - 4 - 32) / 8), Ok(()));
        assert_eq!(set((4096 - 4 - 32) / 8 + 1), Err(Errno::TOOBIG));
    });
}

/// A write request has the flags of the open file, not those of the call.
#[test]
fn a_write_that_is_not_to_append_to_a_file_that_is_open_to_append() {
    each(16 * MIB, |_, mount| {
        fs::write(mount.path("file"), b"0123").expect("written");
        let file = OpenOptions::new().append(true).open(mount.path("file")).expect("opened");
        match pwritev2(&file, &[IoSlice::new(b"x")], 0, RWF_NOAPPEND) {
            Ok(1) => assert_eq!(fs::read(mount.path("file")).expect("read"), b"0123x"),
            // An older kernel.
            other => assert_eq!(other, Err(Errno::OPNOTSUPP)),
        }
    });
}

#[test]
fn locks_in_the_tables_of_proc() {
    each(16 * MIB, |_, mount| {
        let file = made(mount, "file");
        flock(&file, FlockOperation::LockExclusive).expect("locked");
        let inode = format!(":{} ", file.metadata().expect("attributes").ino());
        let device = fs::metadata(&mount.point).expect("attributes").dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let table = fs::read_to_string("/proc/locks").expect("procfs");
        let shown = table.lines().any(|line| line.contains(&format!("{major:02x}:{minor:02x}{inode}")));
        assert!(!shown, "{table}");
        let own = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).expect("procfs");
        assert!(!own.contains("lock:"), "{own}");
    });
}

#[test]
fn a_number_of_the_file_system() {
    each(16 * MIB, |_, mount| {
        assert_eq!(statvfs(&mount.point).expect("totals").f_fsid, 0);
    });
}

/// File handles instead of descriptors, as required for watching a whole file system.
#[test]
fn fanotify_of_the_whole_file_system() {
    use nix::libc;
    each(16 * MIB, |_, mount| {
        // SAFETY: the arguments are numbers.
        let group = unsafe {
            libc::fanotify_init(libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID, libc::O_RDONLY as u32)
        };
        assert!(group >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel just made the descriptor, and nothing else owns it.
        let group = unsafe { std::os::fd::OwnedFd::from_raw_fd(group) };
        let path = std::ffi::CString::new(mount.point.as_os_str().as_encoded_bytes()).expect("no NUL");
        let how = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
        // SAFETY: the path ends with a NUL, and the kernel does not keep it.
        let marked = unsafe {
            libc::fanotify_mark(group.as_raw_fd(), how, libc::FAN_CREATE, libc::AT_FDCWD, path.as_ptr())
        };
        let error = std::io::Error::last_os_error();
        assert_eq!((marked, error.raw_os_error()), (-1, Some(libc::ENODEV)));
    });
}

#[test]
fn maps_of_extents() {
    use nix::libc;
    /// FS_IOC_FIEMAP.
    const FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
    each(16 * MIB, |_, mount| {
        let file = made(mount, "file");
        // A struct fiemap that requests the number of extents.
        let mut ask = [0u64, u64::MAX, 0, 0];
        // SAFETY: the structure has the encoded length, and no extents follow it.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, ask.as_mut_ptr()) };
        let error = std::io::Error::last_os_error();
        assert_eq!((done, error.raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
    });
}

/// FUSE passes these requests on only to mounts that ask for ioctl requests, which rfs does not.
#[test]
fn ioctls_of_local_file_systems() {
    use nix::libc;
    each(16 * MIB, |_, mount| {
        let file = made(mount, "file");
        let root = File::open(&mount.point).expect("opened");
        for (name, on, number, error) in [
            ("FS_IOC_GETFSLABEL", &file, 0x8100_9431_u32, libc::ENOTTY),
            ("FS_IOC_SHUTDOWN", &file, 0x8004_587D, libc::ENOTTY),
            ("FS_IOC_ENABLE_VERITY", &file, 0x4080_6685, libc::ENOTTY),
            ("FS_IOC_FSGETXATTR", &file, 0x801C_581F, libc::ENOTTY),
            ("XFS_IOC_EXCHANGE_RANGE", &file, 0x4028_5881, libc::ENOTTY),
            ("FS_IOC_SET_ENCRYPTION_POLICY", &root, 0x800C_6613, libc::ENOTTY),
            ("FITRIM", &root, 0xC018_5879, libc::ENOTTY),
            ("FIFREEZE", &root, 0xC004_5877, libc::EOPNOTSUPP),
        ] {
            let mut argument = [0u8; 256];
            // SAFETY: each structure has at most the length of the buffer, and zeros are valid.
            let done = unsafe { libc::ioctl(on.as_raw_fd(), number as libc::Ioctl, argument.as_mut_ptr()) };
            let got = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((done, got), (-1, Some(error)), "{name}");
        }
    });
}

#[test]
fn swap_files() {
    use nix::libc;
    each(16 * MIB, |_, mount| {
        fs::write(mount.path("swap"), vec![0; 1 << 20]).expect("written");
        let path = std::ffi::CString::new(mount.path("swap").to_str().expect("UTF-8")).expect("no zero");
        // SAFETY: the path ends with a zero.
        let done = unsafe { libc::swapon(path.as_ptr(), 0) };
        let error = std::io::Error::last_os_error();
        assert_eq!((done, error.raw_os_error()), (-1, Some(libc::EINVAL)));
    });
}

#[test]
fn quotas_of_users() {
    use nix::libc;
    each(16 * MIB, |_, mount| {
        let root = File::open(&mount.point).expect("opened");
        let mut quota = [0u64; 32];
        let command = (libc::Q_GETQUOTA << 8) | libc::USRQUOTA;
        let (root, quota) = (root.as_raw_fd(), quota.as_mut_ptr());
        // SAFETY: the kernel writes less than the length of the buffer.
        let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, root, command, 0, quota) };
        let error = std::io::Error::last_os_error();
        assert_eq!((done, error.raw_os_error()), (-1, Some(libc::ENOSYS)));
    });
}

/// A kernel reports only its own changes to watchers of a directory.
#[test]
fn news_of_other_mounts() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    pairs(16 * MIB, &[], |_, a, b| {
        let watch = init(CreateFlags::NONBLOCK).expect("inotify");
        add_watch(&watch, &a.point, WatchFlags::CREATE | WatchFlags::DELETE).expect("watched");
        made(b, "other");
        made(a, "own");
        fs::remove_file(b.path("own")).expect("removed");
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&watch, &mut buffer);
        let event = reader.next().expect("an event");
        assert_eq!((event.file_name(), event.events()), (Some(c"own"), ReadFlags::CREATE));
        assert_eq!(reader.next().map(drop), Err(Errno::AGAIN));
    });
}

/// A lease of fcntl(2) is local to a kernel: other mounts do not break it.
#[test]
fn leases_that_other_mounts_break() {
    use nix::libc;
    fn lease(file: &File, command: i32, argument: i32) -> Result<i32, Errno> {
        // SAFETY: both commands take a number.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        match done {
            -1 => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("an error of the kernel's"))
            }
            kind => Ok(kind),
        }
    }
    pairs(16 * MIB, &[], |_, a, b| {
        fs::write(a.path("file"), b"x").expect("written");
        let file = File::open(a.path("file")).expect("opened");
        assert_eq!(lease(&file, libc::F_SETLEASE, libc::F_RDLCK), Ok(0));
        fs::write(b.path("file"), b"y").expect("no recall blocks it");
        assert_eq!(lease(&file, libc::F_GETLEASE, 0), Ok(libc::F_RDLCK));
        lease(&file, libc::F_SETLEASE, libc::F_UNLCK).expect("given up");
    });
}

/// A user namespace, as required for idmapped mounts, ended when dropped.
struct Namespace(std::process::Child);

impl Namespace {
    fn new() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--kill-child", "--fork", "sleep", "infinity"]);
        let child = command.spawn().expect("unshare");
        let own = fs::read_link("/proc/self/ns/user").expect("procfs");
        let namespace = Namespace(child);
        // Waits until the process is in the new namespace and the map is written.
        assert!(crate::common::eventually(|| {
            fs::read_link(namespace.path("ns/user")).is_ok_and(|theirs| theirs != own)
                && fs::read_to_string(namespace.path("uid_map")).is_ok_and(|map| !map.is_empty())
        }));
        namespace
    }

    fn path(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.id())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// On an idmapped mount the kernel would not send the caller's ids to FUSE.
#[test]
fn mounts_with_mapped_owners() {
    use nix::libc;
    use rustix::mount::{OpenTreeFlags, open_tree};
    crate::common::require_fuse();
    let namespace = Namespace::new();
    let users = File::open(namespace.path("ns/user")).expect("opened");
    let map = |point: &std::path::Path| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let copy = open_tree(CWD, point, flags).expect("a copy of the mount");
        let attributes = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_IDMAP,
            attr_clr: 0,
            propagation: 0,
            userns_fd: users.as_raw_fd() as u64,
        };
        // SAFETY: an empty path, and a structure of the given size.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                copy.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attributes,
                size_of::<libc::mount_attr>(),
            )
        };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error()) }
    };
    // Checks the call on a file system that supports idmapped mounts.
    assert_eq!(map("/dev/shm".as_ref()), Ok(()));
    each(16 * MIB, |_, mount| assert_eq!(map(&mount.point), Err(Some(libc::EINVAL))));
}
