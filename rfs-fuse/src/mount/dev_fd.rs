//! A mount that another program has made: `/dev/fd/N` in place of a mount point.
//!
//! The program that starts this one has opened the FUSE device, mounted with it, and left the
//! descriptor N open. So this process needs no right to mount. It learns the connection from
//! `/proc/self/fdinfo/N` (Linux 6.16 and newer), and the mount point from its own mount table. The
//! mount may be in another mount namespace: then its path is unknown.
//!
//! This process never unmounts such a mount. When it closes the descriptor, the kernel ends the
//! connection, and calls there fail with ENOTCONN until the other program unmounts.
//!
//! # Concurrency
//! The main thread, once, before other threads can open descriptors.

use std::{
    fs, io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, io::FdFlags};

use super::{
    active_mount::{ActiveMount, Maker},
    error::MountError,
    refusal, table,
};

/// Directory of the names of open descriptors.
const DESCRIPTORS: &str = "/dev/fd";

/// Returns the number of a descriptor that stands for a mount point: `/dev/fd/N`.
pub(crate) fn descriptor(path: &Path) -> Option<RawFd> {
    let name = path.strip_prefix(DESCRIPTORS).ok()?.to_str()?;
    // Neither signs nor leading zeros.
    name.parse().ok().filter(|number: &RawFd| *number >= 0 && number.to_string() == name)
}

/// Takes over the open FUSE device with this number, and the mount that it serves. Call it once for
/// a number: the device closes with the returned descriptor.
///
/// # Errors
/// There is no such descriptor, it is no FUSE device, or it serves no mount that this program can
/// serve.
pub(crate) fn take(number: RawFd) -> Result<(OwnedFd, ActiveMount), MountError> {
    let path = name_of(number);
    let failed = |why: String| MountError::HandedOver { path: path.clone(), why };
    // Standard streams have users of their own in this process.
    if number <= 2 {
        return Err(failed("a standard stream: hand the device over as descriptor 3 or more".into()));
    }
    look(number).map_err(&failed)?;
    // SAFETY: The descriptor is open. It was handed over for this call, so nothing else in this
    // process owns it. The runtime and libraries open descriptors of their own, and never take over
    // a descriptor that was open before. All descriptors that this process opens are marked with
    // close-on-exec, and this function refuses a descriptor with that mark.
    let device = claim(number, |number| unsafe { OwnedFd::from_raw_fd(number) }).map_err(&failed)?;
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let connection = connection(&facts, &kernel).map_err(&failed)?;
    let number = connection.map(|connection| format!("0:{connection}"));
    let entry = number.as_ref().and_then(|device| {
        table::all().into_iter().rfind(|entry| entry.device == *device && entry.fs_type.starts_with("fuse"))
    });
    if entry.as_ref().is_some_and(|entry| !entry.has_option("default_permissions")) {
        return Err(failed(
            "mounted without default_permissions, so every program could use every file: mount with this option".into(),
        ));
    }
    if let Some(why) = unseen(connection, entry.is_some()) {
        log::warn!(
            "{}: cannot check that the mount has default_permissions, as {why}: without this option, every program \
             can use every file",
            path.display()
        );
    }
    // Reads of the session block.
    rustix::fs::fcntl_setfl(&device, OFlags::empty()).map_err(|e| failed(e.to_string()))?;
    let (visible, place) = match entry {
        Some(entry) => (true, entry.path),
        None => (false, path),
    };
    Ok((device, ActiveMount { path: place, device: number, maker: Maker::Other { visible } }))
}

/// Takes ownership of a descriptor that programs started by this process would inherit, and has
/// them not inherit it.
fn claim(number: RawFd, own: impl FnOnce(RawFd) -> OwnedFd) -> Result<OwnedFd, String> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).map_err(|e| e.to_string())?;
    if has_close_on_exec(&facts) {
        return Err("not handed over: this process has opened it itself".into());
    }
    let device = own(number);
    // A watchdog or a probe with the device would keep the connection alive.
    rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    Ok(device)
}

/// Returns the value of a line of `/proc/self/fdinfo/N`.
fn field<'a>(facts: &'a str, name: &str) -> Option<&'a str> {
    facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn has_close_on_exec(facts: &str) -> bool {
    let flags = field(facts, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags).contains(OFlags::CLOEXEC))
}

