//! Directories and files that only this user and root can change.
//!
//! The server trusts the bytes that it finds in `--memory-dir` and `--persist`, and gives
//! descriptors of them away. So it opens a directory or file only if no other user can have put it
//! there. It checks the opened object, not the name.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{
    fs::{File, Metadata},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use rustix::fs::{Mode, OFlags, openat};

/// Maximum number of directories between an object and the root of the tree. A longer chain is a
/// loop of mounts.
const MAX_DEPTH: usize = 256;

/// Reason why a directory or file is not used.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// The owner of the link chooses its target.
    #[error("a symbolic link: give the path of its target instead")]
    Link,
    /// Not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// Not a regular file.
    #[error("not a regular file")]
    NotFile,
    /// Another user owns the file.
    #[error("belongs to user {0}, and must belong to this user or root")]
    Owner(u32),
    /// Other users can write to the file.
    #[error("other users can write to it, its mode is {0:o}: chmod go-w")]
    Mode(u32),
    /// Other users can replace the file.
    #[error("other users can replace it, as a directory above it has mode {0:o}: chmod o-w or +t")]
    Above(u32),
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Opens a directory that only this user and root can change.
///
/// # Errors
/// Another user can change or replace the directory, or the path is a symbolic link.
pub fn open_directory(path: &Path) -> Result<File, OwnershipError> {
    // Without a trailing slash, which would follow a link.
    let path: std::path::PathBuf = path.components().collect();
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::NOTDIR if path.is_symlink() => OwnershipError::Link,
        rustix::io::Errno::NOTDIR => OwnershipError::NotDirectory,
        e => io::Error::from(e).into(),
    })?;
    let directory = File::from(opened);
    check(&directory.metadata()?)?;
    check_above(&directory)?;
    Ok(directory)
}

/// Opens a regular file that only this user and root can change.
///
/// # Errors
/// Another user can change the file, or the path is a symbolic link.
pub fn open_file(path: &Path, options: OFlags) -> Result<File, OwnershipError> {
    // NONBLOCK: does not wait for a writer of a FIFO.
    let flags = options | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|e| match e {
        rustix::io::Errno::LOOP => OwnershipError::Link,
        // A directory, or a device or FIFO without its other side.
        rustix::io::Errno::ISDIR | rustix::io::Errno::NXIO => OwnershipError::NotFile,
        e => io::Error::from(e).into(),
    })?;
    let file = File::from(opened);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(OwnershipError::NotFile);
    }
    check(&meta)?;
    Ok(file)
}

/// Checks that no other user can replace a socket in a directory.
///
/// # Errors
/// The directory belongs to another user, or every user can remove files of others there.
pub fn check_socket_directory(path: &Path) -> Result<(), OwnershipError> {
    let meta = std::fs::metadata(path)?;
    let own = rustix::process::geteuid().as_raw();
    // A group may manage sockets together. In a sticky directory, only the owner removes a socket.
    let ignored = if meta.mode() & 0o1000 == 0 { 0o020 } else { 0o022 };
    check_owner_and_mode(meta.uid(), meta.mode() & !ignored, own)
}

fn check(meta: &Metadata) -> Result<(), OwnershipError> {
    check_owner_and_mode(meta.uid(), meta.mode(), rustix::process::geteuid().as_raw())
}

fn check_owner_and_mode(owner: u32, mode: u32, own: u32) -> Result<(), OwnershipError> {
    if owner != 0 && owner != own {
        return Err(OwnershipError::Owner(owner));
    }
    if mode & 0o022 != 0 {
        return Err(OwnershipError::Mode(mode & 0o7777));
    }
    Ok(())
}

/// Checks that no user can put another directory in the place of an open one.
fn check_above(directory: impl AsFd) -> Result<(), OwnershipError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = |below: &dyn AsFd| -> io::Result<File> {
        Ok(openat(below.as_fd(), "..", flags, Mode::empty())?.into())
    };
    let mut current = above(&directory)?;
    let mut meta = current.metadata()?;
    for _ in 0..MAX_DEPTH {
        let (any, sticky) = (meta.mode() & 0o002 != 0, meta.mode() & 0o1000 != 0);
        if any && !sticky {
            return Err(OwnershipError::Above(meta.mode() & 0o7777));
        }
        let next = above(&current)?;
        let there = next.metadata()?;
        // The root of the tree is above itself.
        if (there.dev(), there.ino()) == (meta.dev(), meta.ino()) {
            break;
        }
        (current, meta) = (next, there);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn owners_and_modes() {
        let kind = |owner, mode| check_owner_and_mode(owner, mode, 7).map_err(|e| e.to_string());
        assert_eq!([kind(7, 0o100_600), kind(0, 0o100_644), kind(7, 0o40_755)], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(kind(8, 0o600), Err("belongs to user 8, and must belong to this user or root".into()));
        for mode in [0o620, 0o602, 0o1777] {
            assert_eq!(
                kind(7, mode),
                Err(format!("other users can write to it, its mode is {mode:o}: chmod go-w"))
            );
        }
    }

    #[test]
    fn directories_that_others_can_change_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("d");
        fs::create_dir(&path).unwrap();
        chmod(&path, 0o700);
        open_directory(&path).unwrap();
        symlink(&path, root.path().join("link")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        for (name, link) in [("link", true), ("link/", true), ("link/.", true), ("file", false)] {
            let error = open_directory(&root.path().join(name)).unwrap_err();
            assert_eq!(matches!(error, OwnershipError::Link), link, "{name}: {error}");
            assert_eq!(matches!(error, OwnershipError::NotDirectory), !link, "{name}: {error}");
        }
        for mode in [0o770, 0o702, 0o1777] {
            chmod(&path, mode);
            assert!(matches!(open_directory(&path), Err(OwnershipError::Mode(m)) if m == mode));
        }
        chmod(&path, 0o700);
        chmod(root.path(), 0o777);
        assert!(matches!(open_directory(&path), Err(OwnershipError::Above(0o777))));
        chmod(root.path(), 0o1777);
        open_directory(&path).unwrap();
    }

    #[test]
    fn files_that_others_can_change_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "text").unwrap();
        chmod(&path, 0o600);
        open_file(&path, OFlags::RDWR).unwrap();
        symlink(&path, root.path().join("link")).unwrap();
        let open = |name: &str| open_file(&root.path().join(name), OFlags::RDONLY);
        assert!(matches!(open("link"), Err(OwnershipError::Link)));
        assert!(matches!(open("."), Err(OwnershipError::NotFile)));
        assert!(matches!(open("none"), Err(OwnershipError::Os(e)) if e.kind() == io::ErrorKind::NotFound));
        let fifo = root.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(matches!(open("fifo"), Err(OwnershipError::NotFile)));
        chmod(&path, 0o622);
        assert!(matches!(open("file"), Err(OwnershipError::Mode(0o622))));
    }

    /// Needs root, which alone can give files away.
    #[test]
    fn files_of_another_user_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (directory, file) = (root.path().join("d"), root.path().join("f"));
        fs::create_dir(&directory).unwrap();
        chmod(&directory, 0o700);
        fs::write(&file, "").unwrap();
        for path in [&directory, &file] {
            std::os::unix::fs::chown(path, Some(65_534), None).expect("root runs this test");
        }
        assert!(matches!(open_directory(&directory), Err(OwnershipError::Owner(65_534))));
        assert!(matches!(open_file(&file, OFlags::RDONLY), Err(OwnershipError::Owner(65_534))));
    }
}
