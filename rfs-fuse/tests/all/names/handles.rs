//! File handles: name_to_handle_at(2) and open_by_handle_at(2), as used by NFS servers.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::{ffi::OsStrExt, fs::MetadataExt, process::CommandExt},
    },
    path::Path,
    process::Command,
};

use crate::common::pairs;
use nix::libc;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
/// Larger than any file system's handle.
const ROOM: usize = 128;

/// A handle in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    bytes: u32,
    kind: i32,
    rest: [u8; ROOM],
}

fn failed() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("an error of the kernel's")
}

/// Returns the handle of a file.
fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle { bytes: ROOM as u32, kind: 0, rest: [0; ROOM] };
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let mut mount = 0;
    // SAFETY: the path is a string. The kernel writes at most `bytes` bytes behind the two numbers,
    // and there is room for them.
    let done = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0)
    };
    assert_eq!(done, 0, "{}", failed());
    handle
}

/// Opens a file by its handle, on the mount of this path.
fn open(mount: &Path, mut handle: Handle, flags: i32) -> Result<File, Errno> {
    let mount = File::open(mount).expect("opened");
    // SAFETY: the kernel reads the handle, which contains its own length.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    if fd < 0 {
        return Err(failed());
    }
    // SAFETY: the kernel just made the descriptor, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn read(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    text
}

/// Inode numbers are the server's. The other mount has not seen these inodes before.
#[test]
fn handles_are_valid_on_every_mount() {
    pairs(16 * MIB, &[], |_, a, b| {
        fs::create_dir_all(a.path("x/y")).expect("made");
        fs::write(a.path("x/y/file"), b"bytes").expect("written");
        let [file, dir] = ["x/y/file", "x/y"].map(|name| handle_of(&a.path(name)));
        assert_eq!(read(open(&b.point, file, libc::O_RDONLY).expect("found")), "bytes");
        // The kernel also connects the directory to its ancestors.
        let found = open(&b.point, dir, libc::O_RDONLY | libc::O_DIRECTORY).expect("found");
        let link = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).expect("a path");
        assert_eq!(link, b.path("x/y"));
        // A handle does not depend on names.
        fs::rename(a.path("x/y/file"), a.path("other")).expect("renamed");
        fs::rename(a.path("x/y"), a.path("z")).expect("renamed");
        let flags = libc::O_WRONLY | libc::O_APPEND;
        open(&b.point, file, flags).expect("found").write_all(b" and more").expect("written");
        assert_eq!(fs::read_to_string(a.path("other")).expect("read"), "bytes and more");
        // A handle of the root.
        let root = open(&b.point, handle_of(&a.point), libc::O_RDONLY).expect("found");
        assert_eq!(root.metadata().expect("attributes").ino(), 1);
    });
}

#[test]
fn a_handle_of_an_unlinked_file_is_stale() {
    pairs(16 * MIB, &[], |_, a, b| {
        fs::create_dir(a.path("dir")).expect("made");
        fs::write(a.path("file"), b"bytes").expect("written");
        let [file, dir] = ["file", "dir"].map(|name| handle_of(&a.path(name)));
        let open_still = OpenOptions::new().read(true).open(a.path("file")).expect("opened");
        fs::remove_file(a.path("file")).expect("removed");
        fs::remove_dir(a.path("dir")).expect("removed");
        for handle in [file, dir] {
            assert_eq!(open(&b.point, handle, libc::O_RDONLY).map(drop), Err(Errno::STALE));
        }
        assert_eq!(read(open_still), "bytes");
        // Inode numbers are not reused.
        for name in 0..100 {
            fs::write(a.path(&name.to_string()), b"another").expect("written");
        }
        assert_eq!(open(&b.point, file, libc::O_RDONLY).map(drop), Err(Errno::STALE));
    });
}

/// A handle leads to a file without a path. After a change of owner its names are looked up again
/// nevertheless.
#[test]
fn names_of_a_file_opened_by_handle_have_the_right_owner() {
    const NEW_OWNER: u32 = 1003;
    pairs(16 * MIB, &[], |_, a, b| {
        fs::write(a.path("file"), b"bytes").expect("written");
        assert_eq!(read(open(&b.point, handle_of(&a.path("file")), libc::O_RDONLY).expect("found")), "bytes");
        assert_eq!(fs::metadata(b.path("file")).expect("attributes").uid(), 0);
        std::os::unix::fs::chown(a.path("file"), Some(NEW_OWNER), None).expect("chown");
        let changed = Command::new("chmod").arg("640").arg(b.path("file")).uid(NEW_OWNER).status();
        assert!(changed.expect("it runs").success());
    });
}