/// Returns the number of the device's connection. `None` on kernels that do not tell it.
///
/// # Errors
/// The device serves no mount.
fn connection(facts: &str, kernel: &str) -> Result<Option<u32>, String> {
    match field(facts, "fuse_connection") {
        Some(text) => text.parse().map(Some).map_err(|_| format!("unknown connection {text:?}")),
        None if tells_connections(kernel) => {
            Err("it serves no mount, or the mount has ended: mount first, with fd=N".into())
        }
        None => Ok(None),
    }
}

/// Returns why this process cannot see the options of the mount. `None` if it can: `is_visible` if
/// the mount of the connection is in its mount table.
fn unseen(connection: Option<u32>, is_visible: bool) -> Option<&'static str> {
    match connection {
        None => Some("this kernel does not tell the mount of a descriptor (Linux 6.16 and newer do)"),
        Some(_) if !is_visible => Some("the mount is in another mount namespace"),
        Some(_) => None,
    }
}

/// Returns true for releases of Linux from 6.16 on.
fn tells_connections(kernel: &str) -> bool {
    let mut numbers =
        kernel.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}

/// Checks that a descriptor is an open FUSE device.
fn look(number: RawFd) -> Result<(), String> {
    // Follows the link, and does not open the device.
    let meta = fs::metadata(format!("/proc/self/fd/{number}")).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => "not open: the program that mounts has to leave it open".into(),
        _ => e.to_string(),
    })?;
    refusal::of_file(&meta).map_or(Ok(()), Err)
}

/// Checks a descriptor without taking it over.
///
/// # Errors
/// There is no such descriptor, or it is no FUSE device.
pub(crate) fn check(number: RawFd) -> Result<(), MountError> {
    look(number).map_err(|why| MountError::HandedOver { path: name_of(number), why })
}

/// Returns the name of a descriptor.
fn name_of(number: RawFd) -> PathBuf {
    Path::new(DESCRIPTORS).join(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dev_fd_names_a_descriptor() {
        for (path, number) in [
            ("/dev/fd/9", Some(9)),
            ("/dev/fd/0", Some(0)),
            ("/dev/fd/09", None),
            ("/dev/fd/-1", None),
            ("/dev/fd/+1", None),
            ("/dev/fd/", None),
            ("/dev/fd", None),
            ("/dev/fd/9/x", None),
            ("/dev/fd/99999999999", None),
            ("dev/fd/9", None),
            ("/mnt/9", None),
        ] {
            assert_eq!(descriptor(Path::new(path)), number, "{path}");
        }
    }

    #[test]
    fn the_kernel_tells_connection_and_flags() {
        let facts = "pos:\t0\nflags:\t0100002\nmnt_id:\t44\nino:\t7\nfuse_connection:\t39\n";
        assert_eq!(connection(facts, "6.18.5"), Ok(Some(39)));
        assert!(!has_close_on_exec(facts));
        assert!(has_close_on_exec("flags:\t02100002\n"));
        assert!(connection("pos:\t0\n", "6.18.5").is_err());
        assert!(connection("pos:\t0\n", "7.0").is_err());
        for old in ["6.15.9-amd64", "6.1", "5.3.0", ""] {
            assert_eq!(connection("pos:\t0\n", old), Ok(None), "{old}");
        }
    }

    /// Catches a mount that may let every program use every file, and no warning.
    #[test]
    fn a_mount_whose_options_are_unseen_gets_a_warning() {
        assert!(unseen(None, false).is_some_and(|why| why.contains("6.16")));
        assert!(unseen(Some(39), false).is_some_and(|why| why.contains("namespace")));
        assert_eq!(unseen(Some(39), true), None);
    }

    #[test]
    fn other_descriptors_are_refused() {
        let file = tempfile::tempfile().expect("a file");
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        for (number, why) in [(1, "standard stream"), (987_654, "not open"), (number, "not a FUSE device")] {
            let said = take(number).expect_err("refused").to_string();
            assert!(said.contains(why) && said.starts_with(&format!("/dev/fd/{number}: ")), "{said}");
        }
    }
}
