//! The process at the other end of a Unix socket.
//!
//! # Concurrency
//! Immutable; any thread may use it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// The process of a peer on this host, as it was when it connected.
// Exhaustive: the pidfd is all that there is to a process; its number is for messages.
#[derive(Debug)]
pub struct ConnectedProcess {
    /// Its number.
    pub pid: i32,
    /// Its pidfd, which is never another process's.
    pub pidfd: OwnedFd,
}

impl ConnectedProcess {
    /// Returns the process that has this number now.
    pub fn open(pid: i32) -> Option<ConnectedProcess> {
        let process = (pid > 0).then(|| Pid::from_raw(pid)).flatten()?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).ok()?;
        Some(ConnectedProcess { pid, pidfd })
    }

    /// Returns the process that connected a Unix socket. The kernel remembers it from the connect,
    /// so its number cannot have become another process's. It has none for a process that has
    /// ended or is of another pid namespace, and none before Linux 6.5.
    pub(crate) fn of(socket: impl AsFd) -> Option<ConnectedProcess> {
        const SO_PEERPIDFD: libc::c_int = 77;
        let pid = socket_peercred(&socket).ok()?.pid.as_raw_nonzero().get();
        let mut pidfd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of the integer.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut pidfd).cast(),
                &raw mut len,
            )
        };
        if status != 0 || pidfd < 0 {
            return None;
        }
        // SAFETY: a fresh descriptor that no other object owns.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        (pid > 0).then_some(ConnectedProcess { pid, pidfd })
    }

    /// Returns true once the process has ended, whether or not its parent has reaped it.
    pub fn has_ended(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A process whose state is unknown counts as alive.
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Kills the process (SIGKILL), even a stopped one.
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::KILL)?)
    }
}
