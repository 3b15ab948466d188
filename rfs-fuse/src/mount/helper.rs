//! Mounts for ordinary users with fusermount3, the setuid helper of fuse3.
//!
//! The helper checks the user's rights, mounts as root, and passes the open device back over a
//! socket.
//!
//! # Concurrency
//! The main thread, and threads of `deadline`. Takes no locks.

use std::{
    io::{IoSliceMut, Read},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{error::NO_HELPER, options::MountOptions};

const NAME: &str = "fusermount3";

/// Returns the path of fusermount3, if it is installed.
pub fn helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from))
        .map(|directory| directory.join(NAME))
        .find(|candidate| candidate.is_file())
}

fn option_string(options: &MountOptions) -> String {
    // Commas and backslashes of a value are escaped.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let subtype = options.fs_type.trim_start_matches("fuse.");
    let mut out = format!("fsname={source},subtype={subtype},default_permissions");
    for (_, flag) in options.flags.set() {
        out.push(',');
        out.push_str(flag);
    }
    if options.allow_other {
        out.push_str(",allow_other");
    }
    out
}

/// Returns one line of a failed helper's messages, without the helper's name.
fn complaint(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("fusermount3 failed");
    // The line begins with the helper's name or path.
    let message = line.split_once("fusermount3: ").map_or(line, |(_, message)| message);
    message.trim().to_owned()
}

/// Mounts, and returns the open device.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, String> {
    let Some(program) = helper() else {
        return Err(NO_HELPER.into());
    };
    let (ours, theirs) = UnixStream::pair().map_err(|e| format!("socketpair: {e}"))?;
    // The helper's standard input is its end of the socket.
    let mut child = Command::new(program)
        .arg("-o")
        .arg(option_string(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("fusermount3: {e}"))?;
    let received = receive_fd(&ours);
    let mut said = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_end(&mut said).ok();
    }
    let status = child.wait().map_err(|e| format!("fusermount3: {e}"))?;
    match received {
        Ok(Some(fd)) if status.success() => Ok(fd),
        Err(e) if status.success() => Err(format!("fusermount3 handed no device over: {e}")),
        _ => Err(complaint(&said)),
    }
}

fn receive_fd(socket: &UnixStream) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fd)
}

/// Unmounts. A lazy unmount succeeds even if the mount is busy.
pub(super) fn unmount(path: &Path, lazily: bool) -> Result<(), String> {
    let Some(program) = helper() else {
        return Err(NO_HELPER.into());
    };
    let mut command = Command::new(program);
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    let done =
        command.arg("--").arg(path).stdin(Stdio::null()).output().map_err(|e| format!("fusermount3: {e}"))?;
    if done.status.success() { Ok(()) } else { Err(complaint(&done.stderr)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::Flags;

    #[test]
    fn options_are_escaped() {
        let options = MountOptions {
            source: "unix:/a,b\\c".into(),
            fs_type: "fuse.rfs-fuse".into(),
            allow_other: false,
            labels: Vec::new(),
            flags: Flags { read_only: true, ..Flags::default() },
        };
        assert_eq!(
            option_string(&options),
            "fsname=unix:/a\\,b\\\\c,subtype=rfs-fuse,default_permissions,nosuid,nodev,ro"
        );
    }

    #[test]
    fn a_complaint_is_one_line() {
        assert_eq!(complaint(b"\nfusermount3: mountpoint is not empty\nmore\n"), "mountpoint is not empty");
        assert_eq!(complaint(b"/usr/bin/fusermount3: no\n"), "no");
        assert_eq!(complaint(b""), "fusermount3 failed");
    }
}
