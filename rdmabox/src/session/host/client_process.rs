//! The process of a client with mapped memory.
//!
//! Such a client executes its requests on its own processor, so the host cannot stop them by
//! destroying a queue pair. Only the end of the process removes the mapping. Until then the host
//! must not reuse the memory. It can only wait for the process, or kill it.
//!
//! # Concurrency
//! Immutable; used by the session's thread and by the service.

use std::os::fd::OwnedFd;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};

use crate::session::stream::Stream;

/// The process of a client, held by a pidfd, because its pid could be reused.
#[derive(Debug)]
pub(crate) struct ClientProcess {
    pid: Pid,
    descriptor: OwnedFd,
}

impl ClientProcess {
    /// Returns the process that connected a Unix stream. Returns `None` for other streams, for this
    /// process, for an ended process, and for a process of a foreign pid namespace.
    pub(crate) fn of(stream: &Stream) -> Option<ClientProcess> {
        let Stream::Unix(unix) = stream else { return None };
        let pid = socket_peercred(unix).ok()?.pid;
        // The kernel reports 0 for a process of a foreign pid namespace.
        if pid.as_raw_nonzero().get() <= 0 || pid == getpid() {
            return None;
        }
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The stream is still open, so the process has not ended, and its pid was not reused.
        (!stream.is_over()).then_some(ClientProcess { pid, descriptor })
    }

    /// Returns the pid, for messages.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Returns true once the process has ended, whether or not its parent has reaped it.
    pub(crate) fn has_ended(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        // A process whose state is unknown counts as alive.
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Kills the process (SIGKILL), even a stopped one.
    pub(crate) fn kill(&self) -> std::io::Result<()> {
        Ok(pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn only_another_process_is_a_client_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(ClientProcess::of(&Stream::Unix(a)).is_none(), "this process");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(ClientProcess::of(&Stream::Tcp(tcp)).is_none());
    }
}
